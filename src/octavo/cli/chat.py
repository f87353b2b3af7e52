"""`octavo chat`: a conversation in the terminal. Ctrl-c stops the answer and keeps the conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console

from octavo.cli.terminal import running_engine, write
from octavo.config import StartOptions
from octavo.engine.outputs import ChatMessage, ServedModel
from octavo.errors import ConfigError, OctavoError, RequestFailed, RequestTooLarge
from octavo.params import SamplerParams
from octavo.types import FinishReason, Usage

HELP = """/help   this list
/stats  what the last answer and the engine's memory cost
/clear  forget the conversation
/exit   leave (ctrl-d too)
ctrl-c  stop the answer, keep the conversation"""


def run(model: str | None, options: StartOptions, params: SamplerParams, system: str | None) -> None:
    """Talk until the person leaves. Raises ConfigError for a model that cannot chat."""
    with running_engine(model, options) as llm:
        if not llm.has_chat_template:
            raise ConfigError(f"{llm.name} has no chat template; use octavo generate")
        console = Console(highlight=False)
        console.print(f"[bold]{llm.name}[/], context {llm.context_length:,} tokens. /help lists commands.")
        talk(Conversation(llm, params, system), _read_line, console)


def talk(conversation: Conversation, read_line: Callable[[], str | None], console: Console) -> None:
    """Read lines and answer them until `read_line` returns None or the line is /exit."""
    with asyncio.Runner() as runner:
        while (line := read_line()) is not None:
            command = line.strip()
            if command in ("/exit", "/quit"):
                return
            if command == "/help":
                console.print(HELP, markup=False)
            elif command == "/clear":
                conversation.clear()
                console.print("forgotten", style="dim")
            elif command == "/stats":
                console.print(conversation.statistics(), markup=False)
            elif command.startswith("/"):
                console.print(f"{command} is no command; /help lists them", markup=False)
            elif command:
                _answer(runner, conversation, command, console)


@dataclass(slots=True)
class Conversation:
    """The messages so far and what the last answer cost."""

    model: ServedModel
    params: SamplerParams
    system: str | None
    messages: list[ChatMessage] = field(default_factory=list)
    usage: Usage | None = None
    first_token_s: float = 0.0
    total_s: float = 0.0

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = [] if self.system is None else [ChatMessage("system", self.system)]

    async def answer(self, text: str, show: Callable[[str], None]) -> None:
        """Answer one message; what was shown before a cancellation stays part of the conversation.

        Raises OctavoError; then the conversation is as before.
        """
        question = ChatMessage("user", text)
        prompt = await self.model.encode_chat([*self.messages, question])
        stream = await self.model.submit(prompt, self.params)
        parts: list[str] = []
        begun = time.perf_counter()
        try:
            async for delta in stream:
                if delta.finish is FinishReason.ERROR:
                    raise RequestFailed(delta.error)
                if not parts:
                    self.first_token_s = time.perf_counter() - begun
                parts.append(delta.text)
                show(delta.text)
                self.usage = delta.usage
        except RequestFailed:
            parts.clear()
            raise
        finally:
            stream.cancel()
            self.total_s = time.perf_counter() - begun
            if parts:
                self.messages += [question, ChatMessage("assistant", "".join(parts))]

    def statistics(self) -> str:
        """The last answer and the memory, in words."""
        stats = self.model.stats()
        memory = (
            f"memory: {stats.blocks_held:,} blocks held, {stats.blocks_cached:,} cached, "
            f"{stats.blocks_free:,} free of {stats.blocks_total:,} (of {stats.block_size} tokens)"
        )
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
    """One answer; an error or ctrl-c ends it and nothing else."""
    try:
        runner.run(conversation.answer(text, write))
        write("\n")
    except KeyboardInterrupt:
        console.print("\n(stopped)", style="dim")
    except RequestTooLarge as error:
        console.print(f"{error}; /clear makes room", style="red", markup=False)
    except OctavoError as error:
        console.print(str(error), style="red", markup=False)


def _read_line() -> str | None:
    """One line of input; ctrl-c gives an empty one, ctrl-d None. Readline adds editing and history."""
    import readline  # noqa: F401

    try:
        return input("> ")
    except KeyboardInterrupt:
        write("\n")
        return ""
    except EOFError:
        write("\n")
        return None
