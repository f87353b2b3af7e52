"""Our side of `large.py`, in a separate process: load a file, then decode and prefill; JSON lines.

    python bench/compare/large_ours.py FILE --at-once 1,4,16 --prompt 32 --out 32
    python bench/compare/large_ours.py FILE --prefill 2048
    python bench/compare/large_ours.py --bandwidth

    {"what": "ready", ...}     the model is loaded, its pool is in memory, 16 tokens have run through it
    {"what": "decode", ...}    tokens a second of all sequences together, while no prompt is computed
    {"what": "prefill", ...}   prompt tokens a second

It measures like `octavo bench offline`, by the same functions, in one engine with the smallest sufficient
pool.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from octavo import _native
from octavo.api.llm import LLM
from octavo.bench.limits import measure_limits
from octavo.bench.offline import FIRST_TOKEN, measure, w1
from octavo.config import StartOptions
from octavo.params import SamplerParams

_BLOCK = 16
_SPARE_TOKENS = 512
_WARM_UP_TOKENS = 16  # as llama-batched-bench's


def main() -> None:
    """Run the requested measurements, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--at-once", default="", help="sequences that decode together, such as 1,4,16")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of their prompts")
    parser.add_argument("--out", type=int, default=32, help="tokens of their answers")
    parser.add_argument("--prefill", type=int, default=0, help="tokens of one long prompt; 0: none")
    parser.add_argument("--kv", default="bf16")
    parser.add_argument("--kv-bytes-per-token", type=int, default=0, help="what the pool is sized by")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bandwidth", action="store_true", help="the memory's, and nothing else")
    given = parser.parse_args()
    if given.bandwidth:
        _native.set_num_threads(given.threads)
        emit("bandwidth", read_bytes_per_s=measure_limits().read_bytes_per_s)
        return
    counts = [int(count) for count in given.at_once.split(",") if count]
    longest = max(given.prompt + given.out if counts else 0, given.prefill + 1, 4 * _BLOCK)
    tokens = max(max(counts, default=1) * (given.prompt + given.out + _BLOCK), longest) + _SPARE_TOKENS
    pool = tokens * given.kv_bytes_per_token or None
    options = StartOptions(
        kv=given.kv,
        backend="native",
        context_length=longest + _BLOCK,
        kv_memory_bytes=pool,
        kv_ready_bytes=pool or 0,
        max_seqs=max([*counts, 1]),
        threads=given.threads,
        speculate="off",
        pace=False,
    )
    begun = time.perf_counter()
    with LLM(given.file, options) as llm:
        llm.started.runner.wait_ready()
        run_through(llm, _WARM_UP_TOKENS)
        emit(
            "ready",
            seconds=time.perf_counter() - begun,
            weight_bytes=llm.started.loaded.model.weights.num_bytes,
            kv_pool_bytes=llm.started.budget.num_bytes,
            arithmetic=llm.started.backend.arithmetic_id,
        )
        for count in counts:
            report = measure(llm, w1(count, given.prompt, given.out, count))
            emit("decode", at_once=count, tokens_per_s=report.decode_tokens_per_s, seconds=report.seconds)
        if given.prefill:
            report = measure(llm, w1(1, given.prefill, 1, 1))
            emit("prefill", tokens_per_s=report.prefill_tokens_per_s, seconds=report.seconds)


def run_through(llm: LLM, count: int) -> None:
    """Run one prompt of so many tokens, so that first touches of memory are not measured."""
    prompt = [FIRST_TOKEN + i for i in range(count)]
    params = SamplerParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    llm.generate([prompt], params, use_tqdm=False)


def emit(what: str, **fields: float | str) -> None:
    """Print one line."""
    print(json.dumps({"what": what, **fields}), flush=True)


if __name__ == "__main__":
    main()
