"""A model of Llama-3.2-1B's shape with random weights, ours beside llama.cpp: speed at eight times the size.

    python bench/compare/large.py --kinds Q4_0,Q8_0

Writes a GGUF file for each kind (0.8 and 1.3 GB, kept in $OCTAVO_PEERS/models) with random codes, and
measures 128 tokens in, 32 out, 1 and 16 at once, in turns. Random weights say nothing about quality and
everything about speed: bytes and operations are those of the real model. Needs the packages numpy and gguf,
which the environment of Octavo's tests has.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

import peers

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCABULARY = 16, 2048, 32, 8, 8192, 128_256
HEAD_SIZE = HIDDEN // HEADS
IN, OUT, AT_ONCE = 128, 32, (1, 16)
BLOCK_BYTES = {"Q4_0": 18, "Q8_0": 34}
OURS = "octavo"


def main() -> None:
    """Write what is missing, measure in turns, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", default="Q4_0,Q8_0", help="of the layers' weights (the embedding is Q8_0)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv", default="bf16", help="ours: passed on as --kv")
    given = parser.parse_args()
    speeds: dict[tuple[str, int, str], list[float]] = {}
    for kind in given.kinds.split(","):
        path = peers.peers_folder() / "models" / f"random-1b-{kind}.gguf"
        if not path.exists():
            peers.say(f"writing {path} ...")
            write_model(path, kind)
        for index in range(given.rounds):
            peers.say(
                f"{kind}, round {index + 1} of {given.rounds}; {peers.idle_in_words(peers.busy_cores())}"
            )
            for name, runs in ((OURS, our_speeds(path, given.kv)), ("llama.cpp", llama_speeds(path))):
                for concurrency, speed in runs:
                    speeds.setdefault((kind, concurrency, name), []).append(speed)
    for (kind, concurrency, name), found in speeds.items():
        ours = speeds.get((kind, concurrency, OURS), [])
        ratio = "" if name == OURS or not ours else f"  ours / it {median_ratio(ours, found):.2f}"
        print(f"{kind} C={concurrency:<3} {name:10} {statistics.median(found):7.1f} tok/s out{ratio}")


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Of runs made one after the other."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


def our_speeds(path: Path, kv: str) -> Iterator[tuple[int, float]]:
    """Output tokens a second of `octavo bench offline`, by requests in flight."""
    for count in AT_ONCE:
        sizes = ["--inp", str(IN), "--out", str(OUT), "--conc", str(count), "--n", str(max(2, count))]
        words = ["--weights", "auto", "--kv", kv, "--workload", "W1", "--no-pace", *sizes, "--json"]
        for row in peers.run_rows(peers.octavo("bench", "offline", path, *words), f"octavo C={count}"):
            if "output_tokens_per_s" in row:
                yield count, peers.number(row, "output_tokens_per_s")


def llama_speeds(path: Path) -> Iterator[tuple[int, float]]:
    """The same of llama-batched-bench."""
    program = peers.peers_folder() / "llama/bin/llama-batched-bench"
    sizes = ["-npp", str(IN), "-ntg", str(OUT), "-npl", ",".join(map(str, AT_ONCE))]
    common = ["-t", "2", "-tb", "2", "-c", "4096", "-b", "2048", "-ub", "512", "-fa", "on"]
    for row in peers.run_rows(
        [program, "-m", path, *common, *sizes, "--output-format", "jsonl"], "llama.cpp"
    ):
        count = int(peers.number(row, "pl"))
        yield count, count * OUT / peers.number(row, "t")


def write_model(path: Path, kind: str) -> None:
    """A whole file, written under another name first."""
    rng = np.random.default_rng(0)
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name("random-1b")
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_vocab_size(VOCABULARY)
    add_tokenizer(writer)

    def matrix(name: str, outputs: int, inputs: int, held: str) -> None:
        blocks = rng.integers(0, 256, (outputs, inputs // 32, BLOCK_BYTES[held]), np.uint8)
        scales = np.full((outputs, inputs // 32, 1), 0.02 / inputs**0.5, np.float16)
        blocks[:, :, :2] = scales.view(np.uint8)
        data = blocks.reshape(outputs, -1)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[held])

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))

    matrix("token_embd.weight", VOCABULARY, HIDDEN, "Q8_0")
    norm("output_norm.weight")
    for layer in range(LAYERS):
        prefix = f"blk.{layer}"
        norm(f"{prefix}.attn_norm.weight")
        norm(f"{prefix}.ffn_norm.weight")
        matrix(f"{prefix}.attn_q.weight", HIDDEN, HIDDEN, kind)
        matrix(f"{prefix}.attn_k.weight", KV_HEADS * HEAD_SIZE, HIDDEN, kind)
        matrix(f"{prefix}.attn_v.weight", KV_HEADS * HEAD_SIZE, HIDDEN, kind)
        matrix(f"{prefix}.attn_output.weight", HIDDEN, HIDDEN, kind)
        matrix(f"{prefix}.ffn_gate.weight", FFN, HIDDEN, kind)
        matrix(f"{prefix}.ffn_up.weight", FFN, HIDDEN, kind)
        matrix(f"{prefix}.ffn_down.weight", HIDDEN, FFN, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Bytes and invented words: enough for a program that wants a vocabulary of this size."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [256 + i for i in range(256 - len(visible))]
    tokens = [chr(code) for code in visible + hidden] + ["ab"]
    tokens += [f"word{i}" for i in range(VOCABULARY - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(VOCABULARY - 2)
    writer.add_eos_token_id(VOCABULARY - 1)


if __name__ == "__main__":
    main()
