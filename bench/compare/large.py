"""Larger shapes with random weights, ours and llama.cpp on the same file: load, memory, decoding, prefill.

    python bench/compare/large.py --estimate              the planned runs, and about how long they take
    python bench/compare/large.py --check                 do both predict the same, on tiny files
    python bench/compare/large.py --shape qwen3-8b --rounds 3 --json large.jsonl
    python bench/compare/large.py --shape qwen3-30b-a3b --only decode --at-once 1,16 --out 16
    python bench/compare/large.py --report large.jsonl    the table of all figures in a file

Writes missing files (0.8 to 19 GB each, in $OCTAVO_PEERS/models) and measures in rounds; each round runs the
two programs one after the other for each part, every second round in reverse order:

    round 1   decode: octavo, llama.cpp   prefill: octavo, llama.cpp     each a separate process: it loads,
    round 2   decode: llama.cpp, octavo   prefill: llama.cpp, octavo     runs 16 tokens, then is measured

Both have the same number of threads, steps of 512 prompt tokens, K and V in 16 bits, llama.cpp with flash
attention. *Load* is the time from the start of the process until 16 tokens have run; *peak* the most resident
memory, including mapped pages of the file, and *own* without them; *decode* the tokens a second of all
sequences together while no prompt is computed; *share* the bytes of weights that one token must read, times
tokens a second of one sequence, over this machine's read bandwidth. Needs the packages numpy and gguf, which
the environment of Octavo's tests has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import large_file
import peers
from large_shapes import MIXES, SHAPES, Shape, active_weights, file_bytes, kv_bytes, step_bytes, tiny
from watched import Line, Run, watched_run

OURS, THEIRS = "octavo", "llama.cpp"
PARTS = ("decode", "prefill")
_PERPLEXITY = re.compile(r"Final estimate: PPL = (.*)")
_SLOT = 256  # llama.cpp rounds a sequence's context up to this
_ROW = re.compile(r"^\|" + r"\s*(\d[\d.]*|inf|-?nan)\s*\|" * 10)  # a tiny step takes no time
_HEADER = re.compile(r"^\|\s*PP\s*\|")
# Rough figures of two cores, only for the estimates: bytes read and loaded a second, operations a second.
_READ, _LOADED = 20e9, 0.6e9
_OPERATIONS = {OURS: 300e9, THEIRS: 120e9}


@dataclass(frozen=True, slots=True)
class Setup:
    """The measurements of every shape."""

    parts: tuple[str, ...]
    at_once: tuple[int, ...]
    prompt: int
    out: int
    prefill: int
    threads: int
    kv: str  # ours; the peer's is f16
    programs: tuple[str, ...]
    cold: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one run; `at` numbers its runs, to pair ours and theirs."""

    shape: str
    mix: str
    program: str
    what: str  # "load s", "peak GiB", "own GiB", "decode C=4", "prefill 2048", "read GB/s"
    at: str
    value: float


