"""Which rows of a step are drawn from on the device, how, and what becomes of their tokens.

    greedy, no logprobs     the likeliest token alone; no logits are written
    the others              logits, which penalties and bias adjust, then `sampler.draw`

A chunk with guesses is drawn from at each of its positions at once: noise depends on the position alone, so a
token is what would have been drawn with the same tokens before it; the walk ends at the first wrong guess.
Tokens behind it stand in the row until the next step writes over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.arithmetic import Arithmetic
from octavo.device.penalties import adjust
from octavo.device.rows import DeviceRows
from octavo.device.sampler import draw, greedy_tokens, has_filters, is_drawn_on_device, logprobs
from octavo.executor.rows import Rows
from octavo.executor.walks import Taken
from octavo.params import SamplerParams
from octavo.sampling.penalties import adjusts
from octavo.sampling.sampler import NO_NUMBERS, SampleFailure
from octavo.types import Chunk, SampledToken, StepPlan


@dataclass(frozen=True, slots=True)
class _Draw:
    """One row, and the hidden rows `first`, first + 1, ... that its tokens come from; the first token will
    stand at `position`."""

    seq_id: int
    row: int
    first: int
    position: int
    drafts: tuple[int, ...]
    params: SamplerParams

    @property
    def is_plain(self) -> bool:
        """It needs its likeliest token alone."""
        return self.params.greedy and self.params.logprobs is None and not self.is_adjusted

    @property
    def is_adjusted(self) -> bool:
        """Penalties or bias change its logits."""
        return adjusts(self.params, 0)

    @property
    def count(self) -> int:
        """Tokens drawn."""
        return 1 + len(self.drafts)


@dataclass(frozen=True, slots=True)
class _DrawnPart:
    """Draws of one kind, on their way to the host."""

    draws: Sequence[_Draw]
    tokens: Tensor  # (S,) int64, on the host when the event has come
    logprobs: tuple[Tensor, Tensor, Tensor] | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn in a step."""

    parts: Sequence[_DrawnPart]
    event: torch.cuda.Event | None
    stop_ids: frozenset[int]

    def collect(self, taken: Taken) -> None:
        """Wait, and put every draw's tokens into `taken`."""
        if self.event is not None:
            self.event.synchronize()
        for part in self.parts:
            sampled = _sampled(part)
            at = 0
            for one in part.draws:
                self._take(one, sampled[at : at + one.count], taken)
                at += one.count

    def _take(self, one: _Draw, sampled: Sequence[SampledToken], taken: Taken) -> None:
        """The walk along guesses: up to the first that is wrong, or to a token that ends the output."""
        kept: list[SampledToken] = []
        for place, token in enumerate(sampled):
            if token.token < 0:  # behind a guess that is told when it is computed as the newest
                break
            kept.append(token)
            is_guessed = place < len(one.drafts) and one.drafts[place] == token.token
            if not is_guessed or token.token in one.params.end_ids(self.stop_ids):
                break
        if kept:
            taken.samples[one.seq_id] = tuple(kept)
        else:
            taken.failed[one.seq_id] = SampleFailure(NO_NUMBERS, True)


