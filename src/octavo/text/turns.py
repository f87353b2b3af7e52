"""Tokens that end a turn, by name: files often name one end token, and models generate another."""

from __future__ import annotations

from collections.abc import Collection

import tokenizers

_ENDS = (
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",
    "<|eot|>",  # Llama 4
    "<|im_end|>",  # Qwen, SmolLM
    "<end_of_turn>",  # Gemma
    "<|end_of_text|>",  # Granite, Llama 3
    "<|return|>",  # gpt-oss
    "<|call|>",
    "</s>",
)
_PHI_END, _HARMONY_END = "<|end|>", "<|return|>"
# GLM-4 ends a turn with the token of the next role; in other models tokens of these names begin a turn.
_GLM_MARK, _GLM_ENDS = "[gMASK]", ("<|user|>", "<|observation|>")


def ends_of_turn(backend: tokenizers.Tokenizer, special_ids: Collection[int]) -> frozenset[int]:
    """The special tokens that end a turn in the model's family."""
    names = [*_ENDS]
    if backend.token_to_id(_HARMONY_END) is None:
        names.append(_PHI_END)  # with gpt-oss it ends a message, and the answer continues
    if backend.token_to_id(_GLM_MARK) is not None:
        names += _GLM_ENDS
    ids = map(backend.token_to_id, names)
    return frozenset(id_ for id_ in ids if id_ is not None and id_ in special_ids)
