"""A model split over its outputs has, on every rank, the bits of the whole model."""

from __future__ import annotations

import numpy as np
import pytest
from tests.model.checkpoints import PROMPT, SHAPES, random_prompt, save_checkpoint
from tests.model.chunks import run_chunks
from tests.ranks import ThreadRank, on_all_ranks

from octavo.errors import ConfigError
from octavo.kernels.reference import ReferenceOps
from octavo.model.loader import load_model
from octavo.model.split import Split, allowed_ranks

MORE = ("qwen2", "qwen3_moe", "gpt_oss-window-8", "llama-tied")


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", [*SHAPES, *MORE])
def test_every_rank_has_the_bits_of_the_whole(name, num_ranks, tmp_path):
    path, tokens, chunks = save_checkpoint(name, tmp_path), random_prompt(PROMPT), [20, 1, PROMPT - 21]
    ops = ReferenceOps("f32")
    model = load_model(path, ops).model
    if num_ranks not in allowed_ranks(model.spec.num_heads, model.spec.num_kv_heads):
        with pytest.raises(ConfigError, match=f"tensor_parallel_size is {num_ranks}"):
            load_model(path, ops, split=Split(0, num_ranks))
        return
    whole = run_chunks(ops, model, tokens, chunks)

    def run_rank(rank: ThreadRank) -> np.ndarray:
        own = ReferenceOps("f32", rank)
        part = load_model(path, own, split=Split(rank.rank, num_ranks)).model
        assert part.weights.num_bytes < 0.8 * model.weights.num_bytes
        return run_chunks(own, part, tokens, chunks)

    for logits in on_all_ranks(num_ranks, run_rank):
        assert logits.tobytes() == whole.tobytes()
