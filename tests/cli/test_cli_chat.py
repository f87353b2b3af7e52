"""A conversation in the terminal, over a fake model: one in this process, and one behind a server that really
listens."""

from __future__ import annotations

import asyncio
import io
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console
from tests.cli.serving import SharedServer, serving
from tests.doubles.fake_model import FakeModel
from tests.waiting import until, wait_until

from octavo.cli import answer_view
from octavo.cli.answerer import Answerer, EngineAnswerer
from octavo.cli.chat import Conversation, talk
from octavo.cli.remote_stream import RemoteServer
from octavo.cli.server_answerer import ServerAnswerer
from octavo.errors import QueueFull, RequestFailed, RequestTooLarge
from octavo.params import SamplerParams

PARAMS = SamplerParams()


@pytest.fixture(scope="module")
def server() -> Iterator[SharedServer]:
    model = FakeModel()
    with serving(model) as url:
        yield SharedServer(url, model)


@pytest.fixture
def model(server: SharedServer) -> FakeModel:
    return server.reset("Hello!")


@pytest.fixture(params=["here", "there"])
def answerer(model: FakeModel, server: SharedServer, request: pytest.FixtureRequest) -> Answerer:
    if request.param == "here":
        return EngineAnswerer(model, PARAMS)
    return ServerAnswerer(RemoteServer(server.url), PARAMS)


def reading(*lines: str) -> Callable[[], str | None]:
    left: list[str | None] = [*lines, None]
    return lambda: left.pop(0)


def converse(answerer: Answerer, *lines: str, system: str | None = None) -> tuple[str, Conversation]:
    """What the console shows beside answers, and the conversation."""
    conversation = Conversation(answerer, system)
    shown = io.StringIO()
    talk(conversation, reading(*lines), Console(file=shown, width=200))
    return shown.getvalue(), conversation


def said(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation.messages]


def test_answers_become_history(
    model: FakeModel, answerer: Answerer, capsys: pytest.CaptureFixture[str]
) -> None:
    _, conversation = converse(answerer, "hi", "", "again", system="be brief")
    assert said(conversation) == [
        ("system", "be brief"),
        ("user", "hi"), ("assistant", "Hello!"), ("user", "again"), ("assistant", "Hello!"),
    ]  # fmt: skip
    assert bytes(model.submitted[1].prompt).startswith(b"system:be brief\nuser:hi\nassistant:Hello!\n")
    assert capsys.readouterr().out == "Hello!\nHello!\n"


def test_clear_keeps_the_system_message_only(answerer: Answerer) -> None:
    _, conversation = converse(answerer, "hi", "/clear", system="be brief")
    assert said(conversation) == [("system", "be brief")]


def test_commands_answer_without_the_model(model: FakeModel, answerer: Answerer) -> None:
    shown, _ = converse(answerer, "/help", "/stats", "/nonsense", "/exit", "never read")
    assert "/clear" in shown
    assert "3 blocks held, 2 cached, 5 free of 10 (of 16 tokens)" in shown
    assert "/nonsense is not a command" in shown
    assert not model.submitted


def test_stats_show_the_last_answer(answerer: Answerer) -> None:
    shown, _ = converse(answerer, "hi", "/stats")
    assert "8 prompt tokens (4 from the cache)" in shown
    assert "then 6 tokens" in shown


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-c as at a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(
    model: FakeModel, answerer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.hold = asyncio.Event()  # never set: an answer stays at its first letter
    left = ["hi", "/stats", "more", None]
    conversation, shown = Conversation(answerer, None), io.StringIO()

    def press(text: str) -> None:
        if text == "H" and len(left) == 3:
            signal.raise_signal(signal.SIGINT)

    def read_line() -> str | None:
        if left[0] == "more":
            model.hold = None
        return left.pop(0)

    monkeypatch.setattr(answer_view, "write", press)
    talk(conversation, read_line, Console(file=shown, width=200))
    assert "(stopped)" in shown.getvalue()
    assert "then 1 tokens" in shown.getvalue()  # what the stopped one cost is known
    wait_until(lambda: [stream.cancelled for stream in model.submitted] == [True, False])
    assert said(conversation) == [
        ("user", "hi"),
        ("assistant", "H"),
        ("user", "more"),
        ("assistant", "Hello!"),
    ]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_before_the_first_letter_leaves_the_history(
    model: FakeModel, answerer: Answerer, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, is_over = threading.main_thread().ident, threading.Event()
    assert main is not None

    async def waits() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        await until(is_over.is_set)
        raise RequestFailed("it was not stopped")

    monkeypatch.setattr(model, "encode_chat", lambda *_, **__: waits())
    shown, conversation = converse(answerer, "hi")
    is_over.set()
    assert "(stopped)" in shown
    assert said(conversation) == []


def test_an_error_ends_the_answer_and_leaves_the_history(model: FakeModel, answerer: Answerer) -> None:
    model.refusal = QueueFull("too many requests are waiting")
    shown, conversation = converse(answerer, "hi")
    assert "too many requests" in shown
    assert said(conversation) == []
    model.refusal, model.failure = None, "its logits were NaN"
    shown, conversation = converse(answerer, "hi")
    assert "NaN" in shown
    assert said(conversation) == []


def test_a_conversation_beyond_the_context_gets_what_makes_room(model: FakeModel, answerer: Answerer) -> None:
    model.refusal = RequestTooLarge("the prompt has too many tokens")
    shown, _ = converse(answerer, "hi")
    assert shown == "the prompt has too many tokens; /clear starts a new conversation\n"


def test_thinking_is_shown_and_kept_as_the_model_writes_it(
    model: FakeModel, answerer: Answerer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.answers.thinks, model.answer = True, "<think>so</think>yes"
    _, conversation = converse(answerer, "hi")
    assert capsys.readouterr().out == "<think>so</think>yes\n"
    assert said(conversation)[-1] == ("assistant", "<think>so</think>yes")
