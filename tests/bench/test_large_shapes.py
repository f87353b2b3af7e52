"""Larger shapes are measured on files that are sound, mixed as llama.cpp mixes, and read by both programs."""

import collections
import dataclasses
import importlib
import json
import math
import os
import sys
import textwrap
from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.api.llm import LLM
from octavo.api.params import SamplingParams
from octavo.config import StartOptions
from octavo.model.families import FAMILIES

FOLDER = Path(__file__).parents[2] / "bench/compare"
NAMES = ("llama-3.2-1b", "gemma-3-4b", "qwen3-8b", "qwen3-30b-a3b")


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Import one of the scripts, as `python bench/compare/NAME.py` would find its neighbours."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OCTAVO_PEERS", str(tmp_path))
    yield importlib.import_module
    for name in ("peers", "large_shapes", "large_file", "watched", "large"):
        sys.modules.pop(name, None)


@pytest.fixture
def peer(tmp_path):
    """A stand-in for llama-batched-bench: it prints a table for what it is asked, on its standard error."""
    program = tmp_path / "llama/bin/llama-batched-bench"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}"
        + textwrap.dedent(
            """
            import sys
            asked = dict(zip(sys.argv[1::2], sys.argv[2::2]))
            columns = "PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s"
            def tell(cells):
                print("|" + "|".join(f" {cell:>8} " for cell in cells) + "|", file=sys.stderr)
            tell(columns)
            for count in asked["-npl"].split(","):
                fast = "inf" if asked["-ntg"] == "1" else f"{10.0 * int(count):.2f}"
                tell((asked["-npp"], asked["-ntg"], count, 0, 0.5, "800.00", "0.0", fast, 0, 1.0))
            """
        )
    )
    program.chmod(0o755)
    return program


def counts(tensors):
    return collections.Counter(tensor.kind for tensor in tensors)


def test_the_mix_has_as_many_tensors_of_each_kind_as_the_published_files(script):
    """The numbers that llama.cpp prints when it loads the Q4_K_M files that people download."""
    shapes = script("large_shapes")
    published = {
        "gemma-3-4b": {"F32": 205, "Q4_K": 204, "Q6_K": 35},
        "qwen3-8b": {"F32": 145, "Q4_K": 217, "Q6_K": 37},
        "qwen3-30b-a3b": {"F32": 241, "Q4_K": 289, "Q6_K": 49},
    }
    for name, expected in published.items():
        assert counts(shapes.tensors_of(shapes.SHAPES[name], "Q4_K_M")) == expected
    llama_3_8b = dataclasses.replace(
        shapes.SHAPES["llama-3.2-1b"], layers=32, tied=False, llama3_factor=0.0, ffn=14_336
    )
    assert counts(shapes.tensors_of(llama_3_8b, "Q4_K_M")) == {"F32": 65, "Q4_K": 193, "Q6_K": 33}


def test_sizes_are_those_of_the_models(script):
    shapes = script("large_shapes")
    weights = {
        name: sum(math.prod(tensor.shape) for tensor in shapes.tensors_of(shape, "Q4_K_M"))
        for name, shape in shapes.SHAPES.items()
    }
    assert {name: round(number / 1e9, 2) for name, number in weights.items()} == {
        "llama-3.2-1b": 1.24,
        "gemma-3-4b": 3.88,
        "qwen3-8b": 8.19,
        "qwen3-30b-a3b": 30.53,
    }
    experts = shapes.SHAPES["qwen3-30b-a3b"]
    assert 17.5 < shapes.file_bytes(experts, "Q4_K_M") / 1e9 < 19
    assert 3.0e9 < shapes.active_weights(experts, "Q4_K_M") < 3.4e9  # 3.3 less the embedding's 0.3
    one, many = (shapes.step_bytes(experts, "Q4_K_M", rows) for rows in (1, 1000))
    assert one < 0.13 * many
    dense = shapes.SHAPES["llama-3.2-1b"]
    assert shapes.step_bytes(dense, "Q4_K_M", 1) == shapes.file_bytes(dense, "Q4_K_M")  # tied: all is read


