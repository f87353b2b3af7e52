"""The command line: quick to answer, clear when it refuses."""

import errno
import re
import resource
import subprocess
import sys

import pytest

from octavo.cli.main import main, run_command, whole_command

PLAYS = ["bench", "serve", "http://127.0.0.1:9/v1", "--trace", "/no/such/file"]
HEAVY = {"numpy", "starlette", "uvicorn", "tokenizers", "pydantic", "prometheus_client", "torch"}


def run(monkeypatch, capsys, *words):
    """The exit status and what was written."""
    monkeypatch.setattr(sys, "argv", ["octavo", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


def test_help_loads_nothing_heavy():
    code = "import sys, octavo.cli.main; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(loaded.stdout.split())


def commands_of(command, *path):
    """The words of every command, and what it is."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, *path, name)


def test_every_command_explains_itself_in_80_columns_and_names_no_type(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    whole, names = whole_command(), []
    for path, _ in commands_of(whole):
        with pytest.raises(SystemExit) as ended:
            whole([*path, "--help"], prog_name="octavo")
        told = capsys.readouterr().out
        assert ended.value.code == 0
        assert max(map(len, told.splitlines())) <= 80, path
        assert not re.findall(r"<(?:bool|str|int|float|path|list)|…|W[123] |C=", told), path
        names.append(path)
    assert {("serve",), ("bench", "offline"), ("pins", "add"), ("models", "rm")} <= set(names)


def test_every_command_that_prints_a_table_can_print_json():
    """All but those that talk, serve, or say one line of what they did."""
    lines = ["serve", "render", "chat", "generate", "models", "pull", "rm", "disk", "clean", "replay"]
    lines += ["scale", "update", "stop"]
    for path, command in commands_of(whole_command()):
        if not hasattr(command, "commands") and path[-1] not in lines:
            assert "--json" in {opt for each in command.params for opt in each.opts}, path


@pytest.mark.parametrize(
    "words, status, says",
    [
        (["serve", "--kv-memory", "2foo"], 2, "--kv-memory"),
        (["serve", "--port", "0", "--trace-file", "/no/such/file"], 2, "trace_file is /no/such/file, which"),
        ([*PLAYS, "--rate", "2"], 2, "--trace and --rate are both given"),
        ([*PLAYS, "--concurrency", "1,8,32"], 2, "--trace and --concurrency are both given"),
        ([*PLAYS, "--workload", "random"], 2, "--trace and --workload are both given"),
        ([*PLAYS, "--processes", "2"], 2, "--trace and --processes are both given"),
        ([*PLAYS, "--processes", "1"], 2, "--trace /no/such/file cannot be read"),
        ([*PLAYS[:-2], "--speed", "2"], 2, "--speed, --seconds or --plan is given without a trace"),
        (["serve", "--weights", "q9"], 2, "weights"),
        (["serve", "--port", "0", "--kv", "fp8"], 2, "kv"),
        (["serve", "--overlap", "1"], 2, "--overlap is no longer a setting: steps overlap on a GPU"),
        (
            ["chat", "--kv-ready", "1GiB"],
            2,
            "--kv-ready is no longer a setting: a server takes the first GiB",
        ),
        (["bench", "offline", "--block-size", "32"], 2, "--block-size is no longer a setting: a block holds"),
        (["serve", "--threads", "two"], 2, "--threads is 'two'; allowed: a whole number"),
        (["serve", "--drain-timeout", "4000"], 2, "--drain-timeout is 4000.0; allowed: 0 to 3,600"),
        (["serve", "--log-level", "loud"], 2, "--log-level is 'loud'; allowed: debug, info, warning, error"),
        (["serve", "--config", "/no/such/file"], 2, "/no/such/file cannot be read"),
        (["serve", "--host", "no.such.host.invalid"], 2, "--host"),
        (["serve", "--port", "99999"], 2, "--port"),
        (["chat", "--temperature", "9"], 2, "temperature"),
        (["doctor", "/no/such/model.gguf"], 1, "/no/such/model.gguf"),
        (["generate", "one", "two", "three"], 2, "PROMPT"),
        (["serve", "--port", "9" * 5_000], 2, "--port"),
        (["serve", "--port", "9" * 400], 2, "--port"),
        (["serve", "--max-seqs", "9" * 400], 2, "--max-seqs is 9"),
        (["serve", "--kv-memory", "9" * 5_000], 2, "--kv-memory is '9"),
        (["generate", "x", "--temperature", "9" * 400], 2, "temperature is inf"),
        (["generate", "x", "--seed", "-" + "9" * 400], 2, "seed is -9"),
        (["bench", "serve", "http://127.0.0.1:9", "--concurrency", "9" * 5_000], 2, "--concurrency is '9"),
        (["pins", "renew", "a", "--ttl", "9" * 400], 2, "a number cannot be sent"),
        (["sessions", "delete", ""], 2, "the session is empty"),
        (["disk", "list", "/no/such/folder"], 2, "/no/such/folder"),
    ],
)
def test_a_refusal_is_one_message_and_a_status(monkeypatch, capsys, words, status, says):
    code, written = run(monkeypatch, capsys, *words)
    assert code == status
    assert says in written.err
    assert "Traceback" not in written.err
    assert "sys." not in written.err
    assert len(written.err) < 6_000


def test_a_wrong_instruction_set_is_a_wrong_setting():
    # In a process of its own: the choice is made once.
    done = subprocess.run(
        [sys.executable, "-m", "octavo", "doctor"], env={"OCTAVO_ISA": "mmx"}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "OCTAVO_ISA" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("12 blocks"),
        OSError(errno.ENOMEM, "no"),
        RuntimeError("can't start new thread"),
    ],
)
def test_memory_that_the_system_refuses_is_a_sentence_and_status_1(error, capsys, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 << 20, resource.RLIM_INFINITY))
    with pytest.raises(SystemExit) as ended:
        run_command(fail)
    assert ended.value.code == 1
    words = str(error) or "MemoryError"
    told = capsys.readouterr().err
    assert told.startswith(
        f"octavo: the system refuses memory ({words}); allowed: 300 MiB of addresses (ulimit -v)"
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    with pytest.raises(SystemExit):
        run_command(fail)
    assert "ulimit" not in capsys.readouterr().err


def test_another_error_of_the_system_is_no_shortage_of_memory():
    def fail():
        raise OSError(errno.EIO, "no")

    with pytest.raises(OSError, match="no"):
        run_command(fail)
