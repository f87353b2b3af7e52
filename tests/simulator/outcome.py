"""What a random life did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Outcome:
    """What a run did, for reports and for tests that a run was not empty."""

    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    timed_out: int = 0
    pins_filled: int = 0
    pins_refused: int = 0
    stored: int = 0
    loaded: int = 0
    transfers_failed: int = 0
    cooled: int = 0  # blocks that became cold
    unreadable: int = 0  # chunks that met a damaged slot
    shortages: int = 0  # steps for which the device had no memory
    moved: int = 0
    aged: int = 0
    resized: int = 0
    resizes_refused: int = 0
    turns: int = 0
    suspended: int = 0
    suspensions_refused: int = 0
    resumed: int = 0
    sessions_restored: int = 0
    sessions_forked: int = 0
    gave_way: int = 0  # holds of idle sessions
    tenants_changed: int = 0
    tenants_refused: int = 0
    returned: int = 0
    pressed: int = 0
    relieved: int = 0
    prompts_scored: int = 0
    embedded: int = 0
    preemptions: int = 0
    kept: int = 0  # preemptions after which blocks were below
    recomputed: int = 0  # and others
    staged: int = 0  # blocks that were copied for it
    cached_tokens: int = 0
    forks: int = 0
    steps: int = 0
    evictions: int = 0
    crashes: int = 0
    drafted: int = 0  # tokens that were guessed and computed
    accepted: int = 0  # of them, those that were right
    beams_searched: int = 0
    beams_told_in_part: int = 0
    beams_preempted: int = 0
