"""Embeddings compared with transformers and sentence-transformers: the same weights, texts and threads,
alternately.

    python bench/compare/embeddings.py --rounds 5 --classes f32,bf16 --poolings last,mean

All read `models()["folder"]`, the default model in float32 safetensors. A peer sorts the texts by length and
runs padded batches, as sentence-transformers does; each round runs it with every batch size, and the best one
over all rounds counts. All times include tokenising, and exclude loading and a warm-up round. The peers'
environment has torch and transformers, and optionally sentence-transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import peers

OURS, PEERS = "octavo", ("transformers", "sentence-transformers")
Key = tuple[str, str, str]  # precision class, pooling, and program with batch size


def main() -> None:
    """Run all rounds and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--words", type=int, default=300, help="of a text at most")
    parser.add_argument("--classes", default="f32,bf16", help="of the weights: f32, bf16")
    parser.add_argument("--poolings", default="last,mean")
    parser.add_argument("--batches", default="1,8,16,32,64", help="batch sizes of the peers")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--python", help="of the peers' environment; default: the one named oracle")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        embed_as(given)
        return
    python = given.python or str(peers.peers_folder() / "oracle/bin/python")
    speeds = measured(given, python)
    for precision in given.classes.split(","):
        for pooling in given.poolings.split(","):
            report(speeds, precision, pooling)
    if given.json is not None:
        rows = [{"case": list(key), "texts_per_s": found} for key, found in speeds.items()]
        given.json.write_text(json.dumps(rows, indent=1))


def measured(given: argparse.Namespace, python: str) -> dict[Key, list[float]]:
    """Texts a second of each round."""
    speeds: dict[Key, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.jsonl"
        sizes = ["--texts", str(given.texts), "--words", str(given.words)]
        subprocess.run(peers.octavo("bench", "embeddings", *sizes, "--write-texts", texts), check=True)
        for index in range(given.rounds):
            idle = peers.idle_in_words(peers.busy_cores())
            peers.say(f"round {index + 1} of {given.rounds}; {idle}")
            for precision in given.classes.split(","):
                for key, speed in our_speeds(given, precision, sizes):
                    speeds.setdefault(key, []).append(speed)
                for name in given.peers.split(","):
                    command = [python, __file__, "--peer", name, "--classes", precision, "--read", texts]
                    command += ["--poolings", given.poolings, "--batches", given.batches]
                    command += ["--threads", str(given.threads)]
                    for row in peers.run_rows(command, f"{name}, {precision}"):
                        who = f"{name}, batches of {row['batch']}"
                        key = (precision, str(row["pooling"]), who)
                        speeds.setdefault(key, []).append(peers.number(row, "texts_per_s"))
    return speeds


def our_speeds(given: argparse.Namespace, precision: str, sizes: Sequence[str]) -> list[tuple[Key, float]]:
    """One measured round of `octavo bench embeddings`."""
    words = ["--weights", precision, "--kv", precision, "--threads", str(given.threads), "--rounds", "1"]
    for pooling in given.poolings.split(","):
        words += ["--pooling", pooling]
    command = peers.octavo("bench", "embeddings", peers.models()["folder"], *sizes, *words, "--json")
    rows = peers.run_rows(command, f"{OURS}, {precision}")
    return [((precision, str(r["pooling"]), OURS), peers.number(r, "texts_per_s")) for r in rows]


def report(speeds: dict[Key, list[float]], precision: str, pooling: str) -> None:
    """Ours, and each peer at its best batch size."""
    ours = speeds.get((precision, pooling, OURS), [])
    best: dict[str, str] = {}  # by name: with its best batch size
    own = {who: found for (of, how, who), found in speeds.items() if (of, how) == (precision, pooling)}
    for who in sorted(own, key=lambda each: statistics.median(own[each])):
        best[who.partition(",")[0]] = who
    for who in best.values():
        found = own[who]
        ratios = [a / b for a, b in zip(ours, found, strict=False)]
        ratio = f"  ours / it {statistics.median(ratios):.2f}" if ratios and who != OURS else ""
        spread = f"({min(found):.1f} to {max(found):.1f})"
        print(f"{precision:5} {pooling:5} {who:40} {statistics.median(found):8.1f} texts/s {spread}{ratio}")


# -- in the peer's environment ------------------------------------------------------------------------------
def embed_as(given: argparse.Namespace) -> None:
    """A JSON line for each pooling and batch size: one warm-up round, and one measured round."""
    import torch

    torch.set_num_threads(given.threads)
    texts = [json.loads(line)["text"] for line in given.read.read_text().splitlines()]
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[given.classes]
    make = with_transformers if given.peer == "transformers" else with_sentence_transformers
    for pooling in given.poolings.split(","):
        embed = make(pooling, dtype)
        for batch in map(int, given.batches.split(",")):
            embed(texts[: 2 * batch], batch)
            started = time.perf_counter()
            embed(texts, batch)
            speed = len(texts) / (time.perf_counter() - started)
            print(json.dumps({"pooling": pooling, "batch": batch, "texts_per_s": speed}), flush=True)


def with_transformers(pooling: str, dtype: object) -> Callable[[list[str], int], None]:
    """Padded batches, sorted by length, through the model without its vocabulary."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = peers.models()["folder"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.padding_side = "right"
    model = AutoModel.from_pretrained(folder, dtype=dtype).eval()

    def embed(texts: list[str], batch: int) -> None:
        ordered = sorted(texts, key=len, reverse=True)
        with torch.inference_mode():
            for first in range(0, len(ordered), batch):
                given = tokenizer(ordered[first : first + batch], padding=True, return_tensors="pt")
                mask = given["attention_mask"]
                states = model(**given, use_cache=False).last_hidden_state
                if pooling == "mean":
                    pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
                else:
                    pooled = states[torch.arange(len(mask)), mask.sum(1) - 1]
                torch.nn.functional.normalize(pooled.float(), dim=-1)

    return embed


def with_sentence_transformers(pooling: str, dtype: object) -> Callable[[list[str], int], None]:
    """sentence-transformers' own pipeline over the same folder."""
    from sentence_transformers import SentenceTransformer, models

    folder = str(peers.models()["folder"])
    body = models.Transformer(folder, model_args={"dtype": dtype})
    body.tokenizer.pad_token = body.tokenizer.pad_token or body.tokenizer.eos_token
    mode = "lasttoken" if pooling == "last" else "mean"
    pool = models.Pooling(body.get_word_embedding_dimension(), pooling_mode=mode)
    model = SentenceTransformer(modules=[body, pool, models.Normalize()], device="cpu")

    def embed(texts: list[str], batch: int) -> None:
        model.encode(texts, batch_size=batch, show_progress_bar=False)

    return embed


if __name__ == "__main__":
    sys.exit(main())