class Drawing:
    """Draws for the rows that need nothing of the host."""

    def __init__(
        self, rows: Rows, on_device: DeviceRows, arithmetic: Arithmetic, stop_ids: frozenset[int]
    ) -> None:
        self._rows, self._on_device, self._arithmetic = rows, on_device, arithmetic
        self._stop_ids = stop_ids

    def begin(self, plan: StepPlan, hidden: Tensor) -> Drawn:
        """Start drawing; the tokens stand in the rows for the next step, and are on their way to the host."""
        draws = self._draws(plan)
        plain = [one for one in draws if one.is_plain]
        others = [one for one in draws if not one.is_plain]
        parts = [self._begin(kind, hidden) for kind in (plain, others) if kind]
        event = None
        if parts and hidden.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        return Drawn(parts, event, self._stop_ids)

    def left_to_host(self, plan: StepPlan) -> frozenset[int]:
        """Rows that the host samples."""
        sampled = [chunk.row for chunk in plan.chunks if chunk.num_samples]
        sampled += [fork.child_row for fork in plan.forks]
        return frozenset(row for row in sampled if not self._is_own(row))

    def write_back(self, plan: StepPlan, taken: Taken, others: frozenset[int]) -> None:
        """What the host sampled stands in the device's rows, too."""
        stops = {chunk.row: chunk.stop - len(chunk.drafts) for chunk in plan.chunks if chunk.num_samples}
        stops |= {fork.child_row: stops[fork.parent_row] for fork in plan.forks}
        rows: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        for row in others:
            entry = self._rows[row]
            if entry.params.beams is None and entry.seq_id in taken.samples:
                sampled = taken.samples[entry.seq_id]
                rows += [row] * len(sampled)
                positions += range(stops[row], stops[row] + len(sampled))
                tokens += [token.token for token in sampled]
        if rows:
            self._on_device.append(*_to_device([rows, positions, tokens], self._on_device.state.device))

    def _draws(self, plan: StepPlan) -> list[_Draw]:
        draws, end = [], 0
        first_of: dict[int, tuple[int, Chunk]] = {}
        for chunk in plan.chunks:
            end += chunk.stop - chunk.logits_from
            if chunk.num_samples:
                first_of[chunk.row] = end - chunk.num_samples, chunk
                if self._is_own(chunk.row):
                    draws.append(self._draw(chunk.row, end - chunk.num_samples, chunk, chunk.drafts))
        for fork in plan.forks:
            first, chunk = first_of[fork.parent_row]
            if self._is_own(fork.child_row):
                draws.append(self._draw(fork.child_row, first, chunk, ()))
        return draws

    def _draw(self, row: int, first: int, chunk: Chunk, drafts: tuple[int, ...]) -> _Draw:
        entry = self._rows[row]
        return _Draw(entry.seq_id, row, first, chunk.stop - len(chunk.drafts), drafts, entry.params)

    def _is_own(self, row: int) -> bool:
        entry = self._rows[row]
        return is_drawn_on_device(entry.params, entry.guide is not None)

    def _begin(self, draws: Sequence[_Draw], hidden: Tensor) -> _DrawnPart:
        places = [one.first + i for one in draws for i in range(one.count)]
        rows = [one.row for one in draws for _ in range(one.count)]
        positions = [one.position + i for one in draws for i in range(one.count)]
        place, row, position = _to_device([places, rows, positions], hidden.device)
        chosen = hidden[place]
        tops = [one.params.logprobs for one in draws if one.params.logprobs is not None]
        told = None
        if draws[0].is_plain:
            tokens = self._arithmetic.likeliest(chosen)
        else:
            logits = self._arithmetic.logits(chosen)
            adjusted = logits
            if any(one.is_adjusted for one in draws):
                adjusted = logits.clone() if tops else logits  # logprobs are those of the raw ones
                num_biases = max(len(one.params.logit_bias) for one in draws)
                history = self._on_device.tokens[:, : max(positions)][row]
                adjust(adjusted, self._on_device.adjusting(row, num_biases), history, position)
            if all(one.params.greedy for one in draws):
                tokens = greedy_tokens(adjusted)
            else:
                is_filtered = any(has_filters(one.params) for one in draws)
                asked = self._on_device.draw_params(row)
                tokens = draw(adjusted, asked, position, is_filtered=is_filtered)
            if tops:
                told = logprobs(logits, tokens, max(tops))
        self._on_device.append(row, position, tokens)
        if told is not None:
            own, ids, values = map(_to_host, told)
            told = own, ids, values
        return _DrawnPart(draws, _to_host(tokens), told)


def _to_device(columns: list[list[int]], device: torch.device) -> Tensor:
    """int64, a row for each column; the copy does not wait."""
    host = torch.tensor(columns, dtype=torch.int64, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


def _to_host(x: Tensor) -> Tensor:
    """A copy that is whole when an event behind it has come."""
    if x.device.type == "cpu":
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    return host


def _sampled(part: _DrawnPart) -> list[SampledToken]:
    """The part's tokens, each with the logprobs that its request asked for."""
    tokens: list[int] = part.tokens.tolist()
    if part.logprobs is None:
        return [SampledToken(token) for token in tokens]
    own, ids, values = (x.tolist() for x in part.logprobs)
    tops = [one.params.logprobs for one in part.draws for _ in range(one.count)]
    return [
        SampledToken(token)
        if top is None
        else SampledToken(token, own[i], tuple(zip(ids[i][:top], values[i][:top], strict=True)))
        for i, (token, top) in enumerate(zip(tokens, tops, strict=True))
    ]
