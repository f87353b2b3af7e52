"""`octavo replay`: run a recording through the scheduler again."""

from __future__ import annotations

from pathlib import Path

from octavo.cli.terminal import show_progress, write
from octavo.engine.replay import ReplayResult, replay
from octavo.errors import RequestFailed


def run(recording: Path, check_every: int) -> None:
    """Replay and print the result. Raises ConfigError if the file is not a recording, RequestFailed if a plan
    differs or an invariant breaks."""
    with show_progress() as report:
        replayed = replay(recording, lambda num: report(f"{num:,} entries replayed"), check_every=check_every)
    write(f"{describe_result(replayed)}\n")
    if replayed.fault:
        raise RequestFailed(replayed.fault)


def describe_result(replayed: ReplayResult) -> str:
    """ "812 plans and 96 commands of 2,040 entries replayed: all plans are the same"."""
    text = (
        f"{replayed.num_plans:,} plans and {replayed.num_commands:,} commands of {replayed.num_entries:,} "
        "entries replayed"
    )
    for reason in replayed.recoveries:
        text += f"; recovered then: {reason}"
    if replayed.is_cut:
        text += "; the file ends inside an entry, as after a kill"
    return text + ("" if replayed.fault else ": all plans are the same")
