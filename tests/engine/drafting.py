"""Drafters for tests: they draft the truth, the truth with one error, garbage, or nothing, and a speculator
that takes as many of their guesses as it likes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.tiny import VOCAB

from octavo.speculation.drafter import NO_DRAFT, Draft
from octavo.speculation.speculator import DrafterState, Speculation, Speculator

KINDS = ("truth", "one error", "garbage", "mixed")
Tokens = tuple[int, ...]


class Oracle:
    """What requests will say: whole sequences, prompt and output, as they came to be without drafts."""

    def __init__(self) -> None:
        self._known: list[Tokens] = []

    def add(self, sequence: Sequence[int]) -> None:
        """One more sequence."""
        self._known.append(tuple(sequence))

    def after(self, tokens: Sequence[int], limit: int) -> Tokens:
        """What came behind these tokens, if they are known."""
        count, begun = len(tokens), tuple(tokens)
        known = next((one for one in self._known if one[:count] == begun and len(one) > count), ())
        return known[count : count + limit]


class AskingDrafter:
    """A `Drafter` that asks a function: all tokens so far, and how many guesses at most."""

    def __init__(self, name: str, ask: Callable[[list[int], int], Draft]) -> None:
        self.name, self._ask = name, ask
        self._tokens: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that it has seen."""
        return len(self._tokens)

    @property
    def num_bytes(self) -> int:
        """Nearly."""
        return 8 * len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """These came behind those that it has seen."""
        self._tokens += tokens

    def copy(self) -> AskingDrafter:
        """For a fork."""
        twin = AskingDrafter(self.name, self._ask)
        twin._tokens = list(self._tokens)
        return twin

    def draft(self, limit: int) -> Draft:
        """What the function says."""
        return self._ask(self._tokens, limit)


def guesses_of(oracle: Oracle, kind: str, r: random.Random) -> Callable[[list[int], int], Draft]:
    """What an oracle says, spoiled as its kind wants it."""
    assert kind in KINDS

    def ask(tokens: list[int], limit: int) -> Draft:
        now = r.choice(["truth", "truth", "one error", "garbage"]) if kind == "mixed" else kind
        if now == "garbage":
            return Draft(tuple(r.randrange(VOCAB) for _ in range(limit)), 1)
        guesses = list(oracle.after(tokens, limit))
        if not guesses:
            return NO_DRAFT
        if now == "one error":
            place = r.randrange(len(guesses))
            guesses[place] = (guesses[place] + 1 + r.randrange(VOCAB - 1)) % VOCAB
        return Draft(tuple(guesses), 9)

    return ask


class EagerSpeculator(Speculator):
    """Takes guesses whatever they cost: all, or any number of them."""

    def __init__(self, oracle: Oracle, kind: str, seed: int, *, all_of_them: bool = False) -> None:
        r = random.Random(seed)
        ask = guesses_of(oracle, kind, r)
        super().__init__(Speculation.AUTO, lambda: AskingDrafter("told", ask))
        self._random, self._all = r, all_of_them

    def counts(
        self,
        offers: Sequence[tuple[DrafterState, int]],
        num_positions: int,
        budget: int,
        *,
        is_measured: bool = True,
    ) -> list[int]:
        """Some of each."""
        found = []
        for drafting, limit in offers:
            most = max(0, min(limit, len(drafting.draft.tokens), budget))
            found.append(most if self._all else self._random.randint(0, most))
            budget -= found[-1]
        return found
