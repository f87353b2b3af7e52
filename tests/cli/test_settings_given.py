"""A setting that is given by a flag, a variable or a file arrives, the first of them decides, and what cannot
be meant is refused by name."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from octavo.cli import chat, doctor, serve
from octavo.cli.flags import TABLES, Only, ResolvedFlags, read_config, resolve, with_settings
from octavo.cli.main import app, whole_command
from octavo.config import WEIGHTS, StartOptions
from octavo.errors import ConfigError
from octavo.server.settings import ServerSettings
from octavo.setting import Setting, check, setting, settings_of

ALL = [(table, each) for table, cls in TABLES.items() for each in settings_of(cls)]
IDS = [each.name for _, each in ALL]


@dataclass(frozen=True, slots=True)
class Serving:
    """What `octavo serve` was about to start."""

    model: str | None
    engine: StartOptions
    server: ServerSettings
    parent: object  # of a replica

    def value(self, table: str, each: Setting) -> object:
        return getattr(self.engine if table == "engine" else self.server, each.field)


@pytest.fixture
def start(monkeypatch):
    """Run `octavo serve` with words and variables, up to where it would start."""
    started = []
    monkeypatch.setattr(serve, "run", lambda *given: started.append(Serving(*given)))

    def run(*words: str, **variables: str) -> Serving:
        result = CliRunner().invoke(app, ["serve", *words], env=variables, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return started.pop()

    return run


@pytest.fixture
def write(tmp_path):
    """Write a config file."""

    def text(told: str) -> Path:
        path = tmp_path / "octavo.toml"
        path.write_text(told)
        return path

    return text


def example(each: Setting, tmp_path: Path) -> str | bool | int | float:
    """A value that is not the default, as a file has it."""
    if each.name == "tenants":
        (tmp_path / "tenants.toml").write_text(f'[[tenant]]\nname = "a"\nkey_sha256 = "{"0" * 64}"\n')
        return str(tmp_path / "tenants.toml")
    if each.name == "api_key_file":
        (tmp_path / "keys").write_text("a-key\n")
        return str(tmp_path / "keys")
    given = {
        "device": "cpu",
        "allowed_origin": "https://app.example",
        "host": "localhost",
        "attention": "triton",
        "otel_endpoint": "http://127.0.0.1:4318",
        "metrics_address": "127.0.0.1:9100",
    }
    if each.name in given:
        return given[each.name]
    if each.kind is bool:
        return each.default is not True
    if each.is_size:
        return "1.5GiB"
    if each.choices:
        return next(choice for choice in each.choices if choice != each.default)
    if each.bounds is not None:
        return each.kind(each.bounds[0] + 17)
    return "some-name"


def line(each: Setting, value: object) -> str:
    """Of a config file."""
    return f"{each.name} = {json.dumps(value)}\n"


@pytest.mark.parametrize("table, each", ALL, ids=IDS)
def test_every_setting_arrives_alike_by_flag_variable_and_file(start, write, tmp_path, table, each):
    value = example(each, tmp_path)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    flag = [each.flag if value else each.off] if isinstance(value, bool) else [each.flag, text]
    file = write(f"[{table}]\n{line(each, value)}")
    typed = start(*flag).value(table, each)
    by_variable = start(**{each.variable: text}).value(table, each)
    of_file = start("--config", str(file)).value(table, each)
    if each.name == "tenants":
        typed, by_variable, of_file = (roster.tenants for roster in (typed, by_variable, of_file))
    assert typed == by_variable == of_file
    assert typed != each.default or each.name == "attention"


def test_a_file_with_every_setting_is_taken(start, write, tmp_path):
    # Not beside keys; not beside another backend than the native one, and only there; not beside an address.
    alone = {"tenants", "packed_cache", "tensor_parallel_size", "unix_socket"}
    told = dict.fromkeys(TABLES, "")
    for table, each in ALL:
        if each.name not in alone:
            told[table] += line(each, example(each, tmp_path))
    path = write('model = "m"\n' + "".join(f"[{table}]\n{lines}" for table, lines in told.items()))
    found = start("--config", str(path))
    assert found.model == "m"
    given = [(table, each) for table, each in ALL if each.name not in alone | {"attention"}]
    assert [each.name for table, each in given if found.value(table, each) == each.default] == []


def test_the_file_of_the_documentation_is_taken(start, write):
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    [told] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found = start("--config", str(write(told)))
    assert (found.model, found.engine.kv_memory_bytes, found.engine.pace) == ("smollm2-135m", 2**31, False)
    assert found.server.keys == ("one", "two")


def test_a_flag_comes_before_a_variable_before_a_file_before_the_default(start, write):
    path = str(write("[engine]\nmax_seqs = 3\n"))
    assert start().engine.max_seqs == 64
    assert start("--config", path).engine.max_seqs == 3
    assert start(OCTAVO_CONFIG=path).engine.max_seqs == 3
    assert start("--config", path, OCTAVO_MAX_SEQS="2").engine.max_seqs == 2
    assert start("--config", path, "--max-seqs", "1", OCTAVO_MAX_SEQS="2").engine.max_seqs == 1


def test_the_model_of_the_command_line_comes_before_that_of_the_file(start, write):
    path = str(write('model = "of-the-file"\n'))
    assert start("--config", path).model == "of-the-file"
    assert start("named", "--config", path).model == "named"


def test_benchmarks_measure_the_model_of_the_file_too(write, monkeypatch):
    measured = []
    monkeypatch.setattr("octavo.cli.bench.run_offline", lambda model, *_, **__: measured.append(model))
    path = str(write('model = "of-the-file"\n'))
    for words in ([], ["named"]):
        result = CliRunner().invoke(app, ["bench", "offline", *words, "--config", path])
        assert result.exit_code == 0, result.output
    assert measured == ["of-the-file", "named"]


def test_what_is_on_by_a_file_is_off_by_a_flag(start, write):
    path = str(write("[engine]\npacked_cache = true\n[server]\ninsecure = true\n"))
    found = start("--config", path, "--no-packed-cache", "--no-insecure")
    assert (found.engine.packed_cache, found.server.insecure) == (False, False)


def test_a_server_paces_and_takes_memory_at_start_unless_set_otherwise(start):
    assert start().engine == StartOptions(pace=True, kv_ready_bytes=2**30)
    assert start("--no-pace").engine.pace is False


def test_repeatable_settings_take_a_list_in_a_file_and_one_value_of_a_variable(start, write):
    path = str(write('[server]\nallowed_host = ["one", "two"]\n'))
    assert start("--config", path).server.allowed_hosts == ("one", "two")
    assert start("--config", path, OCTAVO_ALLOWED_HOST="three").server.allowed_hosts == ("three",)
    assert start("--allowed-host", "a", "--allowed-host", "b").server.allowed_hosts == ("a", "b")


def test_a_port_that_kubernetes_sets_is_left_alone(start):
    assert start(OCTAVO_PORT="tcp://10.0.0.1:8000").server.port == 8000
    assert start(OCTAVO_PORT="81").server.port == 81


@pytest.mark.parametrize(
    "text, value", [("yes", True), ("ON", True), ("1", True), ("False", False), ("0", False)]
)
def test_a_variable_says_on_or_off(start, text, value):
    assert start(OCTAVO_PACKED_CACHE=text).engine.packed_cache is value


@pytest.mark.parametrize(
    "variables, says",
    [
        ({"OCTAVO_MAX_SEQS": "many"}, "OCTAVO_MAX_SEQS is 'many'; allowed: a whole number"),
        ({"OCTAVO_MAX_SEQS": "0"}, "OCTAVO_MAX_SEQS is 0; allowed: 1 to 4,096"),
        ({"OCTAVO_MAX_SEQS": "1_0"}, "OCTAVO_MAX_SEQS is '1_0'"),
        ({"OCTAVO_KV_MEMORY": "2foo"}, "OCTAVO_KV_MEMORY is '2foo'; allowed: a size such as"),
        ({"OCTAVO_PACE": "maybe"}, "OCTAVO_PACE is 'maybe'; allowed: true or false"),
        ({"OCTAVO_DRAIN_TIMEOUT": "nan"}, "OCTAVO_DRAIN_TIMEOUT is nan; allowed: 0 to 3,600"),
        (
            {"OCTAVO_DISK_CACHE": ""},
            "OCTAVO_DISK_CACHE is set, and empty; allowed: a value, or an unset variable",
        ),
        ({"OCTAVO_TENANTS": "/no/such/file"}, "/no/such/file"),
        ({"OCTAVO_CONFIG": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"OCTAVO_BACKEND": "cpu"}, "OCTAVO_BACKEND is 'cpu', which is called native now"),
        ({"OCTAVO_OVERLAP": "1"}, "OCTAVO_OVERLAP is no longer a setting: steps overlap on a GPU"),
    ],
)
def test_a_variable_that_cannot_be_meant_is_refused_by_name(monkeypatch, variables, says):
    monkeypatch.setattr(serve, "run", lambda *given: None)  # nothing is started where it is taken
    result = CliRunner().invoke(app, ["serve"], env=variables)
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)


def test_a_variable_that_means_nothing_is_reported_and_left(monkeypatch):
    monkeypatch.setattr(serve, "run", lambda *given: None)
    for name in [each for each in os.environ if each.startswith("OCTAVO_")]:
        monkeypatch.delenv(name)
    misspelt = {"OCTAVO_MAX_SEQ": "8", "OCTAVO_ZZZ": "1"}
    of_others = {
        "OCTAVO_CACHE": "/tmp",
        "OCTAVO_SERVICE_HOST": "10.0.0.1",
        "OCTAVO_PORT_8000_TCP": "tcp://10.0.0.1",
    }
    result = CliRunner().invoke(app, ["serve"], env=misspelt | of_others)
    assert result.exit_code == 0, result.output
    told = [line for line in result.stderr.splitlines() if "does not use it" in line]
    assert told == [
        "octavo: OCTAVO_MAX_SEQ is set, but octavo does not use it; did you mean OCTAVO_MAX_SEQS? "
        "(docs/settings.md lists the variables)",
        "octavo: OCTAVO_ZZZ is set, but octavo does not use it (docs/settings.md lists the variables)",
    ]


@pytest.mark.parametrize(
    "text, says",
    [
        ("[engine]\nmax_seq = 8", "there is no setting 'max_seq' in [engine]; near it: max_seqs"),
        ("[engine]\nkv_memory_bytes = 8", "'kv_memory_bytes' in [engine]; near it: kv_memory"),
        ("[engine]\nzzz = 8", "there is no setting 'zzz' in [engine]; docs/settings.md lists all"),
        ("[engine]\nport = 8", "there is no setting 'port' in [engine]; it belongs in [server]"),
        ("[engine]\noverlap = 1", "[engine] overlap is no longer a setting: steps overlap on a GPU"),
        (
            "[engin]\nkv = 'f32'",
            "there is no table 'engin'; near it: engine; allowed: model, [engine], [server]",
        ),
        ("max_seqs = 8", "there is no table 'max_seqs'; allowed: model, [engine], [server]"),
        ("engine = 3", "engine is 3; allowed: a table, [engine]"),
        ("model = 3", "model is 3; allowed: a model"),
        ("model = ''", "model is ''; allowed: a model"),
        ("[engine]\nmax_seqs = '8'", "[engine] max_seqs is '8'; allowed: a whole number"),
        ("[engine]\nmax_seqs = 8.5", "[engine] max_seqs is 8.5; allowed: a whole number"),
        ("[engine]\nmax_seqs = true", "[engine] max_seqs is True; allowed: a whole number"),
        ("[engine]\nmax_seqs = [8]", "[engine] max_seqs is [8]; allowed: a whole number"),
        ("[engine]\npace = 1", "[engine] pace is 1; allowed: true or false"),
        ("[engine]\nkv = 1979-05-27", "[engine] kv is datetime.date(1979, 5, 27); allowed: text"),
        ("[engine]\nkv_memory = '2foo'", "[engine] kv_memory is '2foo'; allowed: a size such as"),
        ("[engine]\nkv_memory = 2.5", "[engine] kv_memory is 2.5; allowed: a size such as 2GiB"),
        ("[server]\nallowed_host = ['a', 3]", "[server] allowed_host number 2 is 3; allowed: text"),
        ("[engine", "is not TOML"),
        ("a = " + "[" * 100_000, "is not TOML"),
        ("\x00", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(write, text, says):
    path = write(text)
    with pytest.raises(ConfigError) as refused:
        read_config(path)
    assert says in str(refused.value)
    assert str(path) in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_file_is_bounded_before_it_is_parsed(tmp_path):
    (tmp_path / "large").write_bytes(b"#" * (1 << 20 | 1))
    with pytest.raises(ConfigError, match="is too large; allowed: up to 1,048,576 bytes"):
        read_config(tmp_path / "large")
    (tmp_path / "bytes").write_bytes(b"model = '\xff'")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_config(tmp_path / "bytes")
    (tmp_path / "many").write_text(f"[server]\nallowed_host = {['a'] * 1025}")
    with pytest.raises(ConfigError, match="has 1,025 items; allowed: up to 1,024"):
        read_config(tmp_path / "many")


def test_doctor_says_what_gave_a_setting(monkeypatch, write):
    found = []
    monkeypatch.setattr(doctor, "run", lambda model, engine, origins, **how: found.extend(origins) or True)
    path = write("[engine]\nkv_memory = '1.5GiB'\nmax_seqs = 3\n")
    words = ["doctor", "--config", str(path), "--max-seqs", "4", "--no-pace"]
    assert CliRunner().invoke(app, words, env={"OCTAVO_KV": "int8"}).exit_code == 0
    assert [
        f"{each.setting.name} is {each.setting.in_words(each.value)} ({each.source})" for each in found
    ] == [
        "kv is int8 (OCTAVO_KV)",
        f"kv_memory is 1.5 GiB ({path}, [engine] kv_memory)",
        "max_seqs is 4 (--max-seqs)",
        "pace is off (--no-pace)",
    ]


def test_settings_of_a_command_alone_have_no_variable(monkeypatch):
    monkeypatch.setattr(chat, "generate", lambda place, params, prompt: taken.append(params))
    taken = []
    words = ["generate", "--top-k", "3", "x"]
    result = CliRunner().invoke(app, words, env={"OCTAVO_TOP_K": "4", "OCTAVO_SEED": "none"})
    assert result.exit_code == 0, result.output
    assert (taken[0].top_k, taken[0].seed, taken[0].max_tokens) == (3, None, 128)


# -- one definition ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Small:
    """Settings of no engine."""

    size_bytes: int | None = setting(None, "A size.", bounds=(1, 9), group="Sizes")
    kind: str = setting("a", "A kind.", choices=("a", "b"), group="Kinds")
    names: tuple[str, ...] = setting((), "Names.", name="name")
    old: int = setting(3, removed="it is 3")
    inner: int = 4

    def __post_init__(self) -> None:
        check(self)


def test_a_field_is_a_flag_a_check_and_a_help(capsys):
    taken = []
    small = typer.Typer()

    @small.command()
    @with_settings
    def command(
        *, given: Annotated[Small, Only("size_bytes", "names")] = Small(kind="b"), resolved: ResolvedFlags
    ) -> None:
        taken.append((given, [origin.source for origin in resolved.origins]))

    run = CliRunner().invoke
    assert run(small, ["--size", "8B", "--name", "x", "--name", "y"]).exit_code == 0
    assert taken.pop() == (Small(8, "b", ("x", "y")), ["--size", "--name"])
    assert run(small, []).exit_code == 0
    assert taken.pop() == (Small(kind="b"), [])
    assert run(small, ["--kind", "a"]).exit_code == 2  # which the command does not take
    assert "size is 10; allowed: 1 to 9" in str(run(small, ["--size", "10"]).exception)
    assert "--old is no longer a setting: it is 3; leave it out" in str(run(small, ["--old", "5"]).exception)
    told = run(small, ["--help"], env={"COLUMNS": "80"}).output
    assert all(words in told for words in ("Sizes", "A size. Default: none.", "SIZE", "--name"))
    assert "--old" not in told
    assert "--config" not in told


def test_choices_are_shown_and_completed_and_flags_have_no_type(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    command = whole_command().commands["serve"]
    context = typer.Context(command, info_name="serve")
    params = {param.name: param for param in command.get_params(context)}
    assert [item.value for item in params["weights"].shell_complete(context, "")] == list(WEIGHTS)
    assert [item.value for item in params["kv"].shell_complete(context, "fp")] == ["fp16", "fp8"]
    told = command.get_help(context) + capsys.readouterr().out
    assert "One of auto, f32, bf16, int8, q4." in told
    assert "<bool>" not in told


def test_a_value_of_another_type_is_refused_in_python_too():
    with pytest.raises(ConfigError, match="max_seqs is '8'; allowed: a whole number"):
        StartOptions(max_seqs="8")  # type: ignore[arg-type]


def test_flags_alone_decide_where_the_settings_have_no_table():
    assert resolve(Small(), {"kind": "b", "size_bytes": None}, environment={"OCTAVO_SIZE": "2"})[0] == Small(
        kind="b"
    )
    with pytest.raises(ConfigError, match="kind is 'c'; allowed: a, b"):
        resolve(Small(), {"kind": "c"})


def test_what_a_command_has_no_flag_for_stays_as_it_is(write):
    config = read_config(write("[engine]\nmax_seqs = 3\nkv = 'int8'\n"))
    options, _ = resolve(StartOptions(pace=True), {"kv": None}, config, {"OCTAVO_PACE": "0"})
    assert options == StartOptions(pace=True, kv="int8")