def main() -> None:
    """Write missing files, measure in rounds, print medians and ratios."""
    given = _parser().parse_args()
    if given.report:
        print(table_of(read_samples(given.report)))
        return
    setup = Setup(
        parts=tuple(given.only.split(",")),
        at_once=tuple(int(count) for count in given.at_once.split(",")),
        prompt=given.prompt,
        out=given.out,
        prefill=given.prefill,
        threads=given.threads,
        kv=given.kv,
        programs=tuple(given.who.split(",")),
        cold=given.cold,
    )
    shapes = [SHAPES[name] for name in given.shape.split(",")]
    shapes = [tiny(shape) for shape in shapes] if given.tiny or given.check else shapes
    if given.check:
        print(checked(shapes, given.mix, setup.threads))
        return
    for shape in shapes:
        peers.say(f"{shape.name} {given.mix}: {estimate_in_words(shape, given.mix, setup, given.rounds)}")
    if given.estimate:
        return
    samples: list[Sample] = []
    for shape in shapes:
        path = large_file.path_of(shape, given.mix)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            made(shape, given.mix, path)
        except large_file.NoRoom as error:
            peers.say(f"{shape.name}: left out: {error}")
            continue
        for sample in () if given.write_only else measured(shape, given.mix, path, setup, given.rounds):
            samples.append(sample)
            if given.json:
                append_sample(given.json, sample)
        if given.drop:
            path.unlink()
    if samples:
        print(table_of(samples))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", default=",".join(SHAPES), help=f"of {', '.join(SHAPES)}; by commas")
    parser.add_argument(
        "--mix", default="Q4_K_M", choices=list(MIXES), help="as llama-quantize would make it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help="decode or prefill")
    parser.add_argument("--at-once", default="1,4,16", help="sequences that decode together")
    parser.add_argument("--prompt", type=int, default=32, help="tokens before the decoded ones")
    parser.add_argument("--out", type=int, default=32, help="decoded tokens of each sequence")
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of the long prompt")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--kv", default="bf16", help="ours: the kind of K and V (the peer's is f16)")
    parser.add_argument("--who", default=f"{OURS},{THEIRS}", help="the programs")
    parser.add_argument("--cold", action="store_true", help="drop the file's pages before each run")
    parser.add_argument("--tiny", action="store_true", help="the same architectures, some megabytes each")
    parser.add_argument(
        "--check", action="store_true", help="compare both perplexities on tiny files, and exit"
    )
    parser.add_argument("--estimate", action="store_true", help="print the estimated time, and exit")
    parser.add_argument("--write-only", action="store_true", help="write the files, and exit")
    parser.add_argument("--drop", action="store_true", help="remove each file after its measurement")
    parser.add_argument("--json", type=Path, help="append every figure to this file, a line each")
    parser.add_argument("--report", type=Path, help="print the table of such a file, and exit")
    return parser


def made(shape: Shape, mix: str, path: Path) -> None:
    """Write the file if it is not there. Raises NoRoom."""
    if not path.exists():
        peers.say(f"writing {path} ({file_bytes(shape, mix) / 1e9:.1f} GB) ...")
        large_file.write_file(shape, mix, path)


def checked(shapes: Sequence[Shape], mix: str, threads: int) -> str:
    """A table of both programs' perplexity on one text: 4 windows of 512, as in `quality.py`."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        peers.write_text(text)
        for shape in shapes:
            path = large_file.path_of(shape, mix)
            path.parent.mkdir(parents=True, exist_ok=True)
            made(shape, mix, path)
            command = peers.octavo(
                "bench", "quality", path, "--weights", "auto", "--text", text, "--chunks", "4",
                "--threads", str(threads), "--json",
            )  # fmt: skip
            rows = peers.run_rows(command, f"{OURS} {shape.name}")
            ours = f"{peers.number(rows[0], 'perplexity'):.1f}" if rows else "-"
            rows.append([shape.name, ours, llama_perplexity(path, text, threads)])
    return peers.table(["shape", OURS, THEIRS], rows)


def llama_perplexity(path: Path, text: Path, threads: int) -> str:
    """The peer's perplexity with its standard error, or "-"."""
    program = peers.peers_folder() / "llama/bin/llama-perplexity"
    words = ["-c", "512", "--chunks", "4", "--no-escape", "-t", str(threads)]
    run = watched_run([program, "-m", path, "-f", text, *words], f"{THEIRS} {path.stem}")
    found = [_PERPLEXITY.search(line.text) for line in (run.lines if run else ())]
    return next((match.group(1) for match in found if match is not None), "-")


def measured(shape: Shape, mix: str, path: Path, setup: Setup, rounds: int) -> Iterator[Sample]:
    """All figures of a shape, as they are measured."""
    for index in range(rounds):
        idle = peers.idle_in_words(peers.busy_cores())
        peers.say(f"{shape.name}, round {index + 1} of {rounds}; {idle}")
        bandwidth = read_bandwidth(setup.threads)
        if bandwidth:
            yield Sample(shape.name, mix, "machine", "read GB/s", str(index), bandwidth / 1e9)
        for part in setup.parts:
            order = setup.programs if index % 2 == 0 else tuple(reversed(setup.programs))
            for program in order:
                if setup.cold:
                    drop_pages(path)
                figures = run_part(shape, path, setup, part, program)
                at = f"{index} {part}"
                yield from (Sample(shape.name, mix, program, what, at, value) for what, value in figures)


