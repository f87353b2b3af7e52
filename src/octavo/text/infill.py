"""The tokens for filling in the middle: PREFIX text before, SUFFIX text after, MIDDLE; then the model writes
the text between. A GGUF names them; otherwise they are found by known names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_KEYS = (  # of a GGUF file, the newer ones first
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id"),
    ("tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id", "tokenizer.ggml.middle_token_id"),
)
_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
)


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The ids of a model's infill tokens."""

    prefix: int
    suffix: int
    middle: int

    def prompt(self, begin: list[int], before: list[int], behind: list[int]) -> list[int]:
        """The prompt between these texts; `begin` goes before every prompt."""
        return [*begin, self.prefix, *before, self.suffix, *behind, self.middle]


def infill_tokens(
    token_to_id: Callable[[str], int | None], metadata: Mapping[str, object] | None = None, count: int = 0
) -> InfillTokens | None:
    """The infill tokens of a vocabulary of `count` tokens; None: it has none. `metadata`: a GGUF file's."""
    for keys in _KEYS if metadata is not None else ():
        ids = [metadata.get(key) for key in keys] if metadata is not None else []
        whole = [one for one in ids if isinstance(one, int) and 0 <= one < count]
        if len(whole) == len(keys):
            return InfillTokens(*whole)
    for names in _NAMES:
        found = [one for one in map(token_to_id, names) if one is not None]
        if len(found) == len(names):
            return InfillTokens(*found)
    return None
