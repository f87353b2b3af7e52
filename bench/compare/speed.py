"""Speed compared with the peers: the same model, the same lengths, alternately on one machine.

    python bench/compare/speed.py --rounds 3 --classes f32,bf16,8-bit,4-bit

    W1       128 random tokens in, 128 out, C at a time       output tokens/s, prefill included
    W2       512 shared and 32 own tokens in, 32 out, 32 at once
    prefill  2,048 random tokens in                           prompt tokens/s
    W3       7,168 random tokens in, 64 out, 1 and 4 at once  decoded tokens/s (ours and llama.cpp)

A round runs ours and then each peer of a precision class, so the machine's drift affects all alike; a ratio
is taken within a round, and the result is its median. llama.cpp is its own `llama-batched-bench` without a
server; it has no workload with a shared prefix and different tails, so it has no W2. transformers submits all
at once, so it has W1 only at 32. vLLM runs compiled, which is its default.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import peers

SHARED, OWN, SHORT_OUT, AT_ONCE = 512, 32, 32, 32
LONG = 2048
DEEP, DEEP_OUT, DEEP_AT_ONCE = 7168, 64, (1, 4)
REQUESTS = 32
OURS = "octavo"

# A contestant's results: tokens/s by case, such as "W1 C=8".
Speeds = dict[str, float]


@dataclass(frozen=True, slots=True)
class W1:
    """Tokens of a request of W1."""

    num_in: int = 128
    num_out: int = 128


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program with its weights, and a function that runs it: workload and concurrencies in, speeds out."""

    name: str
    run: Callable[[str, Sequence[int]], Speeds]


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure of one round."""

    precision: str
    case: str
    contestant: str
    round_index: int
    tokens_per_s: float
    busy_cores: float  # used by other processes before the round


@dataclass(frozen=True, slots=True)
class Summary:
    """A contestant's figures in one case over all rounds; `ratio` is the median of ours over it by round."""

    precision: str
    case: str
    contestant: str
    rounds: int
    median: float
    lowest: float
    highest: float
    ratio: float | None


def main() -> None:
    """Run all rounds, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--classes", default="f32,bf16,8-bit,4-bit")
    parser.add_argument("--workloads", default="W1,W2,prefill")
    parser.add_argument("--conc", default="1,8,32", help="W1: requests in flight")
    parser.add_argument("--inp", type=int, default=128, help="W1: tokens in")
    parser.add_argument("--out", type=int, default=128, help="W1: tokens out")
    parser.add_argument("--kv", default="", help="ours: passed on as --kv")
    parser.add_argument("--only", default="", help="peers whose name contains this, and ours")
    parser.add_argument("--json", type=Path, help="write every figure and the summary to this file")
    given = parser.parse_args()
    contests = contests_of(given.kv, W1(given.inp, given.out))
    unknown = [name for name in given.classes.split(",") if name not in contests]
    if unknown:
        parser.error(f"--classes has {', '.join(unknown)}; allowed: {', '.join(contests)}")
    concurrencies = [int(part) for part in given.conc.split(",")]
    samples: list[Sample] = []
    for round_index in range(given.rounds):
        for precision in given.classes.split(","):
            busy = peers.busy_cores()
            peers.say(f"round {round_index + 1} of {given.rounds}, {precision}; {peers.idle_in_words(busy)}")
            for contestant in contests[precision]:
                if given.only not in contestant.name and contestant.name != OURS:
                    continue
                for workload in given.workloads.split(","):
                    speeds = contestant.run(workload, concurrencies)
                    samples += [
                        Sample(precision, case, contestant.name, round_index, speed, busy)
                        for case, speed in speeds.items()
                    ]
    summaries = summarise(samples)
    print(table_of(summaries))
    print(
        f"\nmost busy before a round: {peers.idle_in_words(max((s.busy_cores for s in samples), default=0))}"
    )
    if given.json:
        result = {
            "samples": [asdict(each) for each in samples],
            "summary": [asdict(each) for each in summaries],
        }
        given.json.write_text(json.dumps(result, indent=1) + "\n")


def contests_of(kv: str, sizes: W1) -> dict[str, list[Contestant]]:
    """The contestants of each precision class, ours first. bf16 uses the folder, rounded if it is float32."""
    files = peers.models()
    file = [files["Q4_1"]] if files["Q4_1"].exists() else []

    def ours(weights: str, *model: Path) -> Contestant:
        options = ["--weights", weights, *(["--kv", kv] if kv else [])]
        return Contestant(OURS, lambda workload, conc: our_speeds([*model, *options], workload, conc, sizes))

    def llama(kind: str) -> Contestant:
        return Contestant(f"llama.cpp {kind}", lambda w, conc: llama_speeds(files[kind], w, conc, sizes))

    def script(peer: str, *words: str | Path) -> Contestant:
        name = peer + "".join(f" {kind}" for kind, path in files.items() if path in words)
        return Contestant(name, lambda w, conc: script_speeds(peer, words, w, conc, sizes))

    return {
        "f32": [ours("f32", *file), script("vllm"), llama("F32"), script("transformers")],
        "bf16": [ours("bf16", files["folder"]), script("vllm", "--dtype", "bfloat16")],
        "8-bit": [ours("int8", *file), llama("Q8_0"), script("openvino", files["Q8_0"])],
        "4-bit": [ours("auto", *file), llama("Q4_0"), llama("Q4_1"), script("openvino", files["Q4_1"])],
    }


def our_speeds(
    options: Sequence[str | Path], workload: str, concurrencies: Sequence[int], sizes: W1
) -> Speeds:
    """`octavo bench offline`, with as many requests as the peers' scripts send."""
    speeds: Speeds = {}
    for words in our_runs(workload, concurrencies, sizes):
        command = peers.octavo("bench", "offline", *options, "--json", *words)
        for row in peers.run_rows(command, f"{OURS} {' '.join(map(str, options))} {workload}"):
            speeds |= our_case(row, workload)
    return speeds


