"""How calls and thinking stand in the answers of a served model without an engine."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.grammar import Grammar, ThinkingState
from octavo.text.infill import InfillTokens
from octavo.tools.definitions import ToolUse
from octavo.tools.formats import HERMES
from octavo.tools.grammars import calls_grammar
from octavo.tools.thinking import THINK, ThinkingFormat


class FakeAnswers:
    """Calls in Hermes' form; it thinks where it is told so, and the prompt tells where."""

    def __init__(self) -> None:
        self.form = HERMES
        self.thinks = False
        self.infill: InfillTokens | None = None

    def thinking_state(self, prompt: Sequence[int]) -> ThinkingState:
        """As the end of the prompt tells."""
        return THINK.state_after(bytes(token for token in prompt if token < 256))

    @property
    def thinking_format(self) -> ThinkingFormat | None:
        """As most models mark it."""
        return THINK if self.thinks else None

    def is_hidden(self, *, calls: bool) -> bool:
        """No token is special."""
        return False

    async def grammar(self, use: ToolUse, output: Grammar | None, tenant: str) -> Grammar | None:
        """As a real one's, though nothing is compiled."""
        return calls_grammar(use, self.form, output, lambda text: None, lambda grammar: None)
