"""The tokens by which a model fills in the middle: as a file names them, or by names that are known."""

from __future__ import annotations

import pytest

from octavo.text.infill import InfillTokens, infill_tokens

PRE, SUF, MID = (
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.fim_mid_token_id",
)


def test_what_a_file_names_counts_before_names_of_tokens() -> None:
    names = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3}
    assert infill_tokens(names.get) == InfillTokens(1, 2, 3)
    assert infill_tokens(names.get, {PRE: 7, SUF: 8, MID: 9}, 10) == InfillTokens(7, 8, 9)


@pytest.mark.parametrize(
    "metadata", [{PRE: 7, SUF: 8}, {PRE: 7, SUF: 8, MID: 10}, {PRE: 7, SUF: "8", MID: 9}]
)
def test_half_of_them_or_wrong_ones_are_none(metadata: dict[str, object]) -> None:
    assert infill_tokens({"<fim_prefix>": 1, "<fim_suffix>": 2}.get, metadata, 10) is None


def test_the_prompt_has_the_text_before_and_the_text_behind() -> None:
    assert InfillTokens(7, 8, 9).prompt([1], [2, 3], [4]) == [1, 7, 2, 3, 8, 4, 9]
