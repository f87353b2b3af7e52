"""Chats with the tiny model: a tokenizer with a template, and sessions over a disk that may fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.engine.served import FACTS, Told, read
from tests.tiny import EOS, tiny_engine
from tests.wanted import request_for

from octavo.conversations.conversations import attach
from octavo.conversations.sessions import SessionSupport
from octavo.conversations.store import ConversationStore
from octavo.conversations.turns import Turn
from octavo.engine.core import Engine
from octavo.executor.disk import DiskStore
from octavo.files import Files
from octavo.kernels.contract import KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block
from octavo.params import SamplerParams
from octavo.serving.client import EngineClient
from octavo.text.chat import ChatTemplate
from octavo.types import ChatMessage

BLOCK_BYTES = bytes_per_block(KvShape(2, 2, 16, 16, "f32"))
_FIRST = 2
_TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


class PairTokenizer:
    """Letters and a few signs are tokens from 2 on, and so are a few pairs of letters: what a random model
    generates letter by letter is tokenised otherwise when it comes back as text."""

    special_ids = control_ids = frozenset([EOS])
    stop_ids = frozenset([EOS])
    chat_template = ChatTemplate(_TEMPLATE)
    pieces = (
        *[chr(c) for c in range(ord("a"), ord("z") + 1)],
        *[chr(c) for c in range(ord("A"), ord("Z") + 1)],
        *"<>; ?",
        *[a + b for a in "abcde" for b in "abcdef"],
        *["f" + b for b in "abcdefgh"],
    )

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        tokens, place = [], 0
        while place < len(text):
            length = 2 if text[place : place + 2] in self.pieces else 1
            tokens.append(_FIRST + self.pieces.index(text[place : place + length]))
            place += length
        return tokens

    def close(self) -> None:
        """Its template is for all."""

    def token_bytes(self, token: int) -> bytes:
        index = token - _FIRST
        return self.pieces[index].encode() if 0 <= index < len(self.pieces) else b"?"


@dataclass(slots=True)
class Chat:
    """A server in this process, with sessions. Close it."""

    llm: EngineClient
    engine: Engine
    store: DiskStore | None
    messages: list[ChatMessage]
    session_id: str = "new"

    async def say(self, text: str, max_tokens: int = 30, **params: object) -> tuple[Turn, Told]:
        """The user says it; the answer is part of the chat from then on."""
        self.messages.append(ChatMessage("user", text))
        given = {"temperature": 1.0, "seed": 7, "logprobs": 2, "max_tokens": max_tokens, **params}
        turn = await self.llm.sessions.turn(
            request_for((), SamplerParams(**given), session=self.session_id), self.messages
        )  # type: ignore[arg-type]
        [told] = await read(turn.stream)  # type: ignore[arg-type]
        self.messages.append(ChatMessage("assistant", told.text))
        self.session_id = turn.session_id
        return turn, told

    def close(self) -> None:
        self.llm.close()


def open_chat(
    folder: Path | None = None, *, files: Files | None = None, num_slots: int = 200, **options: object
) -> Chat:
    """A server over the tiny model; with a folder, what it remembers is there the next time."""
    store = sync = None
    sessions = ConversationStore()
    if folder is not None:
        files = files or Files()
        size = num_slots * (BLOCK_BYTES + 4096)
        store = DiskStore.open(folder, size, BLOCK_BYTES, b"f" * 32, files)
        sessions = ConversationStore.open(store.namespace / "sessions.sqlite", files)
    engine = tiny_engine(NativeOps(), store=store, **options)  # type: ignore[arg-type]
    if store is not None:
        sync = engine.executor._runner._transfers.sync  # type: ignore[attr-defined]
    attach(engine, sessions)
    facts = replace(FACTS, context_length=512)
    support = SessionSupport(sessions, 60.0, sync)
    llm = EngineClient.over(engine, PairTokenizer(), facts, 100, support)  # type: ignore[arg-type]
    return Chat(llm, engine, store, [])


def plain(tokens: Sequence[int], told: Told) -> None:
    """Assert that the same token ids, sent as a plain prompt to an engine of its own, come to the same."""
    from tests.engine.served import alone

    [wanted] = alone(tokens, len(told.answer.tokens), temperature=1.0, seed=7, logprobs=2)
    assert told.answer.tokens == wanted.tokens
    assert told.answer.bits == wanted.bits
