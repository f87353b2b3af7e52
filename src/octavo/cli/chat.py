"""`octavo chat` and `octavo generate`: answers in the terminal. In a chat, ctrl-c stops the answer and keeps
the conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape

from octavo.cli.answer_source import AnswerSource, open_answerer
from octavo.cli.answer_view import show_answer
from octavo.cli.answerer import Answerer
from octavo.cli.terminal import is_screen, write
from octavo.errors import ConfigError, OctavoError, RequestTooLarge
from octavo.params import SamplerParams
from octavo.text.named_templates import GIVE_ONE
from octavo.types import ChatMessage, Usage

HELP = """/help   this list
/raw    the last answer without formatting
/stats  tokens and times of the last answer, and the KV memory
/clear  start a new conversation
/exit   exit (also ctrl-d)
ctrl-c  stop the answer, keep the conversation"""


def chat(source: AnswerSource, params: SamplerParams, system: str | None) -> None:
    """Chat until the user exits. Raises ConfigError for a model that has no chat template."""
    with open_answerer(source, params) as answerer:
        if not answerer.has_chat_template():
            raise ConfigError(f"{answerer.name} has no chat template; use octavo generate, {GIVE_ONE}")
        console, size = Console(highlight=False), f"context {answerer.context_length:,} tokens"
        console.print(f"[bold]{escape(answerer.name)}[/], {size}. /help lists commands.")
        talk(Conversation(answerer, system), _read_line, console)


def talk(conversation: Conversation, read_line: Callable[[], str | None], console: Console) -> None:
    """Read lines and answer them until `read_line` returns None or the line is /exit."""
    with asyncio.Runner() as runner:
        while (line := read_line()) is not None:
            command = line.strip()
            if command in ("/exit", "/quit"):
                return
            if command == "/help":
                console.print(HELP, markup=False)
            elif command == "/raw":
                write(conversation.last_answer() + "\n")
            elif command == "/clear":
                conversation.clear()
                console.print("new conversation", style="dim")
            elif command == "/stats":
                _show_statistics(runner, conversation, console)
            elif command.startswith("/"):
                console.print(f"{command} is not a command; /help lists the commands", markup=False)
            elif command:
                _answer(runner, conversation, command, console)


@dataclass(slots=True)
class Conversation:
    """The messages so far, and usage and times of the last answer."""

    answerer: Answerer
    system: str | None
    messages: list[ChatMessage] = field(default_factory=list)
    usage: Usage | None = None
    first_token_s: float = 0.0
    total_s: float = 0.0

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all messages except the system message."""
        self.messages = [] if self.system is None else [ChatMessage("system", self.system)]

    async def answer(self, text: str, show: Callable[[str], None]) -> None:
        """Answer one message. A cancelled answer stays in the conversation, as far as it was shown.

        Raises OctavoError, and then leaves the conversation unchanged.
        """
        question, started = ChatMessage("user", text), time.perf_counter()
        parts: list[str] = []
        try:
            async with aclosing(self.answerer.chat([*self.messages, question])) as pieces:
                async for piece in pieces:
                    if not parts:
                        self.first_token_s = time.perf_counter() - started
                    parts.append(piece.text)
                    show(piece.text)
                    self.usage = piece.usage or self.usage
        except OctavoError:
            parts.clear()
            raise
        finally:
            self.total_s = time.perf_counter() - started
            if parts:
                self.messages += [question, ChatMessage("assistant", "".join(parts))]

    def last_answer(self) -> str:
        """The last answer; "": none yet."""
        answers = [message.content for message in self.messages if message.role == "assistant"]
        return answers[-1] if answers else ""

    async def statistics(self) -> str:
        """Statistics of the last answer and the memory, for people. Raises OctavoError."""
        memory = f"memory: {await self.answerer.memory()}"
        if self.usage is None:
            return memory
        decode_s = max(self.total_s - self.first_token_s, 1e-9)
        return (
            f"last answer: {self.usage.num_prompt:,} prompt tokens "
            f"({self.usage.num_cached:,} from the cache), first token after {self.first_token_s:.2f} s, "
            f"then {self.usage.num_output:,} tokens at "
            f"{max(self.usage.num_output - 1, 0) / decode_s:.1f} per second\n{memory}"
        )


def _answer(runner: asyncio.Runner, conversation: Conversation, text: str, console: Console) -> None:
    """Answer one message; after an error or ctrl-c the chat continues."""
    with _errors_shown(console), show_answer(console) as show:
        runner.run(conversation.answer(text, show))


def _show_statistics(runner: asyncio.Runner, conversation: Conversation, console: Console) -> None:
    with _errors_shown(console):
        console.print(runner.run(conversation.statistics()), markup=False)


@contextmanager
def _errors_shown(console: Console) -> Iterator[None]:
    """Print errors instead of raising them, so that the chat continues."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("\n(stopped)" if not is_screen(console) else "(stopped)", style="dim")
    except RequestTooLarge as error:
        console.print(f"{error}; /clear starts a new conversation", style="red", markup=False)
    except OctavoError as error:
        console.print(str(error), style="red", markup=False)


def _read_line() -> str | None:
    """One line of input; ctrl-c returns an empty line, ctrl-d None. Readline adds editing and history."""
    import readline  # noqa: F401

    try:
        return input("> ")
    except KeyboardInterrupt:
        write("\n")
        return ""
    except EOFError:
        write("\n")
        return None


def generate(source: AnswerSource, params: SamplerParams, prompt: str) -> None:
    """Write the continuation of `prompt` and a line break. Ctrl-c ends the command."""
    with open_answerer(source, params) as answerer:
        try:
            asyncio.run(_stream_text(answerer, prompt))
        finally:
            write("\n")


async def _stream_text(answerer: Answerer, prompt: str) -> None:
    async with aclosing(answerer.complete(prompt)) as pieces:
        async for piece in pieces:
            write(piece.text)
