"""The scheduler's bounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Bounds of the scheduler. `step_tokens` is how many positions one step computes at most."""

    max_rows: int = 64
    step_tokens: int = 512
    max_waiting: int = 1024
    context_length: int = 8192
    stop_ids: frozenset[int] = frozenset()  # end-of-sequence tokens of the model
    prefix_caching: bool = True
    pace: bool = True  # hold prompts back while others decode, once step times are known
    pin_blocks: int = 0  # that all pins together may keep
    bytes_per_block: int = 0  # to tell, not to decide
    device: str = ""  # likewise: where the blocks lie, and what computes
    long_context: bool = True  # requests larger than the pool are taken where a tier can hold them
    parts_max: int = 1  # of a chunk with cold blocks: the model's layers; 1 where it is not cut
    target_itl_s: float | None = None  # between two tokens of a sequence; None: whatever `pace` comes to
    target_ttft_s: float | None = None  # to a request's first token; None: none
    shed: bool = False  # refuse requests that would be later
    staging_blocks: int = 0  # behind the pool's capacity, for what victims keep below
