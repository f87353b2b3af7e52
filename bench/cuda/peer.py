"""The baseline: transformers' continuous batching on the same card, with random weights."""

from __future__ import annotations

import contextlib
import sys
import time

import torch
from measuring import Probe
from shapes import Shape


def generate_batch(probe: Probe, shape: Shape, batches: dict[int, list[list[int]]], output: int) -> None:
    """Tokens per second of `generate_batch` for each number of prompts. Prints the reason if it fails."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it prints to stdout
            model = _model(probe, shape)
    except Exception as error:  # noqa: BLE001 - any error of the peer
        probe.emit("transformers", shape=shape.name, error=f"{type(error).__name__}: {error}"[:400])
        return
    for count, prompts in batches.items():
        if not probe.has_time(f"transformers {shape.name} {count}", 0 if probe.tiny else 45):
            continue
        probe.note(f"transformers {shape.name}, {count} at once")
        try:
            with contextlib.redirect_stdout(sys.stderr):
                seconds, made = _generate(probe, model, prompts, output)
        except Exception as error:  # noqa: BLE001
            about = f"{type(error).__name__}: {error}"[:400]
            probe.emit("transformers", shape=shape.name, at_once=count, error=about)
            continue
        probe.emit(
            "transformers",
            shape=shape.name,
            at_once=count,
            seconds=seconds,
            output_tokens=made,
            output_tokens_per_s=made / seconds,
            is_complete=made == len(prompts) * output,
        )


def _model(probe: Probe, shape: Shape) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    sizes = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "tie_word_embeddings": shape.is_tied,
        "max_position_embeddings": 8192,
    }
    config = Qwen3Config(**sizes) if shape.has_qk_norm else LlamaConfig(**sizes)
    with torch.device(probe.device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=probe.dtypes[0], attn_implementation="paged|sdpa"
        )
    return model.eval()


def _generate(
    probe: Probe, model: torch.nn.Module, prompts: list[list[int]], output: int
) -> tuple[float, int]:
    from transformers import GenerationConfig

    how = GenerationConfig(
        max_new_tokens=output, min_new_tokens=output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    options: dict[str, object] = {}
    with contextlib.suppress(ImportError):
        from transformers import ContinuousBatchingConfig

        small = {"num_blocks": 16, "max_batch_tokens": 64} if probe.tiny else {}
        options["continuous_batching_config"] = ContinuousBatchingConfig(**small)
    # `generate_batch` forbids gradients itself; within `torch.inference_mode` some versions fail on a GPU.
    if not probe.tiny:
        model.generate_batch(inputs=prompts, generation_config=how, **options)  # warm-up
    started = time.perf_counter()
    made = model.generate_batch(inputs=prompts, generation_config=how, **options)
    probe.wait()
    return time.perf_counter() - started, sum(len(one.generated_tokens) for one in made.values())