@pytest.mark.full
@pytest.mark.parametrize("mix", ["Q4_K_M", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_what_the_table_says_and_weights_of_one_spread(script, tmp_path, name, mix):
    shapes, large_file = script("large_shapes"), script("large_file")
    shape = shapes.tiny(shapes.SHAPES[name])
    path = tmp_path / "it.gguf"
    large_file.write_file(shape, mix, path)
    assert [each.name for each in tmp_path.glob("*.part")] == []
    reader = gguf.GGUFReader(path)
    expected = shapes.tensors_of(shape, mix)
    assert [tensor.name for tensor in reader.tensors] == [tensor.name for tensor in expected]
    assert path.stat().st_size < shapes.file_bytes(shape, mix) + 100_000
    for tensor, told in zip(reader.tensors, expected, strict=True):
        assert (tensor.tensor_type.name, tuple(reversed(tensor.shape.tolist()))) == (told.kind, told.shape)
        if len(told.shape) > 1:
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert weights.shape == told.shape
            assert np.isfinite(weights).all()
            assert 0.9 < weights.std() * math.sqrt(told.shape[-1]) < 1.1
            assert abs(weights.mean()) * math.sqrt(told.shape[-1]) < 0.15
            rows = weights.reshape(-1, told.shape[-1])
            assert np.unique(rows[:512], axis=0).shape[0] == min(512, rows.shape[0])


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_our_engine_answers_from_a_file_with_finite_logits(script, tmp_path, name):
    shapes, large_file = script("large_shapes"), script("large_file")
    shape = shapes.tiny(shapes.SHAPES[name])
    if shape.architecture not in FAMILIES:
        pytest.skip(f"no family {shape.architecture} yet")
    large_file.write_file(shape, "Q4_K_M", tmp_path / "it.gguf")
    options = StartOptions(backend="native", context_length=128, kv_memory_bytes=1 << 22, threads=1)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logprobs=4)
    prompts = [{"prompt_token_ids": list(range(100, 100 + count))} for count in (5, 50)]
    with LLM(tmp_path / "it.gguf", options) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for output in outputs:
        told = [entry.logprob for step in output.outputs[0].logprobs for entry in step.values()]
        assert len(output.outputs[0].token_ids) == 8
        assert np.isfinite(told).all()
        assert -8 < np.mean(told) < 0  # a thousand words, almost as likely: -6.9


@pytest.mark.full
def test_rope_factors_are_those_of_transformers(script):
    import transformers

    shapes, large_file = script("large_shapes"), script("large_file")
    shape = shapes.SHAPES["llama-3.2-1b"]
    scaling = {
        "rope_type": "llama3", "rope_theta": shape.theta, "factor": shape.llama3_factor,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = transformers.LlamaConfig(
        hidden_size=2048, num_attention_heads=32, max_position_embeddings=131_072, rope_parameters=scaling
    )
    rope = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    plain = shape.theta ** -(np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(plain / large_file.llama3_factors(shape), rope.inv_freq.numpy(), rtol=1e-5)


def test_a_file_that_does_not_fit_the_disk_is_not_begun(script, tmp_path, monkeypatch):
    shapes, large_file = script("large_shapes"), script("large_file")
    usage = collections.namedtuple("usage", "total used free")(0, 0, 5_000_000_000)
    monkeypatch.setattr(large_file.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(large_file.NoRoom, match=r"needs 6\.\d GB.*5\.0 GB are free"):
        large_file.write_file(shapes.SHAPES["qwen3-8b"], "Q4_K_M", tmp_path / "it.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_both_programs_are_measured_in_turns_and_figures_come_together_from_their_file(
    script, peer, tmp_path, monkeypatch, capsys
):
    large = script("large")
    monkeypatch.setattr(large.peers, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(large, "read_bandwidth", lambda threads: 20e9)
    words = ["--tiny", "--shape", "llama-3.2-1b", "--at-once", "1,2", "--prompt", "8", "--out", "4"]
    words += ["--prefill", "64", "--threads", "1", "--json", str(tmp_path / "figures.jsonl")]
    for more in (["--rounds", "1"], ["--rounds", "2", "--who", "llama.cpp", "--only", "prefill"]):
        monkeypatch.setattr(sys, "argv", ["large.py", *words, *more])
        large.main()
    capsys.readouterr()
    samples = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text().splitlines()]
    first = [(each["program"], each["what"], each["at"]) for each in samples[:6]]
    assert first == [
        ("machine", "read GB/s", "0"),
        ("octavo", "load s", "0 decode"),
        ("octavo", "decode C=1", "0 decode"),
        ("octavo", "decode C=2", "0 decode"),
        ("octavo", "peak GiB", "0 decode"),
        ("octavo", "own GiB", "0 decode"),
    ]
    assert all(each["value"] > 0 for each in samples if each["program"] == "octavo")
    theirs = {each["what"]: each["value"] for each in samples if each["program"] == "llama.cpp"}
    assert (theirs["decode C=1"], theirs["decode C=2"], theirs["prefill"]) == (10.0, 20.0, 800.0)
    monkeypatch.setattr(sys, "argv", ["large.py", "--report", str(tmp_path / "figures.jsonl")])
    large.main()
    told = capsys.readouterr().out
    assert "share of 20.0 GB/s C=1" in told
    assert told.count("tiny-llama-3.2-1b Q4_K_M") == 7


def test_a_ratio_pairs_the_runs_of_one_round_and_says_how_much_better_ours_is(script):
    large = script("large")

    def sample(program, what, at, value):
        return large.Sample("qwen3-8b", "Q4_K_M", program, what, at, value)

    samples = [sample("octavo", "prefill", at, value) for at, value in (("0", 40.0), ("1", 20.0))]
    samples += [sample("llama.cpp", "prefill", at, value) for at, value in (("0", 10.0), ("1", 20.0))]
    samples += [sample("octavo", "load s", "0", 4.0), sample("llama.cpp", "load s", "0", 2.0)]
    rows = {line.split("  ")[1].strip(): line.split() for line in large.table_of(samples).splitlines()[2:]}
    assert rows["prefill"][-3:] == ["30.00", "15.00", "2.50x"]  # the median of 4 and 1
    assert rows["load s"][-3:] == ["4.00", "2.00", "0.50x"]


def test_order_turns_round_with_each_round(script, tmp_path, monkeypatch):
    large = script("large")
    monkeypatch.setattr(large.peers, "busy_cores", lambda: 0.0)
    monkeypatch.setattr(large, "read_bandwidth", lambda threads: 0.0)
    monkeypatch.setattr(
        large, "run_part", lambda shape, path, setup, part, program: [(f"{part} of {program}", 1.0)]
    )
    setup = large.Setup(("decode", "prefill"), (1,), 8, 4, 64, 1, "bf16", ("a", "b"), False)
    shape = large.SHAPES["qwen3-8b"]
    told = [sample.what for sample in large.measured(shape, "Q4_K_M", tmp_path, setup, 2)]
    assert [what.split()[-1] for what in told] == ["a", "b", "a", "b", "b", "a", "b", "a"]


def test_memory_that_was_given_back_counts_in_the_peak(script, capsys, tmp_path, monkeypatch):
    """The program ends when its memory was looked at after it had given that back."""
    given_back, end = tmp_path / "given back", tmp_path / "end"
    os.mkfifo(end)
    may_end = os.open(end, os.O_RDWR)
    plain = script("watched")._MemorySampler._look

    def look(watch):
        is_last = given_back.exists()
        plain(watch)
        if is_last:
            os.write(may_end, b".")

    code = "import sys; held = bytearray(96 << 20); del held; print('let go', flush=True)"
    code += "; open(sys.argv[1], 'w').close(); open(sys.argv[2], 'rb', 0).read(1)"
    with monkeypatch.context() as patched:
        patched.setattr(script("watched")._MemorySampler, "_look", look)
        run = script("watched").watched_run([sys.executable, "-c", code, given_back, end], "it")
    os.close(may_end)
    assert [line.text for line in run.lines] == ["let go"]
    assert 96 << 20 < run.peak_bytes < 400 << 20
    assert 0 < run.lines[0].at_s < run.seconds
    assert (
        script("watched").watched_run([sys.executable, "-c", "raise SystemExit('no such kind')"], "it")
        is None
    )
    assert script("watched").watched_run(["/nowhere/program"], "it") is None
    assert "left out: exit status 1: no such kind" in capsys.readouterr().err
