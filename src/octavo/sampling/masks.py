"""Which tokens may come next at all, as the client said it: a list of those that are allowed, and sequences
that must not appear in the output.

A sequence of one token is banned everywhere. Of a longer one the last token is banned where the output ends
with the tokens before it; the prompt does not count (vLLM's rule for `bad_words`). Sequences are found by
the token that stands before their last, so a step looks at the few that could be completed, not at all:

    after[9] = ((7, 9), 4), ((9,), 5)      the output ends with 7 9: neither 4 nor 5 may follow
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.kernels.contract import Floats, Ints
from octavo.params import SamplerParams
from octavo.sampling.ranking import Ids

_Ending = tuple[tuple[int, ...], int]  # what the output must end with, and what may then not follow


@dataclass(frozen=True, slots=True)
class Masks:
    """What a request forbids, in arrays, made once for each row and not for each token."""

    allowed: Ids | None  # (A,) None: all
    never: Ids  # (N,) banned in every place
    after: Mapping[int, tuple[_Ending, ...]]  # by the last token of the output

    def apply(self, row: Floats, output: Ints) -> None:
        """Make impossible in `row` (V,) what may not follow `output`. O(V) with a list of allowed tokens,
        else O(what is banned)."""
        if self.allowed is not None:
            kept = row[self.allowed]
            row.fill(-np.inf)
            row[self.allowed] = kept
        row[self.never] = -np.inf
        endings = self.after.get(int(output[-1]), ()) if output.shape[0] else ()
        for before, banned in endings:
            if tuple(output[-len(before) :].tolist()) == before:
                row[banned] = -np.inf


def masks_of(params: SamplerParams) -> Masks | None:
    """None where nothing is forbidden. O(what is listed)."""
    if params.allowed_token_ids is None and not params.banned_sequences:
        return None
    after: dict[int, tuple[_Ending, ...]] = {}
    for *before, banned in params.banned_sequences:
        if before:
            after[before[-1]] = (*after.get(before[-1], ()), (tuple(before), banned))
    return Masks(
        None if params.allowed_token_ids is None else _ids(params.allowed_token_ids),
        _ids([sequence[0] for sequence in params.banned_sequences if len(sequence) == 1]),
        after,
    )


def _ids(tokens: tuple[int, ...] | list[int]) -> Ids:
    return np.unique(np.array(tokens, np.int64))