def our_runs(workload: str, concurrencies: Sequence[int], sizes: W1) -> list[list[str]]:
    """The options of a workload's runs; a single stream of W1 sends fewer requests."""
    if workload == "W2":
        return [["--workload", "W2", "--prefix", str(SHARED), "--n", str(AT_ONCE)]]
    if workload == "W3":
        flags = [word for count in DEEP_AT_ONCE for word in ("--conc", str(count))]
        return [["--workload", "W3", "--prompt", str(DEEP), "--long-out", str(DEEP_OUT), *flags]]
    if workload == "prefill":
        return [["--workload", "W1", "--inp", str(LONG), "--out", "1", "--conc", "1", "--n", "4"]]
    words = ["--workload", "W1", "--inp", str(sizes.num_in), "--out", str(sizes.num_out)]
    for count in concurrencies:
        requests = max(4, REQUESTS // 8) if count == 1 else max(REQUESTS, count)
        words += ["--conc", str(count), "--n", str(requests)]
    return [words]  # one after another in one process, as for the peers


def our_case(row: peers.Row, workload: str) -> Speeds:
    """The figure of one line of ours; none if the line is no report."""
    about = row.get("workload")
    if not isinstance(about, dict):
        return {}
    if workload == "prefill":
        return {"prefill": peers.number(row, "prefill_tokens_per_s")}
    if workload == "W3":
        return {case_name(workload, int(about["concurrency"])): peers.number(row, "decode_tokens_per_s")}
    return {case_name(workload, int(about["concurrency"])): peers.number(row, "output_tokens_per_s")}


def llama_speeds(model: Path, workload: str, concurrencies: Sequence[int], sizes: W1) -> Speeds:
    """Run `llama-batched-bench` with the options of the peers' script."""
    program = peers.peers_folder() / "llama/bin/llama-batched-bench"
    if workload == "W2":
        return {}
    if not program.exists() or not model.exists():
        peers.say(f"llama.cpp: left out: {program} or {model} is missing")
        return {}
    at_once = ",".join(map(str, concurrencies))
    lengths = {
        "prefill": ["-npp", str(LONG), "-ntg", "1", "-npl", "1"],
        "W3": ["-npp", str(DEEP), "-ntg", str(DEEP_OUT), "-npl", ",".join(map(str, DEEP_AT_ONCE))],
    }.get(workload, ["-npp", str(sizes.num_in), "-ntg", str(sizes.num_out), "-npl", at_once])
    context = max(16384, (DEEP + DEEP_OUT) * max(DEEP_AT_ONCE)) if workload == "W3" else 16384
    common = ["-t", "2", "-tb", "2", "-c", str(context), "-b", "2048", "-ub", "512", "-fa", "on"]
    common += ["--output-format", "jsonl"]
    rows = peers.run_rows([program, "-m", model, *common, *lengths], f"llama.cpp {model.stem} {workload}")
    speeds: Speeds = {}
    for row in rows:
        speeds |= llama_case(row, workload, sizes)
    return speeds


def llama_case(row: peers.Row, workload: str, sizes: W1) -> Speeds:
    """The figure of one line: output tokens over the whole time, or the prompt speed."""
    if workload == "prefill":
        return {"prefill": peers.number(row, "speed_pp")}
    if workload == "W3":
        return {case_name(workload, int(peers.number(row, "pl"))): peers.number(row, "speed_tg")}
    count = int(peers.number(row, "pl"))
    return {case_name(workload, count): count * sizes.num_out / peers.number(row, "t")}


def script_speeds(
    peer: str, words: Sequence[str | Path], workload: str, concurrencies: Sequence[int], sizes: W1
) -> Speeds:
    """Run a peer's own script, through run.sh; `words`: its model and kind of weights."""
    runner = peers.scripts_folder() / "run.sh"
    files = [word for word in words if isinstance(word, Path)]
    missing = [path for path in (runner, installed(peer), *files) if not path.exists()]
    if missing:
        peers.say(f"{peer}: left out: {missing[0]} is missing")
        return {}
    if workload == "W3":
        return {}
    if peer == "transformers":
        if workload != "W1" or AT_ONCE not in concurrencies:
            return {}
        options = ["--n", str(AT_ONCE), "--inp", str(sizes.num_in), "--out", str(sizes.num_out)]
    else:
        options = script_options(workload, concurrencies, sizes)
    speeds: Speeds = {}
    for row in peers.run_rows(["bash", runner, peer, *words, *options], f"{peer} {workload}"):
        speeds |= script_case(row, workload)
    return speeds


def installed(peer: str) -> Path:
    """The path of the interpreter in a peer's environment."""
    return peers.peers_folder() / {"transformers": "oracle"}.get(peer, peer) / "bin/python"


def script_options(workload: str, concurrencies: Sequence[int], sizes: W1) -> list[str]:
    """The scripts' options for a workload."""
    if workload == "prefill":
        return ["--inp", str(LONG), "--out", "1", "--conc", "1"]
    if workload == "W2":
        return ["--prefix", str(SHARED), "--inp", str(OWN), "--out", str(SHORT_OUT), "--conc", str(AT_ONCE)]
    at_once = ",".join(map(str, concurrencies))
    return ["--inp", str(sizes.num_in), "--out", str(sizes.num_out), "--conc", at_once]


def script_case(row: peers.Row, workload: str) -> Speeds:
    """The figure of one line; with one token out, output tokens count prompts."""
    if "out_tok_s" not in row:
        return {}
    if workload == "prefill":
        # Not from out_tok_s, which is rounded to a tenth of a prompt.
        return {"prefill": LONG * peers.number(row, "n") / peers.number(row, "s")}
    return {case_name(workload, int(peers.number(row, "conc"))): peers.number(row, "out_tok_s")}


def case_name(workload: str, concurrency: int) -> str:
    """ "W1 C=8", "W2", "W3 C=4"."""
    return f"{workload} C={concurrency}" if workload in ("W1", "W3") else workload


def summarise(samples: Sequence[Sample]) -> list[Summary]:
    """One line for each contestant and case, ours first, in the order of their first figures."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for each in samples:
        found.setdefault((each.precision, each.case, each.contestant), {})[each.round_index] = (
            each.tokens_per_s
        )
    cases = list(dict.fromkeys((precision, case) for precision, case, _ in found))
    summaries = []
    for precision, case in cases:
        ours = found.get((precision, case, OURS), {})
        for (own_precision, own_case, contestant), speeds in found.items():
            if (own_precision, own_case) != (precision, case):
                continue
            ratios = [ours[index] / speed for index, speed in speeds.items() if index in ours and speed]
            values = list(speeds.values())
            ratio = statistics.median(ratios) if ratios and contestant != OURS else None
            summaries.append(
                Summary(
                    precision,
                    case,
                    contestant,
                    len(values),
                    statistics.median(values),
                    min(values),
                    max(values),
                    ratio,
                )
            )
    return summaries


def table_of(summaries: Sequence[Summary]) -> str:
    """The table of results."""
    header = ["class", "case", "contestant", "median tok/s", "lowest", "highest", "ours / it", "rounds"]
    rows = [
        [
            each.precision,
            each.case,
            each.contestant,
            f"{each.median:.1f}",
            f"{each.lowest:.1f}",
            f"{each.highest:.1f}",
            "" if each.ratio is None else f"{each.ratio:.2f}",
            str(each.rounds),
        ]
        for each in summaries
    ]
    return peers.table(header, rows)


if __name__ == "__main__":
    main()
