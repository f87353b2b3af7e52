"""`octavo chat` and `octavo generate` over a running server: what they send, what they show, and what they
tell of one that is away, is another, or stops in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from rich.console import Console
from tests.cli.serving import SharedServer, serving
from tests.doubles.fake_model import FakeModel
from tests.engine.served import serve_tiny
from typer.testing import CliRunner

from octavo.cli import answer_source
from octavo.cli.answerer import Answerer, EngineAnswerer
from octavo.cli.chat import Conversation, talk
from octavo.cli.main import app
from octavo.cli.remote_stream import KeyRefused, RemoteServer
from octavo.cli.server_answerer import SAMPLING_FIELDS, ServerAnswerer
from octavo.errors import ConfigError, OctavoError, RequestFailed
from octavo.params import SamplerParams
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of

NOWHERE = "http://127.0.0.1:9"


def octavo(*words: str, typed: str = "", env: dict[str, str] | None = None) -> str:
    """What a command writes to standard output. Raises what it raises."""
    result = CliRunner().invoke(app, list(words), input=typed, env=env)
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[SharedServer]:
    model = FakeModel()
    with serving(model) as url:
        yield SharedServer(url, model)


@pytest.fixture
def model(server: SharedServer) -> FakeModel:
    return server.reset("Hello!")


@pytest.fixture
def url(model: FakeModel, server: SharedServer) -> str:
    return server.url


# -- which server ------------------------------------------------------------------------------------------
def test_a_server_is_named_by_its_option_or_by_the_variable_with_v1_or_without(url: str) -> None:
    for words, env in [
        (["--url", url], {}),
        (["--url", f"{url}/v1"], {}),
        ([], {"OCTAVO_URL": url}),
        ([], {"OCTAVO_URL": f"{url}/v1/"}),
        (["--url", url], {"OCTAVO_URL": NOWHERE}),
    ]:
        assert octavo("generate", *words, "hi", env=env) == "Hello!\n"
        shown = octavo("chat", *words, typed="hi\n", env=env)
        assert "fake-model at http://" in shown
        assert "context 1,000 tokens" in shown
        assert "Hello!\n" in shown


@dataclass(frozen=True, slots=True)
class Command:
    """One that takes the key of a server, and is none."""

    words: tuple[str, ...]
    num_arguments: int  # that it cannot do without
    variables: tuple[object, object]  # of its url, of its key


def commands_of(group: object, *path: str) -> Iterator[Command]:
    """All below a group, as the command line has them."""
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        params = {param.name: param for param in command.params}
        if hasattr(command, "commands"):
            yield from commands_of(command, *path, name)
        elif "api_key" in params and "port" not in params:
            kinds = [param.param_type_name == "argument" and param.required for param in command.params]
            is_given = params["url"].param_type_name == "argument"
            variables = params["url"].envvar, params["api_key"].envvar
            yield Command((*path, name), sum(kinds) - is_given, variables)


COMMANDS = list(commands_of(typer.main.get_command(app)))


def test_every_command_that_knows_a_key_of_a_server_knows_its_url() -> None:
    assert len(COMMANDS) >= 17
    assert {each.variables for each in COMMANDS} == {("OCTAVO_URL", "OCTAVO_API_KEY")}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_every_command_asks_the_server_of_the_variable(command: Command) -> None:
    arguments = ["1MiB"] * command.num_arguments
    with pytest.raises(RequestFailed, match=r"http://127\.0\.0\.1:9(/v1/models)? (does not|lists no model)"):
        octavo(*command.words, *arguments, env={"OCTAVO_URL": NOWHERE, "OCTAVO_API_KEY": "secret"})


def test_bench_serve_loads_the_server_of_the_variable(model: FakeModel, url: str) -> None:
    model.answer = "x" * 8
    words = (
        "bench",
        "serve",
        "--n",
        "2",
        "--concurrency",
        "1",
        "--inp",
        "4",
        "--vocab",
        "250",
        "--out",
        "8",
        "--json",
    )
    for named in (url, f"{url}/v1"):
        assert '"completed": 2' in octavo(*words, env={"OCTAVO_URL": named})


# -- here or there -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        (["chat", "tiny.gguf", "--url", NOWHERE], {}, "the model 'tiny.gguf' and --url are both given"),
        (["generate", "tiny.gguf", "hi", "--url", NOWHERE], {}, "and --url are both given"),
        (
            ["chat", "--url", NOWHERE, "--threads", "2", "--kv-memory", "1GiB"],
            {},
            r"^--kv-memory, --threads: the server's engine .* \(--url is .*allowed: .* leave out --url$",
        ),
        (
            ["generate", "hi", "--weights", "auto"],
            {"OCTAVO_URL": NOWHERE},
            r"^--weights: the server's engine .* \(OCTAVO_URL is .*or name a MODEL, which is then loaded",
        ),
        (["chat", "--api-key", "secret"], {}, "--api-key is given without a server"),
        (["chat", "tiny.gguf", "--api-key", "secret"], {"OCTAVO_URL": NOWHERE}, "without a server"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], env: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        octavo(*words, env=env)


def test_a_model_that_is_named_is_loaded_here_and_the_server_of_the_variable_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = []

    @contextlib.contextmanager
    def running_engine(name: str | None, options: object) -> Iterator[FakeModel]:
        loaded.append(name)
        yield FakeModel("here")

    monkeypatch.setattr(answer_source, "running_engine", running_engine)
    env = {"OCTAVO_URL": NOWHERE, "OCTAVO_API_KEY": "secret"}
    told = CliRunner().invoke(app, ["generate", "tiny.gguf", "hi"], env=env)
    assert told.stdout == "here\n"
    assert told.stderr == "tiny.gguf is loaded here; the server of OCTAVO_URL is not used\n"
    assert octavo("generate", "hi", env={"OCTAVO_URL": ""}) == "here\n"
    assert octavo("generate", "hi", env={"OCTAVO_API_KEY": "secret"}) == "here\n"
    assert loaded == ["tiny.gguf", None, None]


# -- what is asked -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["chat", "generate"])
def test_every_sampling_option_is_in_the_table_of_what_is_sent(command: str) -> None:
    group = typer.main.get_command(app)
    params = group.commands[command].params  # type: ignore[attr-defined]
    names = {param.name for param in params if getattr(param, "rich_help_panel", "") == "Sampling"}
    assert names == set(SAMPLING_FIELDS) - ({"stop"} if command == "chat" else set())


SAMPLING = ("--max-tokens", "5", "--temperature", "0.3", "--top-p", "0.5", "--top-k", "7", "--seed", "11")


def test_the_server_s_engine_gets_the_parameters_that_one_here_would_get(model: FakeModel, url: str) -> None:
    octavo("generate", "--url", url, *SAMPLING, "--stop", "lo", "--stop", "x", "hi")
    octavo("chat", "--url", url, *SAMPLING, "--system", "be brief", typed="hi\n")
    octavo("generate", "--url", url, "hi")
    octavo("chat", "--url", url, typed="hi\n")
    given = {"max_tokens": 5, "temperature": 0.3, "top_p": 0.5, "top_k": 7, "seed": 11}
    assert [stream.params for stream in model.submitted] == [
        SamplerParams(**given, stop=("lo", "x")),
        SamplerParams(**given),
        SamplerParams(max_tokens=128),
        SamplerParams(temperature=0.7, top_p=0.95),
    ]
    assert bytes(model.submitted[1].prompt) == b"system:be brief\nuser:hi\n"


def test_a_prompt_may_come_from_standard_input(model: FakeModel, url: str) -> None:
    assert octavo("generate", "--url", url, "-", typed="from a file") == "Hello!\n"
    assert bytes(model.submitted[0].prompt) == b"from a file"


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 7}, {"seed": 8, "top_k": 5, "top_p": 0.9}])
def test_an_engine_says_the_same_here_and_behind_a_server(params: dict[str, float]) -> None:
    served = serve_tiny()
    wanted = SamplerParams(max_tokens=40, **params)  # type: ignore[arg-type]

    def text_of(answerer: Answerer) -> str:
        async def read() -> str:
            return "".join([piece.text async for piece in answerer.complete("onceuponatime")])

        return asyncio.run(read())

    with contextlib.closing(served.llm), serving(served.llm) as url:
        here, there = EngineAnswerer(served.llm, wanted), ServerAnswerer(RemoteServer(url), wanted)
        told = text_of(there)
        assert told == text_of(here)
        assert len(told) > 20


# -- what a server says ------------------------------------------------------------------------------------
def test_a_key_is_sent_and_a_wrong_one_is_reported() -> None:
    with serving(FakeModel(), ServerSettings(api_keys=("secret",))) as url:
        assert octavo("generate", "--url", url, "--api-key", "secret", "hi") == "Hello wörld!\n"
        assert octavo("generate", "hi", env={"OCTAVO_URL": url, "OCTAVO_API_KEY": "secret"})
        for words in (["generate", "hi"], ["chat"]):
            with pytest.raises(RequestFailed, match="needs a valid API key"):
                octavo(*words, "--url", url, "--api-key", "wrong")


def test_a_refusal_is_in_the_server_s_words(url: str) -> None:
    with pytest.raises(OctavoError, match="max_tokens is 0"):
        octavo("generate", "--url", url, "--max-tokens", "0", "hi")
    with pytest.raises(OctavoError, match="cannot be sent"):
        octavo("generate", "--url", url, "a\udcffb")


def test_a_model_without_a_chat_template_is_reported_before_anything_is_said(
    model: FakeModel, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "tokenizer_info", lambda: {"chat_template": None})
    with pytest.raises(ConfigError, match=rf"fake-model at {url} has no chat template; use octavo generate"):
        octavo("chat", "--url", url, typed="hi\n")


def test_stats_of_a_tenant_are_of_its_own_memory(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(f'[[tenant]]\nname = "alice"\nkey_sha256 = "{digest_of("octavo-alice").hex()}"\n')
    with serving(FakeModel(), ServerSettings(roster=TenantRegistry(path))) as url:
        told = asyncio.run(ServerAnswerer(RemoteServer(url, "octavo-alice"), SamplerParams()).memory())
    words = "tenant alice holds 0 blocks by running requests, 0 by pins and sessions (of 16 tokens)"
    assert told == words


def test_a_server_that_went_away_ends_no_conversation(model: FakeModel) -> None:
    shown = io.StringIO()
    with serving(model) as url:
        conversation = Conversation(ServerAnswerer(RemoteServer(url), SamplerParams()), None)
    lines = iter(["hi", "/stats", None])
    talk(conversation, lambda: next(lines), Console(file=shown, width=200))
    assert shown.getvalue().count("does not answer") == 2
    assert conversation.messages == []


# -- what is no Octavo, or breaks --------------------------------------------------------------------------
def http(body: str, kind: str = "application/json", length: int | None = None) -> bytes:
    size = len(body.encode()) if length is None else length
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n{body}".encode()


MODELS = http('{"data": [{"id": "m", "max_model_len": 100}]}')
BEGUN = 'data: {"choices": [{"index": 0, "text": "Hel"}]}\n\n'
EVENTS = "text/event-stream"


@pytest.fixture
def scripted() -> Iterator[Callable[..., str]]:
    """The address of a server that gives one of these answers to each connection, whatever it asks."""
    with contextlib.ExitStack() as stack:

        def start(*answers: bytes) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve() -> None:
                for answer in answers:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)
                        # What it has not read when it closes would make the end a reset.
                        connection.shutdown(socket.SHUT_WR)
                        while connection.recv(65536):
                            pass

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            stack.callback(thread.join, 20)
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

        yield start


@pytest.mark.parametrize(
    ("answers", "says", "written"),
    [
        ([http("<html>", "text/html")], "/v1/models answered 200 without JSON; is it Octavo?", ""),
        ([http("{}")], "/v1/models lists no model with a max_model_len; is it Octavo?", ""),
        ([http('{"data": [{"id": "m"}]}')], "lists no model with a max_model_len", ""),
        ([MODELS, http("{}")], "/v1/completions answered 200 without events; is it Octavo?", "\n"),
        ([MODELS, http(BEGUN, EVENTS)], "closed the connection before the answer was complete", "Hel\n"),
        ([MODELS, http(BEGUN, EVENTS, 1000)], "^the connection to http://.* broke: peer closed", "Hel\n"),
        ([MODELS, http(BEGUN + "data: [1\n\n", EVENTS)], "sent an event that is not a JSON object", "Hel\n"),
        ([MODELS, http('data: {"error": "?"}\n\n', EVENTS)], "an error without a message", "\n"),
        ([MODELS, http('data: {"error": {"message": "it broke"}}\n\n', EVENTS)], "^it broke$", "\n"),
    ],
)
def test_a_server_that_is_no_octavo_or_breaks_off_is_reported(
    scripted: Callable[..., str], answers: list[bytes], says: str, written: str
) -> None:
    result = CliRunner().invoke(app, ["generate", "--url", scripted(*answers), "hi"])
    assert isinstance(result.exception, RequestFailed), result.exception
    assert not isinstance(result.exception, KeyRefused)
    assert re.search(says, str(result.exception)), result.exception
    assert result.stdout == written


def test_comments_that_keep_a_connection_alive_are_no_text(scripted: Callable[..., str]) -> None:
    stream = f": keep-alive\n\n{BEGUN}: keep-alive\n\ndata: [DONE]\n\n"
    assert octavo("generate", "--url", scripted(MODELS, http(stream, EVENTS)), "hi") == "Hel\n"
