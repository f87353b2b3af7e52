"""Beam search as a pure value: which hypotheses continue, which have ended, and when it is over. It knows no
blocks and no rows; `beam_rows` executes its decisions.

    beams    best first, at most `width`; each has a path (its output) and, in a row or waiting, a sequence
    ended    hypotheses that have ended, best first, at most `width`, by score

                         +-- "the" <-- "cat"      beam 0      a path is a chain of steps, each with its
    prompt <-- "Once" <--+                                    predecessor: beams share common steps
                         +-- "a" <-- "dog"        beam 1

Every beam in a row delivers its candidates (token, logprob). After the last delivery, `advance` ranks all of
them: of the first `width`, those that end are hypotheses; of the others the best `width` continue. Ties rank
by beam, then by lowest token id, so the answer does not depend on the order of delivery. Scores, penalties
and the three stop rules are those of transformers 5 (`GenerationMixin._beam_search`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from octavo.params import BeamParams
from octavo.types import Request, SampledToken
from octavo.units import blocks_for

SequenceT = TypeVar("SequenceT")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PathStep:
    """The newest token of a path. Compared by identity: equal tokens in two paths are two steps."""

    token: int
    logprob: float
    length: int  # of the path, this token included
    before: PathStep | None


@dataclass(slots=True, eq=False)
class Beam(Generic[SequenceT]):
    """A hypothesis that continues. Without a sequence it waits until its leader has computed their shared
    tokens."""

    score: float  # sum of the path's logprobs
    path: PathStep | None  # None: the prompt only
    sequence: SequenceT | None = None
    candidates: tuple[tuple[int, float], ...] | None = None  # delivered for the next token

    @property
    def length(self) -> int:
        """The number of output tokens."""
        return 0 if self.path is None else self.path.length


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """An ended output, or an unfinished one at the end of the search; `score` is penalised by length."""

    score: float
    path: PathStep | None
    stop_token: int | None = None  # the token that ended it

    @property
    def tokens(self) -> tuple[SampledToken, ...]:
        """The whole output."""
        return tuple(SampledToken(step.token, step.logprob) for step in steps_of(self.path))


@dataclass(frozen=True, slots=True, eq=False)
class Child(Generic[SequenceT]):
    """A beam's continuation: its parent, and the path with one more token."""

    parent: Beam[SequenceT]
    score: float
    path: PathStep


@dataclass(slots=True, eq=False)
class BeamGroup(Generic[SequenceT]):
    """The beams of one request: admitted, planned, preempted and ended as one."""

    request: Request
    params: BeamParams
    end_ids: frozenset[int]
    beams: list[Beam[SequenceT]] = field(default_factory=lambda: [Beam(0.0, None)])
    ended: list[Hypothesis] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)  # choices that the client cancelled
    preemptions: int = 0
    blocks_peak: int = 0  # most distinct blocks that its beams held at once
    block_seconds: float = 0.0  # of sequences that have left the group

    @property
    def leader(self) -> SequenceT:
        """The best beam's sequence, which represents the group in the queue and is readmitted first."""
        sequence = self.beams[0].sequence
        assert sequence is not None, "a group without a leader"
        return sequence

    def sequences(self) -> list[SequenceT]:
        """The sequences of its beams, best first."""
        return [beam.sequence for beam in self.beams if beam.sequence is not None]

    @property
    def choices(self) -> list[int]:
        """Ranks of the choices that still await their final update, best first."""
        return [choice for choice in range(self.request.n) if choice not in self.cancelled]

    def beam_of(self, sequence: SequenceT) -> Beam[SequenceT]:
        """The beam of this sequence."""
        return next(beam for beam in self.beams if beam.sequence is sequence)

    @property
    def has_delivered(self) -> bool:
        """True when every beam's candidates have arrived."""
        return all(beam.candidates is not None for beam in self.beams)

    def tail_blocks(self, block_size: int) -> int:
        """Blocks that beams without a sequence will need beyond the leader's: all but the full ones that they
        share with it. O(output tokens of each)."""
        num_prompt, total = len(self.request.prompt), 0
        for beam in self.beams[1:]:
            if beam.sequence is None:
                shared = num_prompt + shared_length(self.beams[0].path, beam.path)
                total += blocks_for(num_prompt + beam.length, block_size) - shared // block_size
        return total

    def advance(self) -> list[Child[SequenceT]]:
        """Advance by one token from all delivered candidates; best first. None: the search is over, and
        `ended` is the result. Mutates only `ended`."""
        params, width = self.params, self.params.width
        length = self.beams[0].length + 1
        at_end = length == self.request.max_tokens
        ranked = sorted(
            (
                (beam.score + logprob, -index, -token, logprob)
                for index, beam in enumerate(self.beams)
                for token, logprob in beam.candidates or ()
            ),
            reverse=True,
        )
        children: list[Child[SequenceT]] = []
        for place, (score, minus_index, minus_token, logprob) in enumerate(
            ranked[: params.num_candidates(len(self.end_ids))]
        ):
            parent, token = self.beams[-minus_index], -minus_token
            path = PathStep(token, logprob, length, parent.path)
            if at_end or token in self.end_ids:
                if place < width:
                    stop_token = token if token in self.end_ids else None
                    self.ended.append(Hypothesis(penalised(score, length, params), path, stop_token))
            elif len(children) < width:
                children.append(Child(parent, score, path))
        self.ended.sort(key=lambda hypothesis: -hypothesis.score)  # stable: among equals the older is first
        del self.ended[width:]
        return [] if self._is_over(children) else children

    def _is_over(self, children: Many[Child[SequenceT]]) -> bool:
        """Whether nothing can continue, or is expected to beat the ended hypotheses."""
        if not children:
            return True
        if len(self.ended) < self.params.width:
            return False
        if self.params.early_stopping is True:
            return True
        could_grow = self.params.early_stopping == "never" and self.params.length_penalty > 0
        length = self.request.max_tokens if could_grow else children[0].path.length
        return penalised(children[0].score, length, self.params) <= self.ended[-1].score

    def best(self) -> list[Hypothesis]:
        """Ended hypotheses and running beams by penalised score: for a search that must stop."""
        running = [
            Hypothesis(penalised(beam.score, beam.length, self.params), beam.path)
            for beam in self.beams
            if beam.length
        ]
        return sorted(self.ended + running, key=lambda hypothesis: -hypothesis.score)


def penalised(score: float, length: int, params: BeamParams) -> float:
    """The score of a hypothesis of `length` output tokens. O(1)."""
    return score / math.pow(length, params.length_penalty)


def steps_of(path: PathStep | None) -> list[PathStep]:
    """The steps of a path, first token first. O(length)."""
    steps = []
    while path is not None:
        steps.append(path)
        path = path.before
    steps.reverse()
    return steps


def shared_length(one: PathStep | None, other: PathStep | None) -> int:
    """Output tokens that two paths of equal length have in common. O(tokens that differ)."""
    while one is not other:
        assert one is not None
        assert other is not None
        one, other = one.before, other.before
    return 0 if one is None else one.length
