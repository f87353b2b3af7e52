"""The hypotheses of a beam search, in vLLM's names."""

from __future__ import annotations

from octavo.api.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from octavo.text.tokenizer import Tokenizer


def found_beams(output: RequestOutput, tokenizer: Tokenizer) -> BeamSearchOutput:
    """The outputs of a search, each with its prompt in front."""
    sequences = []
    for found in output.outputs:
        tokens = [*output.prompt_token_ids, *found.token_ids]
        sequences.append(
            BeamSearchSequence(
                tokens,
                found.logprobs or [],
                found.cumulative_logprob or 0.0,
                tokenizer.decode(tokens, skip_special=False),
                found.finish_reason,
                found.stop_reason,
            )
        )
    return BeamSearchOutput(sequences)
