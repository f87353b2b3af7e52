"""The parts of a model's answers other than plain text: the form of its calls, its thinking, and the grammar
of calls. Made once for a served model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from threading import Event
from typing import Protocol

from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, ThinkingState
from octavo.inspect.stats import EngineStats
from octavo.sampling.grammars import CompiledGrammar, Grammars
from octavo.text.infill import InfillTokens
from octavo.text.tokenizer import Tokenizer
from octavo.tools.definitions import ToolUse
from octavo.tools.formats import HERMES
from octavo.tools.grammars import calls_grammar

TAIL_TOKENS = 16  # of a prompt: enough to contain the marks that open or close the thinking

OnThread = Callable[[str, Callable[[Event], Grammar | None]], Awaitable[Grammar | None]]


class GrammarSource(Protocol):
    """`Grammars`, or a front end's substitute."""

    def known(self, grammar: Grammar) -> CompiledGrammar | None:
        """The compiled grammar, if it is ready here."""

    def check(self, grammar: Grammar, stop: Event | None = None) -> object:
        """Raise InvalidRequest for a grammar that cannot be enforced."""

    def compile(self, grammar: Grammar, stop: Event | None = None) -> CompiledGrammar | None:
        """None: it is held elsewhere."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token of the vocabulary."""

    def close(self) -> None:
        """Stop compiling."""


def with_grammars(stats: EngineStats, grammars: Grammars) -> EngineStats:
    """The statistics with the costs of compiling."""
    compiled = grammars.stats
    return replace(
        stats,
        grammars_compiled=compiled.count,
        grammar_seconds=compiled.seconds,
        grammar_refusals=dict(compiled.refusals),
        grammar_bytes=grammars.num_bytes,
    )


class Answers:
    """The answers of a real model. `on_thread` runs slow work, on threads that tenants share."""

    def __init__(self, tokenizer: Tokenizer, grammars: GrammarSource | None, on_thread: OnThread) -> None:
        template = tokenizer.chat_template
        self.form = HERMES if template is None else template.tool_format
        self.thinking_format = None if template is None else template.thinking_format
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._on_thread = on_thread

    @property
    def infill(self) -> InfillTokens | None:
        """The tokens for filling in the middle; None: the model has none."""
        return self._tokenizer.infill

    @property
    def thinks(self) -> bool:
        """Whether the model thinks before it answers."""
        return self.thinking_format is not None

    def thinking_state(self, prompt: Sequence[int]) -> ThinkingState:
        """The state of thinking at the start of an answer to this prompt."""
        if self.thinking_format is None:
            return ThinkingState.NONE
        tail = b"".join(map(self._tokenizer.token_bytes, prompt[-TAIL_TOKENS:]))
        return self.thinking_format.state_after(tail)

    def is_hidden(self, *, calls: bool) -> bool:
        """Whether marks of thinking, or of calls, are special tokens, which are not text by default."""
        marks = () if self.thinking_format is None else self.thinking_format.marks
        return any(
            self._special_id(mark) is not None for mark in (*marks, *(self.form.markers if calls else ()))
        )

    async def grammar(self, use: ToolUse, output: Grammar | None, tenant: str) -> Grammar | None:
        """The grammar of an answer that may call these tools, and whose content must match `output`. Raises
        InvalidRequest for a grammar that cannot be enforced."""
        grammars = self._grammars
        if grammars is None:
            raise InvalidRequest(
                "tools need the model's tokens as text, which are not known here", param="tools"
            )
        return await self._on_thread(
            tenant,
            lambda stop: calls_grammar(
                use,
                self.form,
                output,
                self._special_id,
                lambda grammar: grammars.check(grammar.of_tenant(tenant), stop),
            ),
        )

    def _special_id(self, text: str) -> int | None:
        tokens = self._tokenizer.encode(text, add_bos=False)
        return tokens[0] if len(tokens) == 1 and tokens[0] in self._tokenizer.special_ids else None
