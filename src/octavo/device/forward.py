"""A `Forward` over a device with its rows, pool and tokens; the host waits only for data that it reads.

    prepare    the plan's writes and the step's arrays --(one copy)--> one kernel writes them to their places
    run        hidden rows, by the `Arithmetic`
    draw       tokens to the rows, and asynchronously to the host

The next plan may start before the host has the step's tokens: kernels read them from the rows. The host's own
sampler samples rows with masks, `min_tokens`, beams or grammars, and waits for their logits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from octavo.device.arithmetic import Arithmetic
from octavo.device.block_copies import DeviceBlocks
from octavo.device.devices import current
from octavo.device.rows import DeviceRows, to_device
from octavo.device.sampler import is_drawn_on_device
from octavo.device.step_sampler import start_draws
from octavo.errors import ConfigError, DeviceLost, first_line
from octavo.executor.batch import shape_of
from octavo.executor.draws import DeviceDraws, Draw, SamplingResult
from octavo.executor.forward import ColdReach, Forward, Trouble
from octavo.executor.rows import Rows
from octavo.kernels.contract import Floats, Ints, SlotMemory
from octavo.types import Fork, StepPlan, StepWay

log = logging.getLogger("octavo.device")


class DeviceForward(Forward):
    """A model's arithmetic over rows and a pool on a device."""

    def __init__(self, arithmetic: Arithmetic, rows: DeviceRows, stop_ids: frozenset[int]) -> None:
        """`rows` are the arithmetic's."""
        self.arithmetic, self.pool = arithmetic, arithmetic.pool
        self.blocks = DeviceBlocks(self.pool)
        self._device = self.pool.data.device
        self._rows, self._stop_ids = rows, stop_ids
        self._is_warm = False  # all sizes are captured
        self._nothing = torch.empty(0, device=self._device)
        self._hidden = self._nothing  # (R, E) of the last step

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context for launches on the device, without gradients."""
        with current(self._device), torch.inference_mode():
            yield

    def warm(self, step_tokens: int, progress: Callable[[str], None]) -> None:
        """Compile and capture before the first request. Raises ConfigError where the device cannot."""
        try:
            with self.active():
                self.arithmetic.warm(step_tokens, progress)
        except Exception as error:
            if (trouble := self.describe_trouble(error)) is None:
                raise
            raise ConfigError(
                f"steps of up to {step_tokens:,} tokens (step_tokens) cannot run with these weights and KV "
                f"memory: {trouble.text}"
            ) from error

    def warm_more(self) -> bool:
        """Capture one more size. If that fails, the others are captured when they are used."""
        try:
            with self.active():
                self._is_warm = self._is_warm or not self.arithmetic.warm_more()
        except Exception as error:
            trouble = self.describe_trouble(error)
            if trouble is None:
                raise
            log.warning("no more steps are captured ahead: %s", trouble.text)
            self._is_warm = True
        return not self._is_warm

    def anchor(self) -> tuple[int, int]:
        """Host slots must be whole blocks away from the pool, so that they have block numbers."""
        return self.pool.data.data_ptr(), self.pool.layout.bytes_per_block

    def read_cold_from(self, memory: SlotMemory) -> ColdReach:
        """From now on attention reads cold blocks from host memory, within ordinary steps; not from disk."""
        if memory.host is None or memory.host_slot_bytes != self.pool.layout.bytes_per_block:
            return ColdReach()
        slots = memory.host[: memory.num_host * memory.host_slot_bytes].reshape(memory.num_host, -1)
        first = self.arithmetic.read_cold_from(slots)
        if first is None:
            log.warning(
                "attention cannot read host memory here: requests larger than the KV memory are refused"
            )
            return ColdReach()
        self._rows.cold_first = first
        return ColdReach(memory.num_host)

    def prepare(self, plan: StepPlan, rows: Rows) -> None:
        """Apply the plan to the rows, and copy the step's arrays to the device."""
        self.arithmetic.prepare(shape_of(plan.chunks), self._rows.written_by(plan))

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        self.arithmetic.copy_blocks(sources, targets)

    def discard_blocks(self, first: int, last: int) -> None:
        """Blocks stay allocated: a device's pool is one tensor, and no part of it can be freed."""
        log.info(
            "%s blocks are not used any more; their memory on %s stays allocated until the server ends: the "
            "pool is one allocation",
            f"{last - first:,}",
            self._device,
        )

    def fork(self, fork: Fork) -> None:
        """Copy the parent's row to the child's, but for its choice."""
        self._rows.fork(fork)

    def run(self) -> None:
        """Start the prepared step, after freeing the hidden rows of the last one."""
        self._hidden = self._nothing
        self._hidden = self.arithmetic.hidden()

    def way(self) -> StepWay | None:
        """How the last step was launched."""
        return self.arithmetic.way()

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): likeliest tokens of hidden rows. Waits for them, as the next two do."""
        tokens: Ints = self.arithmetic.likeliest(self._at(places)).to(torch.int32).cpu().numpy()
        return tokens

    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V): raw logits of hidden rows."""
        logits: Floats = self.arithmetic.logits(self._at(places)).cpu().numpy()
        return logits

    def hidden(self, places: Sequence[int]) -> Floats:
        """(S, E): hidden rows of the step."""
        rows: Floats = self._at(places).float().cpu().numpy()
        return rows

    def draw(self, draws: Sequence[Draw]) -> DeviceDraws:
        """Start the draws that do not need the host; the next step reads their tokens from the rows."""
        own: list[Draw] = []
        left: list[Draw] = []
        for one in draws:
            (own if is_drawn_on_device(one.params, one.has_guide) else left).append(one)
        return DeviceDraws(left, start_draws(own, self._hidden, self.arithmetic, self._stop_ids))

    def append(self, draws: Sequence[Draw], taken: SamplingResult) -> None:
        """Write what the host sampled into the device's rows; a later plan writes beams' tokens."""
        columns: list[tuple[int, int, int]] = []
        for one in draws:
            if one.params.beams is None:
                sampled = taken.samples.get(one.seq_id, ())
                columns += [(one.row, one.position + i, token.token) for i, token in enumerate(sampled)]
        if columns:
            self.arithmetic.sampler.append(*to_device(list(zip(*columns, strict=True)), self._device))

    def describe_trouble(self, error: Exception) -> Trouble | None:
        """What failed on the device. Raises DeviceLost if the device is lost."""
        return describe_trouble(error, self._device) if is_trouble(error) else None

    def _at(self, places: Sequence[int]) -> Tensor:
        return self._hidden[torch.tensor(list(places), device=self._device)]


def is_trouble(error: Exception) -> bool:
    """Whether it is an error of torch or Triton, not a bug of ours: RuntimeErrors, and Triton's own."""
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(error).__mro__}
    return isinstance(error, RuntimeError) or "triton.TritonError" in names


def describe_trouble(error: Exception, device: torch.device) -> Trouble:
    """The trouble of a step on a device that still works. Raises DeviceLost if it does not: after an illegal
    access nothing on it is valid, and every call fails."""
    if device.type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as lost:
            raise DeviceLost(
                f"{device} is lost ({first_line(lost)}); every request on it has failed; restart the "
                "server, and if this repeats see the driver's log (dmesg, nvidia-smi -q)"
            ) from error
    if isinstance(error, torch.OutOfMemoryError):
        return Trouble(
            f"{device} had no memory left for the step ({first_line(error)}); give a smaller --kv-memory or "
            "--step-tokens",
            is_shortage=True,
        )
    return Trouble(f"a kernel failed on {device}: {first_line(error)}")
