"""Divergence from float32, ours and llama.cpp's, on the same files, text and windows.

    python bench/compare/quality.py --make --chunks 16                   all kinds, their files made first
    python bench/compare/quality.py --files Q4_K_M,ffn_down=q2_k --who octavo --json quality.jsonl
    python bench/compare/quality.py --report quality.jsonl               the table of all parts in a file

Ours is `octavo bench quality FILE --base F32-FILE` for each file, so both sides are compared with the same
float32 weights; llama.cpp's is `llama-perplexity --kl-divergence` against logits that it saved for the F32
file, rounded to 16 bits, which bounds the smallest measurable divergence.

    Q4_K_M, Q2_K, ...    the output of `llama-quantize F32-FILE OUT Q4_K_M`. The default model's rows of 576
                         are no whole blocks of 256: there llama.cpp falls back to Q5_0, Q5_1, Q8_0, Q4_0 or
                         IQ4_NL, and only the down projections (rows of 1,536) have the mix's own kinds
    ffn_down=q2_k, ...   Q8_0 with only the down projections in one kind: the effect of that kind alone

The column "tensors" shows the kinds in a file. A kind that ours cannot read is skipped with a message. Making
files needs `llama-quantize`; showing their kinds needs the package gguf.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf

import peers

CONTEXT = 512
MIXES = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_M", "Q5_K_M", "Q3_K_M", "Q2_K", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
ALONE = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "q5_0", "q5_1", "mxfp4")
FILES = (*MIXES, *(f"ffn_down={kind}" for kind in ALONE))
ALLOWED = 1.03  # ours over theirs
OURS, THEIRS = "octavo", "llama.cpp"
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


@dataclass(frozen=True, slots=True)
class Text:
    """The common text, in windows of CONTEXT tokens, and the peer's base of logits in the same folder."""

    path: Path
    chunks: int
    threads: int
    kv: str  # the peer's

    @property
    def base(self) -> Path:
        """The peer's logits of the F32 file."""
        return self.path.with_suffix(".kld")


def main() -> None:
    """Measure, print a table, write JSON if asked."""
    given = _parser().parse_args()
    if given.report:
        lines = [Line(**json.loads(row)) for row in given.report.read_text(encoding="utf-8").splitlines()]
        print(table_of(lines))
        return
    files = given.files.split(",")
    if given.make:
        for file in files:
            make_file(file)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        text = Text(Path(folder) / "text.txt", given.chunks, given.threads, given.kv)
        peers.write_text(text.path)
        has_base = THEIRS in given.who and write_llama_base(text)
        for index, file in enumerate(files):
            peers.say(f"{file} ({index + 1} of {len(files)})")
            theirs = llama_line(file, text) if has_base else None
            ours = list(our_lines(file, text)) if OURS in given.who else []
            for line in (*ours, theirs):
                if line is not None:
                    lines.append(line)
                    append_line(given.json, line)
    print(table_of(lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", default=",".join(FILES), help="by commas: mixes, or TENSOR=KIND over Q8_0")
    parser.add_argument("--make", action="store_true", help="make those that are missing, by llama-quantize")
    parser.add_argument("--chunks", type=int, default=16, help="windows of 512 tokens (default 16)")
    parser.add_argument("--json", type=Path, help="append every line's figures to this file")
    parser.add_argument("--report", type=Path, help="print the table of such a file, and exit")
    parser.add_argument(
        "--who", default=f"{OURS},{THEIRS}", help="the programs; their lines can be put together"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="f16", help="the peer's KV type (default f16, its own default)")
    return parser


def path_of(file: str) -> Path:
    """The path of a file; the three files of other scripts are shared."""
    known = peers.models()
    return (
        known.get(file) or peers.peers_folder() / "models/quality" / f"smollm2-{file.replace('=', '-')}.gguf"
    )


def quantize_command(file: str, source: Path, target: Path) -> list[str | Path]:
    """The command of `llama-quantize`: a mix by its name, or Q8_0 with one tensor in another kind."""
    program = peers.peers_folder() / "llama/bin/llama-quantize"
    if "=" in file:
        return [program, "--allow-requantize", "--tensor-type", file, source, target, "Q8_0"]
    return [program, "--allow-requantize", source, target, file]


def make_file(file: str) -> None:
    """Make the file if it is missing, first under a temporary name; prints the reason if it fails."""
    target, source = path_of(file), peers.models()["F32"]
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".part")
    if _output_of(quantize_command(file, source, unfinished), f"making {file}") is not None:
        unfinished.rename(target)


def kinds_in(path: Path) -> str:
    """The kinds of its matrices with their counts, such as "150 Q5_0, 30 Q4_K, 1 Q8_0"."""
    tensors = gguf.GGUFReader(path).tensors
    counts = collections.Counter(tensor.tensor_type.name for tensor in tensors if len(tensor.shape) > 1)
    return ", ".join(f"{count} {kind}" for kind, count in counts.most_common())


def our_lines(file: str, text: Text) -> Iterator[Line]:
    """Our figures on a file with `--weights auto`; none, and a message, if it cannot be read."""
    path, base = path_of(file), peers.models()["F32"]
    if not (path.exists() and base.exists()):
        peers.say(f"octavo {file}: left out: {path} or {base} is missing")
        return
    command = peers.octavo(
        "bench", "quality", path, "--base", base, "--weights", "auto", "--text", text.path,
        "--chunks", str(text.chunks), "--threads", str(text.threads), "--json",
    )  # fmt: skip
    for row in peers.run_rows(command, f"octavo {file}"):
        yield Line(
            OURS,
            file,
            "auto, KV f32",
            peers.number(row, "perplexity"),
            peers.number(row, "divergence_mean"),
            peers.number(row, "divergence_p99"),
            peers.number(row, "top1_agreement"),
        )


def write_llama_base(text: Text) -> bool:
    """Save the peer's logits of the F32 file. Returns False, with a message, if that fails."""
    program, source = peers.peers_folder() / "llama/bin/llama-perplexity", peers.models()["F32"]
    if not program.exists() or not source.exists():
        peers.say(f"llama.cpp: left out: {program} or {source} is missing")
        return False
    # The base has K and V in float32, as ours.
    output = _output_of(
        [*_perplexity(text), "-m", source, "-ctk", "f32", "-ctv", "f32"], "llama.cpp F32, the base"
    )
    return output is not None and text.base.exists()


def llama_line(file: str, text: Text) -> Line | None:
    """The peer's figures on a file, against its base; None, and a message, if there are none."""
    path = path_of(file)
    if not path.exists():
        peers.say(f"llama.cpp {file}: left out: {path} is missing")
        return None
    command = [*_perplexity(text), "--kl-divergence", "-m", path, "-ctk", text.kv, "-ctv", text.kv]
    output = _output_of(command, f"llama.cpp {file}")
    line = None if output is None else parsed(output, file, f"{kinds_in(path)}; KV {text.kv}")
    if output is not None and line is None:
        peers.say(f"llama.cpp {file}: left out: no figures in its output")
    return line


def _perplexity(text: Text) -> list[str | Path]:
    program = peers.peers_folder() / "llama/bin/llama-perplexity"
    return [
        program, "-f", text.path, "-c", str(CONTEXT), "--chunks", str(text.chunks), "-t", str(text.threads),
        "--no-escape", "--kl-divergence-base", text.base,
    ]  # fmt: skip


def _output_of(command: list[str | Path], label: str) -> str | None:
    """The output of a program; None, and a message, if it fails."""
    peers.say(f"{label} ...")
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        last = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-1:])
        peers.say(f"{label}: left out: exit status {done.returncode}: {last}")
        return None
    return done.stdout + done.stderr


