"""The scripts that run the peers read what those print, and set ours against it."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "bench/compare"
TOLD = """
Mean PPL(Q)                   :  13.102438 ±   1.118398
Mean    KLD:   0.004015 ±   0.000110
99.9%   KLD:   0.026240
99.0%   KLD:   0.016881
Same top p: 95.686 ± 0.636 %
"""


@pytest.fixture
def script(monkeypatch):
    """Import one of the scripts, as `python bench/compare/NAME.py` would find its neighbours."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("peers", "quality", "speed"):
        sys.modules.pop(name, None)


def test_the_peers_divergence_is_read(script):
    line = script("quality").parsed(TOLD, "Q8_0", "Q8_0")
    assert (line.perplexity, line.divergence_mean, line.divergence_p99) == (13.102438, 0.004015, 0.016881)
    assert line.top1_agreement == pytest.approx(0.95686)
    assert script("quality").parsed(TOLD.replace("99.0%", "98.0%"), "Q8_0", "Q8_0") is None


def test_files_are_made_as_mixes_or_with_one_tensor_in_a_kind_of_its_own(script, tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_PEERS", str(tmp_path))
    quality = script("quality")
    folder = tmp_path / "models/quality"
    assert quality.path_of("Q4_K_M") == folder / "smollm2-Q4_K_M.gguf"
    assert quality.path_of("ffn_down=q4_k") == folder / "smollm2-ffn_down-q4_k.gguf"
    assert quality.path_of("Q8_0") == tmp_path / "models/smollm2-Q8_0.gguf"
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    mix, alone = (quality.quantize_command(file, source, target) for file in ("Q2_K", "ffn_down=q2_k"))
    assert mix[1:] == ["--allow-requantize", source, target, "Q2_K"]
    assert alone[1:] == ["--allow-requantize", "--tensor-type", "ffn_down=q2_k", source, target, "Q8_0"]


def test_a_divergence_over_the_allowed_one_is_marked(script):
    quality = script("quality")

    def line(program, file, divergence):
        return quality.Line(program, file, "150 Q5_0, 30 Q4_K; KV f16", 13.0, divergence, 0.1, 0.95)

    lines = [line("octavo", "A", 0.0103), line("llama.cpp", "A", 0.0100)]
    lines += [line("octavo", "B", 0.0104), line("llama.cpp", "B", 0.0100), line("llama.cpp", "C", 0.01)]
    a, b, c = quality.table_of(lines).splitlines()[2:]
    assert a.endswith("1.030")
    assert b.endswith("1.040, over 1.03")
    assert " ".join(c.split()) == "C 150 Q5_0, 30 Q4_K - - - - 13.000 0.01000 0.1000 95.0% -"


def test_each_program_s_lines_become_the_same_cases(script):
    speed = script("speed")
    ours = {
        "workload": {"concurrency": 8},
        "output_tokens_per_s": 100.0,
        "prefill_tokens_per_s": 400.0,
    }
    assert speed.our_case(ours, "W1") == {"W1 C=8": 100.0}
    assert speed.our_case(ours, "W2") == {"W2": 100.0}
    assert speed.our_case(ours, "prefill") == {"prefill": 400.0}
    assert speed.our_case({"engine": {}}, "W1") == {}
    assert speed.llama_case({"pl": 8, "t": 10.24, "speed_pp": 300.0}, "W1", speed.W1()) == {"W1 C=8": 100.0}
    assert speed.llama_case({"pl": 1, "t": 1.0, "speed_pp": 300.0}, "prefill", speed.W1()) == {
        "prefill": 300.0
    }
    theirs = {"conc": 8, "n": 4, "out_tok_s": 0.2, "s": 20.48}
    assert speed.script_case(theirs, "W1") == {"W1 C=8": 0.2}
    assert speed.script_case(theirs, "prefill") == {"prefill": 400.0}
    assert speed.script_case({"case": "load", "s": 3.0}, "W1") == {}


def test_a_ratio_is_taken_within_a_round(script):
    speed = script("speed")

    def sample(name, index, value):
        return speed.Sample("f32", "W2", name, index, value, 0.0)

    samples = [sample("octavo", i, value) for i, value in enumerate((10.0, 40.0, 30.0))]
    samples += [sample("it", i, value) for i, value in enumerate((10.0, 10.0, 15.0))]
    ours, it = speed.summarise(samples)
    assert (ours.contestant, ours.median, ours.ratio) == ("octavo", 30.0, None)
    assert (it.median, it.lowest, it.highest, it.rounds) == (10.0, 10.0, 15.0, 3)
    assert it.ratio == 2.0  # of 1, 4 and 2
    assert "2.00" in speed.table_of([ours, it])


def test_programs_that_are_missing_or_fail_are_left_out_with_a_line(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OCTAVO_PEERS", str(tmp_path))
    speed, peers = script("speed"), script("peers")
    assert speed.llama_speeds(tmp_path / "no.gguf", "W1", (1,), speed.W1()) == {}
    assert speed.script_speeds("vllm", (), "W1", (1,), speed.W1()) == {}
    quality = script("quality")
    text = quality.Text(tmp_path / "text", 1, 1, "f16")
    assert quality.write_llama_base(text) is False
    assert quality.llama_line("Q8_0", text) is None
    assert list(quality.our_lines("ffn_down=q4_k", text)) == []
    assert peers.run_rows([sys.executable, "-c", "raise SystemExit(3)"], "it") == []
    assert peers.run_rows([tmp_path / "nothing"], "it") == []
    assert capsys.readouterr().err.count("left out") == 7


def test_json_lines_are_found_among_others(script):
    code = f"print('noise'); print({json.dumps(json.dumps({'a': 1}))}); print('{{half')"
    assert script("peers").run_rows([sys.executable, "-c", code], "it") == [{"a": 1}]


def test_a_busy_machine_is_called_busy(script):
    peers = script("peers")
    assert peers.idle_in_words(0.02).startswith("machine idle")
    assert "NOT IDLE" in peers.idle_in_words(0.5)


def test_every_class_has_us_first_and_its_own_peers(script):
    speed = script("speed")
    contests = speed.contests_of("", speed.W1())
    names = {precision: [each.name for each in those] for precision, those in contests.items()}
    assert names == {
        "f32": ["octavo", "vllm", "llama.cpp F32", "transformers"],
        "bf16": ["octavo", "vllm"],
        "8-bit": ["octavo", "llama.cpp Q8_0", "openvino Q8_0"],
        "4-bit": ["octavo", "llama.cpp Q4_0", "llama.cpp Q4_1", "openvino Q4_1"],
    }
