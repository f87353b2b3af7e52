"""The gain of paging: ours against transformers' `generate` with a static reservation, at equal KV bytes.

    python bench/compare/static.py --rounds 3

Both have float32 weights, and float32 K and V in the same number of bytes. A static reservation holds the
whole context window (2,048 tokens here) for every request, so few run at once; blocks hold only existing
tokens. W1: 32 requests of 128 random tokens in, 128 out. transformers runs twice: with its static cache,
whose attention also reads empty slots, and with its growing cache at the same concurrency, which is more
favourable to it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import peers

IN, OUT, REQUESTS, WINDOW = 128, 128, 32, 2048
OURS = "octavo"


def main() -> None:
    """Run all rounds and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--at-once", type=int, default=4, help="requests that fit into the static reservation"
    )
    parser.add_argument("--peer", choices=("static", "dynamic"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        generate(given.peer, given.at_once)
        return
    speeds: dict[str, list[float]] = {}
    for index in range(given.rounds):
        peers.say(f"round {index + 1} of {given.rounds}; {peers.idle_in_words(peers.busy_cores())}")
        speeds.setdefault(OURS, []).append(our_speed(given.at_once))
        for cache in ("static", "dynamic"):
            speeds.setdefault(f"transformers, {cache} cache", []).append(peer_speed(cache, given.at_once))
    print(f"equal KV bytes: {given.at_once} x {WINDOW} reserved tokens of 46,080 bytes")
    for name, found in speeds.items():
        ratio = statistics.median(a / b if b else 0.0 for a, b in zip(speeds[OURS], found, strict=True))
        print(f"{name:28} {statistics.median(found):7.1f} tok/s out  ours / it {ratio:.2f}")


def our_speed(at_once: int) -> float:
    """W1 with all requests at once, in the KV bytes of the reservations."""
    memory = f"{at_once * WINDOW * 45}KiB"
    words = ["--weights", "f32", "--kv", "f32", "--kv-memory", memory, "--json"]
    words += ["--workload", "W1", "--conc", str(REQUESTS), "--n", str(REQUESTS)]
    rows = peers.run_rows(peers.octavo("bench", "offline", peers.models()["Q4_1"], *words), OURS)
    return next(
        (peers.number(row, "output_tokens_per_s") for row in rows if "output_tokens_per_s" in row), 0.0
    )


def peer_speed(cache: str, at_once: int) -> float:
    """Run this script in the environment with transformers."""
    python = peers.peers_folder() / "oracle/bin/python"
    command: list[str | Path] = [python, __file__, "--peer", cache, "--at-once", str(at_once)]
    rows = peers.run_rows(command, f"transformers, {cache} cache")
    return peers.number(rows[0], "out_tok_s") if rows else 0.0


def generate(cache: str, at_once: int) -> None:
    """In the peer's environment: batches of as many as fit, one after another."""
    import torch
    from transformers import AutoModelForCausalLM, StaticCache

    torch.set_num_threads(2)
    torch.manual_seed(0)
    folder = peers.models()["folder"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    started, made = time.perf_counter(), 0
    for first in range(0, REQUESTS, at_once):
        prompts = torch.randint(100, model.config.vocab_size, (min(at_once, REQUESTS - first), IN))
        kept = StaticCache(config=model.config, max_cache_len=WINDOW) if cache == "static" else None
        out = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            past_key_values=kept,
            min_new_tokens=OUT,
            max_new_tokens=OUT,
            do_sample=False,
            pad_token_id=0,
        )
        made += out.numel() - prompts.numel()
        print(f"{made} of {REQUESTS * OUT} tokens", file=sys.stderr, flush=True)
    print(
        json.dumps(
            {"peer": "transformers", "cache": cache, "out_tok_s": made / (time.perf_counter() - started)}
        )
    )


if __name__ == "__main__":
    main()
