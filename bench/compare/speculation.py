"""Speculation of several programs: each with speculation and without it, on the same prompts, one request at
a time.

    python bench/compare/speculation.py --rounds 4 --json speculation.json

    octavo         bench.speculation: auto and ngram against off
    llama-server   its n-gram kinds (--spec-type) against none: two servers, each prompt to both
    llama-lookup   llama.cpp's example of prompt lookup: 8 guesses against none
    vLLM           its n-gram proposer, 8 guesses after matches of up to 4 tokens, against none; float32

Every program receives the prompts of bench/speculation as token ids (llama-lookup: as text), two of each task
per round. A ratio compares a program with itself; `changed` counts the prompts whose greedy output differs
with speculation. Octavo's count is 0; otherwise its benchmark ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import peers

TASKS = ("editing", "quoting", "extraction", "retrieval", "chat", "random")
KINDS = {  # of llama-server
    "ngram-simple": ["--spec-type", "ngram-simple"],
    "ngram-simple 3-8": [
        *("--spec-type", "ngram-simple"),
        *("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"),
    ],
    "ngram-cache": ["--spec-type", "ngram-cache"],
    "ngram-map-k": ["--spec-type", "ngram-map-k"],
    "ngram-mod": ["--spec-type", "ngram-mod"],
}
GUESSES = 8
_READY_S, _ANSWER_S = 120.0, 600.0
_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's output: token ids, or the text if a program has no ids."""

    task: str
    output: tuple[int, ...] | str
    tokens: int
    seconds: float  # from the prompt's submission to the last token
    decode_seconds: float  # after the first token
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A program on one task, without speculation and with it. Speeds are tokens/s over all prompts."""

    program: str
    task: str
    prompts: int
    without: float
    with_it: float
    ratio: float  # octavo: a median over rounds
    decode_without: float
    decode_with: float
    decode_ratio: float
    changed: int | None  # None: not greedy, not comparable
    acceptance: float | None


Pair = tuple[Answer, Answer]  # without, with


def main() -> None:
    """Run all programs, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="two prompts of each task for each")
    parser.add_argument("--tokens", type=int, default=200, help="of an answer, at most")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--programs", default="octavo,llama-server,llama-lookup,vllm")
    parser.add_argument("--kinds", default=",".join(KINDS), help="llama-server: kinds of speculation")
    parser.add_argument("--model", default="Q4_1", choices=["F32", "Q8_0", "Q4_0", "Q4_1"], help="llama.cpp")
    parser.add_argument("--weights", default="auto", help="octavo: kind of weights")
    parser.add_argument("--json", type=Path, help="write the lines to this file")
    given = parser.parse_args()
    for name, allowed in (("tasks", TASKS), ("kinds", tuple(KINDS))):
        unknown = [each for each in getattr(given, name).split(",") if each not in allowed]
        if unknown:
            parser.error(f"--{name} has {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    tasks, programs = given.tasks.split(","), given.programs.split(",")
    busy = peers.busy_cores()
    peers.say(peers.idle_in_words(busy))
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "prompts.jsonl"
        prompts = prompts_of(path, tasks, given.tokens, 2 * given.rounds)
        model = peers.models()[given.model]
        if "octavo" in programs:
            lines += our_lines(tasks, given.rounds, given.tokens, given.weights)
        if "llama-server" in programs:
            for kind in given.kinds.split(","):
                lines += lines_of(f"llama-server {kind}", server_pairs(kind, model, prompts))
        if "llama-lookup" in programs:
            lines += lines_of("llama-lookup", lookup_pairs(model, prompts, Path(name)))
        if "vllm" in programs:
            lines += lines_of("vllm ngram", vllm_pairs(path, prompts, Path(name)))
    print(table_of(lines))
    print(f"\nbefore: {peers.idle_in_words(busy)}")
    if given.json:
        given.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")


def our_model() -> list[str | Path]:
    """The peers' file; if it is missing the default model, which is the same."""
    return [peers.models()["Q4_1"]] if peers.models()["Q4_1"].exists() else []


def prompts_of(path: Path, tasks: Sequence[str], tokens: int, count: int) -> list[peers.Row]:
    """The first `count` prompts of each task, which are also written to `path`."""
    words = [word for task in tasks for word in ("--task", task)]
    command = peers.ours("speculation", *our_model(), "--tokens", str(tokens), *words)
    subprocess.run([*map(str, command), "--write-prompts", str(path)], check=True, cwd=peers.REPOSITORY)
    rows: list[peers.Row] = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [row for row in rows if int(str(row["index"])) < count]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return kept


def our_lines(tasks: Sequence[str], rounds: int, tokens: int, weights: str) -> list[Line]:
    """Lines of both of our modes, over the same prompts."""
    words = [word for task in tasks for word in ("--task", task)]
    sizes = ["--concurrency", "1", "--rounds", str(rounds), "--tokens", str(tokens), "--weights", weights]
    command = peers.ours("speculation", *our_model(), *sizes, *words, "--json")
    return our_lines_of(peers.run_rows(command, f"octavo {weights}", folder=peers.REPOSITORY))


def our_lines_of(rows: Sequence[peers.Row]) -> list[Line]:
    """A line for each mode and task, from the JSON lines of `python -m bench.speculation`."""
    cells = {(str(row["mode"]), str(row["task"])): row for row in rows if "mode" in row}
    lines = []
    for (mode, task), row in cells.items():
        off = cells.get(("off", task))
        if mode == "off" or off is None or row.get("decode_ratio") is None:
            continue
        lines.append(
            Line(
                f"octavo {mode}",
                task,
                2 * int(peers.number(row, "rounds")),
                peers.number(off, "tokens_per_second"),
                peers.number(row, "tokens_per_second"),
                peers.number(row, "ratio"),
                peers.number(off, "decode_tokens_per_second"),
                peers.number(row, "decode_tokens_per_second"),
                peers.number(row, "decode_ratio"),
                0 if is_greedy(task) else None,
                peers.number(row, "acceptance") if peers.number(row, "drafted") else None,
            )
        )
    return sorted(lines, key=lambda line: line.program)


def is_greedy(task: str) -> bool:
    """Whether its outputs are deterministic."""
    return task not in ("chat", "random")


def lines_of(program: str, pairs: Sequence[Pair]) -> list[Line]:
    """A line for each task."""
    lines = []
    for task in dict.fromkeys(without.task for without, _ in pairs):
        own = [pair for pair in pairs if pair[0].task == task]
        offs, ons = [pair[0] for pair in own], [pair[1] for pair in own]
        speeds = [speed(offs), speed(ons), decode_speed(offs), decode_speed(ons)]
        drafted = sum(answer.drafted for answer in ons)
        changed = sum(not is_same(off.output, on.output) for off, on in own)
        lines.append(
            Line(
                program,
                task,
                len(own),
                speeds[0],
                speeds[1],
                speeds[1] / speeds[0] if speeds[0] else 0.0,
                speeds[2],
                speeds[3],
                speeds[3] / speeds[2] if speeds[2] else 0.0,
                changed if is_greedy(task) else None,
                sum(answer.accepted for answer in ons) / drafted if drafted else None,
            )
        )
    return lines


def is_same(one: tuple[int, ...] | str, other: tuple[int, ...] | str) -> bool:
    """Whether two outputs are equal. One text may be longer: llama-lookup ends only after all guesses of a
    step."""
    if isinstance(one, str) and isinstance(other, str):
        return one.startswith(other) or other.startswith(one)
    return one == other


def speed(answers: Sequence[Answer]) -> float:
    """Tokens over time, prompts included."""
    seconds = sum(answer.seconds for answer in answers)
    return sum(answer.tokens for answer in answers) / seconds if seconds else 0.0


def decode_speed(answers: Sequence[Answer]) -> float:
    """Tokens after the first ones, over their time."""
    seconds = sum(answer.decode_seconds for answer in answers)
    return sum(answer.tokens - 1 for answer in answers) / seconds if seconds else 0.0


def server_pairs(kind: str, model: Path, prompts: Sequence[peers.Row]) -> list[Pair]:
    """Send each prompt to a llama-server without speculation, and to one with it."""
    program = peers.peers_folder() / "llama/bin/llama-server"
    label = f"llama-server {kind}"
    if not program.exists() or not model.exists():
        peers.say(f"{label}: left out: {program} or {model} is missing")
        return []
    found = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
    missing = [word for word in KINDS[kind] if word.startswith("--") and word not in found]
    if missing or KINDS[kind][1] not in found:
        peers.say(f"{label}: left out: this llama-server does not know {' '.join(KINDS[kind])}")
        return []
    peers.say(f"{label} ...")
    try:
        with server(program, model, []) as off, server(program, model, KINDS[kind]) as on:
            # The first answer touches all weights. Its prompt is not measured: some kinds learn from it.
            backwards = prompts[0]["token_ids"]
            assert isinstance(backwards, list)
            for url in (off, on):
                served(url, {**prompts[0], "token_ids": backwards[::-1]})
            return [(served(off, prompt), served(on, prompt)) for prompt in prompts]
    except (OSError, ValueError, KeyError) as error:
        peers.say(f"{label}: left out: {error}")
        return []


@contextmanager
def server(program: Path, model: Path, words: Sequence[str]) -> Iterator[str]:
    """A llama-server until the end of the block; its URL. Raises OSError if it does not start."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    cores = str(os.cpu_count() or 1)
    command = [str(program), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *words]
    command += ["-t", cores, "-tb", cores, "-c", str(_CONTEXT), "-np", "1", "-fa", "on"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(process, url)
        yield url
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until it serves. Raises OSError if it ends, or takes too long."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise OSError(f"it ended with exit status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise OSError(f"it was not ready after {_READY_S:.0f} s")


def served(url: str, prompt: peers.Row) -> Answer:
    """Send a prompt to a llama-server. Raises OSError, ValueError, KeyError."""
    body: dict[str, object] = {
        "prompt": prompt["token_ids"],
        "n_predict": prompt["max_tokens"],
        "temperature": prompt["temperature"],
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,  # the default of Octavo and vLLM
        "ignore_eos": prompt["ignore_eos"],
        "cache_prompt": False,
        "return_tokens": True,
    }
    if prompt["seed"] is not None:
        body["seed"] = prompt["seed"]
    if prompt["json_schema"] is not None:
        body["json_schema"] = json.loads(str(prompt["json_schema"]))
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as reply:
        return served_answer(str(prompt["task"]), json.load(reply))


def served_answer(task: str, found: Mapping[str, object]) -> Answer:
    """A llama-server's answer, with its own timings. Raises KeyError, ValueError."""
    timings = found["timings"]
    tokens = found["tokens"]
    if not isinstance(timings, dict) or not isinstance(tokens, list):
        raise ValueError("an answer without timings or tokens")
    decoding = float(timings["predicted_ms"]) / 1000
    return Answer(
        task,
        tuple(tokens),
        int(timings["predicted_n"]),
        float(timings["prompt_ms"]) / 1000 + decoding,
        decoding,
        int(timings.get("draft_n", 0)),
        int(timings.get("draft_n_accepted", 0)),
    )


def lookup_pairs(model: Path, prompts: Sequence[peers.Row], folder: Path) -> list[Pair]:
    """llama-lookup on the greedy prompts with a text."""
    program = peers.peers_folder() / "llama/bin/llama-lookup"
    if not program.exists() or not model.exists():
        peers.say(f"llama-lookup: left out: {program} or {model} is missing")
        return []
    peers.say("llama-lookup ...")
    greedy = [prompt for prompt in prompts if is_greedy(str(prompt["task"]))]
    pairs = []
    for prompt in greedy:
        answers = [looked_up(program, model, prompt, guesses, folder) for guesses in (0, GUESSES)]
        if answers[0] is None or answers[1] is None:
            return []
        pairs.append((answers[0], answers[1]))
    return pairs


def looked_up(program: Path, model: Path, prompt: peers.Row, guesses: int, folder: Path) -> Answer | None:
    """One run; None, and a message, if it fails."""
    path, cores = folder / "prompt.txt", str(os.cpu_count() or 1)
    path.write_text(str(prompt["text"]), encoding="utf-8")
    command = [str(program), "-m", str(model), "-bf", str(path), "--no-escape", "--temp", "0", "-fa", "on"]
    command += ["-n", str(prompt["max_tokens"]), "-c", str(_CONTEXT), "-t", cores, "-tb", cores]
    command += ["--spec-draft-n-max", str(guesses)]
    if prompt["json_schema"] is not None:
        command += ["--json-schema", str(prompt["json_schema"])]
    done = subprocess.run(command, capture_output=True, cwd=folder, timeout=_ANSWER_S, check=False)
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    answer = lookup_answer(str(prompt["task"]), out, err)
    if done.returncode or answer is None:
        last = (err or out).strip().splitlines()[-1:]
        peers.say(f"llama-lookup: left out: exit status {done.returncode}: {' '.join(last)[:300]}")
        return None
    return answer


def lookup_answer(task: str, out: str, err: str) -> Answer | None:
    """Parse the output of llama-lookup: prompt and output on standard output, figures there or on standard
    error."""
    both = f"{out}\n{err}"
    encoded = re.search(r"encoded\s+\d+ tokens in\s+([\d.]+) seconds", both)
    decoded = re.search(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds", both)
    if encoded is None or decoded is None:
        return None
    drafted, accepted = (
        int(found[1]) if (found := re.search(rf"{name}\s*=\s*(\d+)", both)) else 0
        for name in ("n_drafted", "n_accept")
    )
    text = re.split(r"\n[^\n]*encoded\s+\d+ tokens in", out)[0].strip()
    seconds = float(decoded[2])
    return Answer(task, text, int(decoded[1]), float(encoded[1]) + seconds, seconds, drafted, accepted)


def vllm_pairs(path: Path, prompts: Sequence[peers.Row], folder: Path) -> list[Pair]:
    """Run vLLM in its own process without speculation, and then with it."""
    root = peers.peers_folder()
    python, model = root / "vllm/bin/python", peers.models()["folder"]
    if not python.exists() or not model.exists():
        peers.say(f"vllm: left out: {python} or {model} is missing")
        return []
    script = folder / "vllm_script.py"
    script.write_text(VLLM_SCRIPT)
    libraries = (Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"), root / "vllm/lib/libiomp5.so")
    settings = {
        "LD_PRELOAD": ":".join(str(library) for library in libraries if library.exists()),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command: list[str | Path] = ["env", *(f"{name}={value}" for name, value in settings.items())]
    command += [python, script, model, path]
    answers = []
    for guesses in (0, GUESSES):
        rows = peers.run_rows([*command, str(guesses)], f"vllm with {guesses} guesses")
        answers.append([vllm_answer(row) for row in rows if "output" in row])
    if not all(len(own) == len(prompts) for own in answers):
        return []
    return list(zip(*answers, strict=True))


def vllm_answer(row: peers.Row) -> Answer:
    """One line of the script below."""
    output = row["output"]
    assert isinstance(output, list)
    seconds, decoding = peers.number(row, "seconds"), peers.number(row, "decode_seconds")
    return Answer(str(row["task"]), tuple(output), len(output), seconds, decoding)


def table_of(lines: Sequence[Line]) -> str:
    """The table, with the geometric mean of each program's ratios."""
    header = ["program", "task", "prompts", "without", "with", "ratio", "decoding without", "with", "ratio"]
    header += ["changed", "accepted"]
    rows = [row_of(line) for line in lines]
    for program in dict.fromkeys(line.program for line in lines):
        own = [line for line in lines if line.program == program and line.ratio and line.decode_ratio]
        if own:
            mean = statistics.geometric_mean(line.ratio for line in own)
            decode_mean = statistics.geometric_mean(line.decode_ratio for line in own)
            rows.append([program, "mean", "", "", "", f"{mean:.2f}", "", "", f"{decode_mean:.2f}", "", ""])
    return peers.table(header, rows)


def row_of(line: Line) -> list[str]:
    """Speeds in tokens/s."""
    return [
        line.program,
        line.task,
        str(line.prompts),
        f"{line.without:.1f}",
        f"{line.with_it:.1f}",
        f"{line.ratio:.2f}",
        f"{line.decode_without:.1f}",
        f"{line.decode_with:.1f}",
        f"{line.decode_ratio:.2f}",
        "" if line.changed is None else f"{line.changed} of {line.prompts}",
        "" if line.acceptance is None else f"{line.acceptance:.0%}",
    ]


# Run by vLLM's own interpreter: model, prompts, guesses. A JSON line for each prompt.
VLLM_SCRIPT = """
import json
import sys
import time

from vllm import LLM, SamplerParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams


def main():
    model, path, guesses = sys.argv[1], sys.argv[2], int(sys.argv[3])
    prompts = [json.loads(line) for line in open(path)]
    config = {"method": "ngram", "num_speculative_tokens": guesses, "prompt_lookup_max": 4}
    extra = {"speculative_config": config} if guesses else {}
    engine = LLM(model=model, dtype="float32", enforce_eager=True, max_model_len=2048, max_num_seqs=1, seed=0,
                 enable_prefix_caching=False, **extra).llm_engine
    answer(engine, "warm-up", prompts[0])
    for number, prompt in enumerate(prompts):
        print(json.dumps(answer(engine, str(number), prompt)), flush=True)


def answer(engine, name, prompt):
    schema = prompt["json_schema"]
    params = SamplerParams(
        temperature=prompt["temperature"], seed=prompt["seed"], max_tokens=prompt["max_tokens"],
        ignore_eos=prompt["ignore_eos"], output_kind=RequestOutputKind.DELTA,
        structured_outputs=StructuredOutputsParams(json=schema) if schema else None)
    begun, first, last, tokens = time.perf_counter(), None, None, []
    engine.add_request(name, {"prompt_token_ids": prompt["token_ids"]}, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.outputs[0].token_ids:
                last = time.perf_counter()
                first = first or last
                tokens += output.outputs[0].token_ids
    return {"task": prompt["task"], "output": tokens, "seconds": last - begun, "decode_seconds": last - first}


if __name__ == "__main__":
    main()
"""


if __name__ == "__main__":
    main()