Figures = list[tuple[str, float]]


def run_part(shape: Shape, path: Path, setup: Setup, part: str, program: str) -> Figures:
    """The figures of one process; none, and a line with the reason, if it fails."""
    label = f"  {program}, {part}"
    peers.say(f"{label} ...")
    command = our_command(shape, path, setup, part) if program == OURS else llama_command(path, setup, part)
    run = watched_run(command, label)
    if run is None:
        return []
    figures = our_figures(run.lines) if program == OURS else llama_figures(run.lines, part)
    return figures + memory_figures(run)


def our_command(shape: Shape, path: Path, setup: Setup, part: str) -> list[str | Path]:
    """The command of `large_ours.py` for one part."""
    script = Path(__file__).with_name("large_ours.py")
    item = {"f32": 4, "int8": 2}.get(setup.kv, 2)
    common: list[str | Path] = [
        sys.executable, script, path, "--threads", str(setup.threads), "--kv", setup.kv,
        "--kv-bytes-per-token", str(kv_bytes(shape, 1, item)),
    ]  # fmt: skip
    if part == "prefill":
        return [*common, "--prefill", str(setup.prefill)]
    counts = ",".join(map(str, setup.at_once))
    return [*common, "--at-once", counts, "--prompt", str(setup.prompt), "--out", str(setup.out)]


def llama_command(path: Path, setup: Setup, part: str) -> list[str | Path]:
    """The command of `llama-batched-bench` for one part, with the smallest context for it."""
    program = peers.peers_folder() / "llama/bin/llama-batched-bench"
    threads = str(setup.threads)
    common: list[str | Path] = [
        program, "-m", path, "-t", threads, "-tb", threads, "-b", "2048", "-ub", "512", "-fa", "on",
        "-ctk", "f16", "-ctv", "f16",
    ]  # fmt: skip
    if part == "prefill":
        context = _rounded_up(setup.prefill + 1)
        return [*common, "-c", str(context), "-npp", str(setup.prefill), "-ntg", "1", "-npl", "1"]
    context = max(setup.at_once) * _rounded_up(setup.prompt + setup.out)
    counts = ",".join(map(str, setup.at_once))
    sizes = ["-npp", str(setup.prompt), "-ntg", str(setup.out), "-npl", counts]
    return [*common, "-c", str(context), *sizes]


def _rounded_up(tokens: int) -> int:
    return -(-tokens // _SLOT) * _SLOT


def our_figures(lines: Iterable[Line]) -> Figures:
    """The figures in the JSON lines of `large_ours.py`."""
    figures: Figures = []
    for line in lines:
        try:
            row = json.loads(line.text) if line.text.startswith("{") else {}
        except ValueError:
            continue
        match row.get("what"):
            case "ready":
                figures.append(("load s", line.at_s))
            case "decode":
                figures.append((f"decode C={row['at_once']}", float(row["tokens_per_s"])))
            case "prefill":
                figures.append(("prefill", float(row["tokens_per_s"])))
    return figures


def llama_figures(lines: Iterable[Line], part: str) -> Figures:
    """The figures in the table of `llama-batched-bench`, whose header appears after the warm-up."""
    figures: Figures = []
    for line in lines:
        if _HEADER.match(line.text):
            figures.append(("load s", line.at_s))
        found = _ROW.match(line.text)
        if found is None:
            continue
        _, _, count, _, _, prefill, _, decode, _, _ = map(float, found.groups())
        figures.append(("prefill", prefill) if part == "prefill" else (f"decode C={count:.0f}", decode))
    return figures


def memory_figures(run: Run) -> Figures:
    """The memory peaks, if the system reports them."""
    if not run.peak_bytes:
        return []
    return [("peak GiB", run.peak_bytes / 2**30), ("own GiB", run.peak_anonymous_bytes / 2**30)]


def read_bandwidth(threads: int) -> float:
    """This machine's read bandwidth now, in bytes a second; 0 if it could not be measured."""
    script = Path(__file__).with_name("large_ours.py")
    command: list[str | Path] = [sys.executable, script, "--bandwidth", "--threads", str(threads)]
    rows = peers.run_rows(command, "  bandwidth")
    return peers.number(rows[0], "read_bytes_per_s") if rows else 0.0


def drop_pages(path: Path) -> None:
    """Drop the file's pages from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def append_sample(path: Path, sample: Sample) -> None:
    """Append a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(sample)) + "\n")


