"""One family of each shape of decoder gives the logits that transformers gave: whole prompts, prompts in
chunks, and one token at a time. The full tier compares all families with transformers itself
(`test_families`)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.model.checkpoints import LAST, PROMPT, SHAPES, checkpoint, random_prompt
from tests.model.chunks import BACKENDS, load, run_chunks

TOLERANCE = 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_those_recorded_of_transformers(name, backend, tmp_path):
    recorded = checkpoint(name)
    ops, model = load(recorded.save(tmp_path), backend)
    tokens = random_prompt(PROMPT)
    assert np.abs(recorded.logits).max() > 0.5, "logits too small for a mistake to show"
    whole = run_chunks(ops, model, tokens, [PROMPT])
    chunks = run_chunks(ops, model, tokens, [7, 16, 1, 17])
    decode = run_chunks(ops, model, tokens, [20] + [1] * (PROMPT - 20))
    np.testing.assert_allclose(whole[-LAST:], recorded.logits, rtol=0, atol=TOLERANCE)
    assert whole.tobytes() == chunks.tobytes() == decode.tobytes()
    if backend == "native":
        assert run_chunks(ops, model, tokens, [7, 16, 1, 17], prepared=True).tobytes() == whole.tobytes()
