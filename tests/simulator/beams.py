"""Beam searches in random lives: requests for them, the same search without paging, and what must hold.

`plain_search` is the search as a textbook has it: all hypotheses as lists of tokens, the whole vocabulary
sorted, places for the ended ones that are filled with a score below any other. It shares no code with
`scheduler.beams`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from octavo.params import BeamParams, SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.sim.oracle import likeliest
from octavo.types import FinishReason, Request, StepPlan, Update

_NOTHING = -1e9  # the score of a place where no hypothesis is

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A hypothesis of the plain search, `score` penalised by its length."""

    score: float
    tokens: Tokens
    has_ended: bool


@dataclass(slots=True)
class BeamBooks:
    """What the searches of one life should come to, and what they met."""

    vocab_size: int
    stop_ids: frozenset[int]
    searched: int = 0  # choices that equal the plain search
    told_in_part: int = 0  # choices with tokens when a deadline passed
    preempted: int = 0  # searches that were preempted and came to their end
    _plain: dict[int, list[list[Found]]] = field(default_factory=dict)

    def check(self, request: Request, update: Update) -> None:
        """The final update of one choice equals the plain search; a deadline shows it as far as it came."""
        assert update.finish is not None, "a beam was told before the search was over"
        tokens = tuple(sampled.token for sampled in update.tokens)
        if update.finish in (FinishReason.CANCELLED, FinishReason.DEAD_END, FinishReason.ERROR):
            assert not tokens
            return
        if request.request_id not in self._plain:
            self._plain[request.request_id] = plain_search(request, self.stop_ids, self.vocab_size)
        stages = self._plain[request.request_id]
        for i, sampled in enumerate(update.tokens):
            known = likeliest((*request.prompt, *tokens[:i]), request.seed, self.vocab_size, self.vocab_size)
            assert (sampled.token, sampled.logprob) in known, "a token has another's logprob"
        if update.finish is FinishReason.TIMEOUT:
            found = [stage[update.choice].tokens if update.choice < len(stage) else () for stage in stages]
            assert not tokens or tokens in found, "no stage of the search looked like this"
            self.told_in_part += bool(tokens)
            return
        assert tokens == stages[-1][update.choice].tokens, f"choice {update.choice} is not the search's"
        self.searched += 1
        self.preempted += update.usage.preemptions > 0


def with_beams(r: random.Random, request: Request, max_rows: int, rate: float = 0.15) -> Request:
    """The same request, now and then with a beam search instead of sampling."""
    if r.random() >= rate:
        return request
    width = r.randint(1, min(max_rows, r.choice([2, 4, 16])))
    beams = BeamParams(width, r.choice([1.0, 0.0, -1.0, 2.0]), r.choice([False, True, "never"]))
    params = SamplerParams(
        temperature=0.0,
        ignore_eos=request.params.ignore_eos,
        stop_token_ids=(1, 2, 3) if r.random() < 0.3 else (),
        beams=beams,
    )
    return replace(request, params=params, n=r.randint(1, width))


def check_apart(plan: StepPlan, uncommitted: Iterable[StepPlan], scheduler: Scheduler) -> None:
    """No beam is planned while a sample of it is in flight: nobody knows yet which token follows."""
    beams = {s.seq_id for s in scheduler.live.running if s.group is not None}
    sampling = {c.seq_id for earlier in uncommitted for c in earlier.chunks if c.num_samples}
    planned = {chunk.seq_id for chunk in plan.chunks}
    assert not (beams & planned & sampling), "a beam was planned on a token that nobody has chosen"


def plain_search(request: Request, stop_ids: frozenset[int], vocab_size: int) -> list[list[Found]]:
    """The best hypotheses after each step, best first; the last stage is the answer."""
    beams = request.params.beams
    assert beams is not None
    ends = request.params.end_ids(stop_ids)
    num_best = max(2, 1 + len(ends)) * beams.width
    running: list[tuple[float, Tokens]] = [(0.0, ())]
    ended = [Found(_NOTHING, (), False)] * beams.width
    stages: list[list[Found]] = []
    for length in range(1, request.max_tokens + 1):
        options = [
            (-(score + logprob), place, token)
            for place, (score, tokens) in enumerate(running)
            for token, logprob in likeliest((*request.prompt, *tokens), request.seed, vocab_size, vocab_size)
        ]
        best = [(-minus, (*running[place][1], token)) for minus, place, token in sorted(options)[:num_best]]
        is_end = [length == request.max_tokens or tokens[-1] in ends for _, tokens in best]
        running = [option for option, end in zip(best, is_end, strict=True) if not end][: beams.width]
        penalty = float(length) ** beams.length_penalty
        new = [
            Found(s / penalty, t, True)
            for (s, t), end in list(zip(best, is_end, strict=True))[: beams.width]
            if end
        ]
        ended = sorted(ended + new, key=lambda found: -found.score)[: beams.width]
        going = [Found(score / penalty, tokens, False) for score, tokens in running]
        full = all(found.has_ended for found in ended)
        reach = request.max_tokens if beams.early_stopping == "never" and beams.length_penalty > 0 else length
        hopeless = not running or running[0][0] / float(reach) ** beams.length_penalty <= ended[-1].score
        over = not running or (full and (beams.early_stopping is True or hopeless))
        shown = [found for found in ended if found.has_ended] + ([] if over else going)
        stages.append(shown if over else sorted(shown, key=lambda found: -found.score))
        if over:
            break
    return stages
