"""One front end of several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.server.running import OtherAnswers


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One of several processes that serve one engine. `metrics`: the folder of the counts of all."""

    index: int
    answers: OtherAnswers
    run_id: str  # of the engine's start, the same in all
    started_at: int  # when this process started, in seconds of the epoch
    engine_pid: int
    metrics: Path
