"""The client's limits on tokens: a list of allowed ones, and sequences that must not appear in the output.

A sequence of one token is banned everywhere. The last token of a longer one is banned if the output ends with
the tokens before it; the prompt does not count (vLLM's rule for `bad_words`). Sequences are indexed by the
token before their last, so a step checks only the few that could be completed:

    after[9] = ((7, 9), 4), ((9,), 5)      the output ends with 7 9: neither 4 nor 5 may follow
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from octavo.kernels.contract import Floats, Ints
from octavo.params import SamplerParams
from octavo.sampling.top_ids import Ids

_Ending = tuple[tuple[int, ...], int]  # an end of the output, and the token that may not follow it


@dataclass(frozen=True, slots=True)
class Masks:
    """The forbidden tokens of a request, as arrays, made once for each row and not for each token."""

    allowed: Ids | None  # (A,) None: all
    never: Ids  # (N,) banned everywhere
    after: Mapping[int, tuple[_Ending, ...]]  # by the last token of the output

    def apply(self, row: Floats, output: Ints) -> None:
        """Mask tokens in `row` (V,) that may not follow `output`. O(V) with a list of allowed tokens, else
        O(banned tokens)."""
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
    """The masks of these parameters; None if they forbid nothing. O(listed tokens)."""
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
