"""A conversation in the terminal, over a fake model."""

import asyncio
import io
import signal

import pytest
from rich.console import Console

from octavo.cli.chat import Conversation, talk
from octavo.errors import QueueFull
from octavo.params import SamplerParams
from octavo.server.testing import FakeModel


@pytest.fixture
def model():
    return FakeModel("Hello!")


def converse(model, *lines, system=None):
    """What the console shows beside answers, and the conversation."""
    left = [*lines, None]
    conversation = Conversation(model, SamplerParams(), system)
    shown = io.StringIO()
    talk(conversation, lambda: left.pop(0), Console(file=shown, width=200))
    return shown.getvalue(), conversation


def said(conversation):
    return [(message.role, message.content) for message in conversation.messages]


def test_answers_become_history(model, capsys):
    _, conversation = converse(model, "hi", "", "again", system="be brief")
    assert said(conversation) == [
        ("system", "be brief"),
        ("user", "hi"), ("assistant", "Hello!"), ("user", "again"), ("assistant", "Hello!"),
    ]  # fmt: skip
    assert bytes(model.submitted[1].prompt).startswith(b"system:be brief\nuser:hi\nassistant:Hello!\n")
    assert capsys.readouterr().out == "Hello!\nHello!\n"


def test_clear_keeps_the_system_message_only(model):
    _, conversation = converse(model, "hi", "/clear", system="be brief")
    assert said(conversation) == [("system", "be brief")]


def test_commands_answer_without_the_model(model):
    shown, _ = converse(model, "/help", "/stats", "/nonsense", "/exit", "never read")
    assert "/clear" in shown
    assert "3 blocks held, 2 cached, 5 free of 10" in shown
    assert "/nonsense is no command" in shown
    assert not model.submitted


def test_stats_tell_the_last_answer(model):
    shown, _ = converse(model, "hi", "/stats")
    assert "8 prompt tokens (4 from the cache)" in shown
    assert "then 6 tokens" in shown


@pytest.fixture
def ctrl_c():
    """Ctrl-c as at a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(model):
    class Interrupt:
        async def wait(self):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(3600)

    model.hold = Interrupt()
    left = ["hi", "more", None]
    conversation = Conversation(model, SamplerParams(), None)

    def read_line():
        if len(left) == 2:
            model.hold = None
        return left.pop(0)

    shown = io.StringIO()
    talk(conversation, read_line, Console(file=shown))
    assert "(stopped)" in shown.getvalue()
    assert [stream.cancelled for stream in model.submitted] == [True, False]
    assert said(conversation) == [
        ("user", "hi"),
        ("assistant", "H"),
        ("user", "more"),
        ("assistant", "Hello!"),
    ]


def test_an_error_ends_the_answer_and_leaves_the_history(model):
    model.refusal = QueueFull("too many requests are waiting")
    shown, conversation = converse(model, "hi")
    assert "too many requests" in shown
    assert said(conversation) == []
    model.refusal, model.failure = None, "its logits were NaN"
    shown, conversation = converse(model, "hi")
    assert "NaN" in shown
    assert said(conversation) == []
