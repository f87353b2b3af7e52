"""`octavo doctor` says in words what would be used, and what to change."""

import pytest

from octavo.cli.doctor import run
from octavo.config import StartOptions


@pytest.mark.real_model
def test_the_budget_is_told_in_words_and_what_to_change(capsys):
    run(None, StartOptions(kv_memory_bytes=64 * 720 * 1024))
    said = " ".join(capsys.readouterr().out.split())
    assert "64 blocks of 16 tokens = 1,024 tokens = 45.0 MiB; 0 sequences of 3,000 tokens" in said
    assert "vocabulary 49,152, context 8,192" in said
    assert "--kv-memory 360 MiB" in said
    assert "held as f32; 720 KiB per block, 45.0 KiB per token" in said


@pytest.mark.real_model
def test_the_kind_of_kv_and_what_a_token_takes_are_told(capsys):
    run(None, StartOptions(kv="int8", kv_memory_bytes=64 * 720 * 1024))
    said = " ".join(capsys.readouterr().out.split())
    assert "3 KV heads of 64, held as int8; 192 KiB per block, 12.0 KiB per token" in said
