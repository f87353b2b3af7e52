"""What one front end of several knows of the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.server.running import OtherAnswers


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One of several processes that serve one engine. `metrics`: the folder in which all of them count."""

    index: int
    answers: OtherAnswers
    run_id: str  # of the engine's start, which all show
    begun: int  # when that was, in seconds of the epoch
    engine_pid: int
    metrics: Path
