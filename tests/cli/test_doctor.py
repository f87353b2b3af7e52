"""`octavo doctor` says in words what would be used, and what to change."""

import json

import pytest
from tests.tiny import over_weights_of, tiny_model

from octavo.cli.doctor import packed_lines, run
from octavo.cli.doctor_headers import describe_weights
from octavo.config import StartOptions
from octavo.kernels.native_ops import NativeOps


def test_the_weights_are_reported_kind_by_kind():
    weights = tiny_model(over_weights_of("Q4_K", NativeOps())).weights
    sizes = weights.bytes_by_kind
    assert list(sizes) == ["Q4_K", "Q8_0"]  # the most first
    assert sum(sizes.values()) == weights.num_bytes
    assert describe_weights(weights, "auto") == "309 KiB with --weights auto: Q4_K 275 KiB, Q8_0 34.0 KiB"


@pytest.mark.real_model
def test_the_budget_is_reported_in_words_and_what_to_change(capsys):
    run(None, StartOptions(weights="f32", kv="f32", kv_memory_bytes=64 * 720 * 1024), load=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "64 blocks of 16 tokens = 1,024 tokens = 45.0 MiB; 0 sequences of 3,000 tokens" in said
    assert "vocabulary 49,152, context 8,192" in said
    assert "--kv-memory 360 MiB" in said
    assert "576 numbers, --pooling last" in said
    assert "held as f32; 720 KiB per block, 45.0 KiB per token" in said
    assert "with --weights f32: F32 513 MiB" in said


@pytest.mark.real_model
def test_the_kind_of_kv_and_what_a_token_takes_are_reported(capsys):
    run(None, StartOptions(weights="f32", kv="int8", kv_memory_bytes=64 * 720 * 1024), load=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "3 KV heads of 64, held as int8; 192 KiB per block, 12.0 KiB per token" in said


@pytest.mark.real_model
def test_what_a_loaded_model_came_to_is_reported_as_json_too(capsys):
    assert run(None, StartOptions(kv_memory_bytes=64 * 720 * 1024), load=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert "smollm2-135m" in json.dumps(told)


def test_packed_weights_are_reported_where_they_lie_and_how_large_they_are(tmp_path):
    own, other = tmp_path / "a-1.packed", tmp_path / "b-1.packed"
    assert packed_lines(tmp_path, own, False)[0][1].startswith("off: --packed-cache")
    assert "nothing yet" in packed_lines(tmp_path, own, True)[1][1]
    own.write_bytes(bytes(2048))
    other.write_bytes(bytes(4096))
    lines = packed_lines(tmp_path, own, True)
    assert str(tmp_path) in lines[0][1]
    assert lines[1][1].startswith(f"{own}: 2.0 KiB, last used")
    assert lines[2][1].startswith(f"{other}: 4.0 KiB, last used")
