"""Divergence from float32, ours beside llama.cpp's, on the same text and the same windows.

    python bench/compare/quality.py --chunks 64

Ours is `octavo bench quality FILE --base F32-FILE` for each file, so both sides are set against the same
float32 weights; llama.cpp's is `llama-perplexity --kl-divergence` against logits that it saved for the F32
file (rounded to 16 bits, which bounds how small a divergence it can tell).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import peers

CONTEXT = 512
FILES = ("Q8_0", "Q4_0", "Q4_1")
_MEAN = re.compile(r"^Mean\s+KLD:\s+(-?[\d.]+)", re.MULTILINE)
_P99 = re.compile(r"^99\.0%\s+KLD:\s+(-?[\d.]+)", re.MULTILINE)
_TOP = re.compile(r"^Same top p:\s+([\d.]+)", re.MULTILINE)
_PERPLEXITY = re.compile(r"^Mean PPL\(Q\)\s*:\s+([\d.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """One program on one file. Divergences are in nats; agreement is a share."""

    program: str
    file: str
    held_as: str
    perplexity: float
    divergence_mean: float
    divergence_p99: float
    top1_agreement: float


def main() -> None:
    """Measure, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chunks", type=int, default=16, help="windows of 512 tokens (default 16)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="f16", help="the peer's KV type (default f16, its own default)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        subprocess.run(
            [str(part) for part in peers.octavo("bench", "quality", "--write-text", text)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        theirs = llama_lines(Path(folder), text, given.chunks, given.threads, given.kv)
        lines = []
        for file in FILES:
            lines += our_lines(file, text, given.chunks, given.threads)
            lines += [line for line in theirs if line.file == file]
    rows = [
        [
            line.program,
            line.file,
            line.held_as,
            f"{line.perplexity:.4f}",
            f"{line.divergence_mean:.6f}",
            f"{line.divergence_p99:.5f}",
            f"{line.top1_agreement:.2%}",
        ]
        for line in lines
    ]
    header = ["program", "file", "held as", "perplexity", "KL mean", "KL p99", "same top-1"]
    print(peers.table(header, rows))
    if given.json:
        given.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")


def our_lines(file: str, text: Path, chunks: int, threads: int) -> list[Line]:
    """Our figures on a file, whose integers are kept."""
    files = peers.models()
    if not (files[file].exists() and files["F32"].exists()):
        peers.say(f"octavo {file}: left out: {files[file]} or {files['F32']} is missing")
        return []
    command = peers.octavo(
        "bench", "quality", files[file], "--base", files["F32"], "--weights", "auto", "--text", text,
        "--chunks", str(chunks), "--threads", str(threads), "--json",
    )  # fmt: skip
    return [
        Line(
            "octavo",
            file,
            "auto",
            peers.number(row, "perplexity"),
            peers.number(row, "divergence_mean"),
            peers.number(row, "divergence_p99"),
            peers.number(row, "top1_agreement"),
        )
        for row in peers.run_rows(command, f"octavo {file}")
    ]


def llama_lines(folder: Path, text: Path, chunks: int, threads: int, kv: str) -> list[Line]:
    """The peer's figures on every file but F32, whose logits are the base; [] if it is not installed."""
    program = peers.peers_folder() / "llama/bin/llama-perplexity"
    files = peers.models()
    if not program.exists() or not files["F32"].exists():
        peers.say(f"llama.cpp: left out: {program} or {files['F32']} is missing")
        return []
    base = folder / "base.kld"
    common: list[str | Path] = [
        program, "-f", text, "-c", str(CONTEXT), "--chunks", str(chunks), "-t", str(threads), "--no-escape",
        "--kl-divergence-base", base,
    ]  # fmt: skip
    # The base keeps K and V in float32, as ours does.
    told = _told([*common, "-m", files["F32"], "-ctk", "f32", "-ctv", "f32"], "llama.cpp F32, the base")
    if told is None or not base.exists():
        return []
    lines = []
    for file in FILES:
        if not files[file].exists():
            peers.say(f"llama.cpp {file}: left out: {files[file]} is missing")
            continue
        command = [*common, "--kl-divergence", "-m", files[file], "-ctk", kv, "-ctv", kv]
        told = _told(command, f"llama.cpp {file}")
        line = None if told is None else parsed(told, file, f"{file}, KV {kv}")
        if line is None:
            peers.say(f"llama.cpp {file}: left out: no figures in what it printed")
        else:
            lines.append(line)
    return lines


def _told(command: list[str | Path], label: str) -> str | None:
    """What a program printed, or None with a line that says why."""
    peers.say(f"{label} ...")
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        peers.say(f"{label}: left out: exit status {done.returncode}: {last}")
        return None
    return done.stdout + done.stderr


def parsed(told: str, file: str, held_as: str) -> Line | None:
    """The figures of one `llama-perplexity --kl-divergence`, or None if any is missing."""
    found = [pattern.search(told) for pattern in (_PERPLEXITY, _MEAN, _P99, _TOP)]
    values = [float(match.group(1)) for match in found if match is not None]
    if len(values) < len(found):
        return None
    return Line("llama.cpp", file, held_as, values[0], values[1], values[2], values[3] / 100)


if __name__ == "__main__":
    main()