def parsed(output: str, file: str, held_as: str) -> Line | None:
    """The figures of one `llama-perplexity --kl-divergence`, or None if any is missing."""
    found = [pattern.search(output) for pattern in (_PERPLEXITY, _MEAN, _P99, _TOP)]
    values = [float(match.group(1)) for match in found if match is not None]
    if len(values) < len(found):
        return None
    return Line(THEIRS, file, held_as, values[0], values[1], values[2], values[3] / 100)


def append_line(path: Path | None, line: Line) -> None:
    """Append a line of JSON, if a file was given."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")


def table_of(lines: Sequence[Line]) -> str:
    """A row for each file: both programs' figures, ours over theirs, and whether that is over ALLOWED."""
    ours = {line.file: line for line in lines if line.program == OURS}
    theirs = {line.file: line for line in lines if line.program == THEIRS}
    rows = []
    for file in dict.fromkeys(line.file for line in lines):
        one, other = ours.get(file), theirs.get(file)
        held = "" if other is None else other.held_as.partition(";")[0]
        rows.append([file, held, *_cells(one), *_cells(other), _ratio(one, other)])
    header = ["file", "tensors"]
    header += [f"{who} {what}" for who in ("ours", "theirs") for what in ("PPL", "KL", "p99", "top-1")]
    return peers.table([*header, "ours / theirs"], rows)


def _cells(line: Line | None) -> list[str]:
    if line is None:
        return ["-"] * 4
    return [
        f"{line.perplexity:.3f}",
        f"{line.divergence_mean:.5f}",
        f"{line.divergence_p99:.4f}",
        f"{line.top1_agreement:.1%}",
    ]


def _ratio(ours: Line | None, theirs: Line | None) -> str:
    if ours is None or theirs is None or theirs.divergence_mean <= 0:
        return "-"
    ratio = ours.divergence_mean / theirs.divergence_mean
    return f"{ratio:.3f}" if ratio <= ALLOWED else f"{ratio:.3f}, over {ALLOWED}"


if __name__ == "__main__":
    main()