def read_samples(path: Path) -> list[Sample]:
    """Read what `--json` wrote."""
    return [Sample(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def table_of(samples: Sequence[Sample]) -> str:
    """A row for each shape and figure: medians, and the median of the ratios within rounds (how many times
    faster or smaller ours is)."""
    rows = []
    for shape, mix in dict.fromkeys((sample.shape, sample.mix) for sample in samples):
        own = [sample for sample in samples if (sample.shape, sample.mix) == (shape, mix)]
        for what in dict.fromkeys(sample.what for sample in own if sample.program != "machine"):
            ours, theirs = _values(own, OURS, what), _values(own, THEIRS, what)
            rows.append([f"{shape} {mix}", what, _median(ours), _median(theirs), _ratio(what, ours, theirs)])
        rows += _share_rows(shape, mix, own)
    return peers.table(["shape", "what", OURS, THEIRS, "ours better by"], rows)


def _share_rows(shape: str, mix: str, samples: Sequence[Sample]) -> list[list[str]]:
    """The share of the bandwidth at one sequence, if both were measured."""
    known = SHAPES | {tiny(each).name: tiny(each) for each in SHAPES.values()}
    bandwidths = list(_values(samples, "machine", "read GB/s").values())
    speeds = [list(_values(samples, program, "decode C=1").values()) for program in (OURS, THEIRS)]
    if not bandwidths or not any(speeds):
        return []
    bandwidth, read = statistics.median(bandwidths), step_bytes(known[shape], mix, 1) / 1e9
    shares = [f"{statistics.median(each) * read / bandwidth:.0%}" if each else "-" for each in speeds]
    return [[f"{shape} {mix}", f"share of {bandwidth:.1f} GB/s C=1", *shares, ""]]


def _values(samples: Iterable[Sample], program: str, what: str) -> dict[str, float]:
    """Values by run."""
    return {each.at: each.value for each in samples if each.program == program and each.what == what}


def _median(values: dict[str, float]) -> str:
    return f"{statistics.median(values.values()):.2f}" if values else "-"


def _ratio(what: str, ours: dict[str, float], theirs: dict[str, float]) -> str:
    pairs = [(ours[at], theirs[at]) for at in ours.keys() & theirs.keys()]
    if not pairs:
        return "-"
    smaller_is_better = what.endswith((" s", " GiB"))
    return f"{statistics.median(b / a if smaller_is_better else a / b for a, b in pairs):.2f}x"


def estimate_in_words(shape: Shape, mix: str, setup: Setup, rounds: int) -> str:
    """About how long a round and all rounds take, from rough figures of two cores."""
    parts = {
        f"{program} {part}": estimate_s(shape, mix, setup, part, program)
        for program in setup.programs
        for part in setup.parts
    }
    parts_in_words = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items())
    total = sum(parts.values())
    return f"about {total / 60:.1f} min a round ({parts_in_words}), {rounds * total / 60:.0f} min in all"


def estimate_s(shape: Shape, mix: str, setup: Setup, part: str, program: str) -> float:
    """Seconds of one process: loading, then steps bound by memory or by operations."""
    per_token = 2 * active_weights(shape, mix) / _OPERATIONS[program]
    seconds = file_bytes(shape, mix) / _LOADED + 2.0
    if part == "prefill":
        return seconds + setup.prefill * per_token
    for count in setup.at_once:
        step = max(step_bytes(shape, mix, count) / _READ, count * per_token)
        seconds += setup.out * step + count * setup.prompt * per_token
    return seconds


if __name__ == "__main__":
    main()
