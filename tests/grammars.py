"""Grammars for tests of what follows them: compiled at their first use, without a trial, and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from octavo.grammar import Grammar
from octavo.sampling.grammar_trials import Verdict
from octavo.sampling.grammars import CompiledGrammar, Grammars, Matcher, Words


class KeptGrammars(Grammars):
    """Where no client holds what a row follows."""

    def __init__(self, words: Callable[[], Words]) -> None:
        super().__init__(words)
        self._held: list[CompiledGrammar] = []

    def begin(self, grammar: Grammar, output: Sequence[int]) -> Matcher:
        if self.known(grammar) is None:
            self._held.append(self.compile(grammar))
        return super().begin(grammar, output)

    def _verdict(self, grammar: Grammar, stop: threading.Event | None) -> Verdict:
        return Verdict(1 << 16)
