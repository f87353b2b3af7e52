"""`octavo doctor` answers from headers: whether a model runs and fits, how fast, and what would help."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
from tests.model.checkpoints import checkpoint, save_checkpoint
from tests.model.gguf_bench import write_model

from octavo.cli.doctor_headers import Diagnosis, diagnose_files, diagnosis_json
from octavo.config import StartOptions
from octavo.engine.backends import BackendChoice
from octavo.executor.backend import HostBackend
from octavo.kernels.native_ops import NativeOps
from octavo.model.hub.paths import ModelPath

MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelPath:
    return save_checkpoint("mistral-window", tmp_path_factory.mktemp("model"))


def ask(path: ModelPath, options: StartOptions, available: int) -> Diagnosis:
    """On a machine with so much memory, which reads 1,000,000 bytes a second."""
    backend = HostBackend("native", NativeOps(options.weights), lambda: available)
    return diagnose_files(path, options, BackendChoice(backend, "given"), lambda: 1e6)


def test_a_model_that_fits_is_reported_with_its_memory_users_and_speed(folder: ModelPath) -> None:
    found = ask(folder, StartOptions(kv="f32"), 16 * MEBIBYTE)
    said = dict(found.lines)
    assert found.fit is not None
    assert found.fit.fits
    assert said["runs"] == "yes"
    assert said["fits"].startswith("yes: weights and one user, ")
    # 3 layers of 2 KV heads of 16: K and V in float32 take 768 bytes, and blocks whole pages of 4 KiB.
    assert said["KV"].endswith("held as f32; 12.0 KiB per block, 768 B per token")
    weights = found.fit.model.weights
    assert said["speed"].startswith(f"at most {1e6 / (weights.num_bytes - weights.embedding.num_bytes):.1f} ")
    blocks = (16 * MEBIBYTE - found.fit.model.num_bytes) // 4 // (12 * 1024)
    assert said["users"] == f"{blocks // 8:,} of the whole context of 128 at once"


def test_a_token_reads_the_keys_and_values_that_it_sees(folder: ModelPath) -> None:
    fit = ask(folder, StartOptions(kv="f32"), 16 * MEBIBYTE).fit
    assert fit is not None
    assert fit.kv_read(5) == 5 * 768
    assert fit.kv_read(100) == 8 * 768  # all three layers see 8 positions
    read = fit.model.bytes_read_for_a_token
    assert fit.tokens_per_s(1e6, 100) == 1e6 / (read + 8 * 768)


def test_what_windows_waste_is_reported(folder: ModelPath) -> None:
    said = dict(ask(folder, StartOptions(kv="f32"), 16 * MEBIBYTE).lines)
    # Of 128 positions all three layers read the last 8.
    assert said["windows"] == (
        "3 of 3 layers see 8 positions and keep all: a sequence of 128 tokens wastes 90.0 KiB of its "
        "96.0 KiB of K and V (94%)"
    )


def test_what_does_not_fit_is_reported_with_what_would_make_it_fit(folder: ModelPath) -> None:
    roomy = ask(folder, StartOptions(weights="f32"), 16 * MEBIBYTE).fit
    assert roomy is not None
    found = ask(folder, StartOptions(weights="f32"), roomy.model.num_bytes + 8 * 1024)
    assert found.fit is not None
    assert not found.fit.fits
    assert dict(found.lines)["fits"].startswith("no: weights and one user, ")
    q4 = next(line for line in found.advice if line.startswith("--weights q4:"))
    assert "it fits; weights " in q4
    assert not any("none of these" in line for line in found.advice)


def test_the_largest_tensor_is_needed_alongside_the_weights_while_they_load(
    folder: ModelPath, tmp_path: Path
) -> None:
    path = save_checkpoint("llama-wide", tmp_path)  # whose largest tensor has 512 KiB
    roomy = ask(path, StartOptions(), 16 * MEBIBYTE).fit
    assert roomy is not None
    assert roomy.model.largest_tensor_bytes == 512 << 10 > roomy.kv_needed
    assert roomy.needed == roomy.model.num_bytes + roomy.model.largest_tensor_bytes
    found = ask(path, StartOptions(), roomy.needed - 1)
    assert found.fit is not None
    assert found.fit.budget is not None, "there would be room for K and V"
    assert not found.fit.fits
    assert "largest tensor while they load" in dict(found.lines)["fits"]
    other = ask(folder, StartOptions(), 16 * MEBIBYTE).fit
    assert other is not None
    assert other.kv_needed > other.model.largest_tensor_bytes
    assert other.needed == other.model.num_bytes + other.kv_needed


def test_what_nothing_makes_fit_is_reported(folder: ModelPath) -> None:
    found = ask(folder, StartOptions(), 16 * 1024)
    assert found.fit is not None
    assert not found.fit.fits
    assert dict(found.lines)["blocks"].startswith("none: ")
    assert found.advice[-1].startswith("it fits with none of these")


def test_advice_is_what_the_settings_come_to(folder: ModelPath) -> None:
    now = ask(folder, StartOptions(weights="f32", kv="bf16"), 16 * MEBIBYTE)
    then = ask(folder, StartOptions(weights="q4", kv="bf16"), 16 * MEBIBYTE)
    line = next(line for line in now.advice if line.startswith("--weights q4:"))
    assert dict(then.lines)["users"].removesuffix(" at once") in line
    assert dict(then.lines)["speed"].partition(" for one")[0] in line
    assert not any(line.startswith("--weights") for line in then.advice)


def test_a_model_in_bf16_gets_what_int8_gives(folder: ModelPath) -> None:
    wide, now, then = (
        ask(folder, StartOptions(weights=kind, kv="f32"), 16 * MEBIBYTE) for kind in ("f32", "bf16", "int8")
    )
    line = next(line for line in now.advice if line.startswith("--weights int8:"))
    assert dict(then.lines)["speed"].partition(" for one")[0] in line
    assert "KL divergence from float32" in line
    assert not any("--weights int8" in line for line in [*wide.advice, *then.advice])


def test_a_short_pool_gets_how_to_hold_one_context(folder: ModelPath) -> None:
    found = ask(folder, StartOptions(kv="f32", kv_memory_bytes=7 * 12 * 1024), 16 * MEBIBYTE)
    assert found.fit is not None
    assert found.fit.users(128) == 0
    assert any(line.startswith("--kv-memory 1MiB: ") for line in found.advice)


def test_the_part_that_does_not_run_is_named(folder: ModelPath, tmp_path) -> None:
    path = save_checkpoint("llama", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    found = ask(path, StartOptions(), 16 * MEBIBYTE)
    assert found.fit is None
    assert found.lines[0] == ("runs", "no, because of its tokenizer")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    found = ask(path, StartOptions(), 16 * MEBIBYTE)
    assert found.lines[0] == ("runs", "no, because of its settings, tokenizer")
    assert "'mamba'; allowed: " in found.lines[1][1]


def test_scripts_are_reported_the_same_as_values(folder: ModelPath, tmp_path: Path) -> None:
    found = ask(folder, StartOptions(weights="f32"), 16 * MEBIBYTE)
    told = json.loads(json.dumps(diagnosis_json(found)))
    assert found.fit is not None
    assert (told["runs"], told["fits"], told["problems"]) == (True, True, [])
    assert told["settings"]["weight_bytes_by_kind"] == {"F32": found.fit.model.weights.num_bytes}
    assert told["settings"]["tokens_per_s"] == found.fit.tokens_per_s(1e6)
    assert [other["flags"] for other in told["others"]] == ["--weights q4", "--kv int8"]
    save_checkpoint("llama", tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    told = diagnosis_json(ask(ModelPath("tiny", tmp_path, "safetensors"), StartOptions(), 16 * MEBIBYTE))
    assert (told["runs"], told["fits"], told["settings"]) == (False, False, None)
    assert "tokenizer" in str(told["problems"])


def test_a_guess_of_the_tokenizer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_tokenizer_pre", lambda file, name: None)
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf")
    found = ask(path, StartOptions(), 16 * MEBIBYTE)
    assert any("how texts are cut" in line for line in found.advice)


def test_a_model_without_a_template_refuses_chats(folder: ModelPath) -> None:
    assert any("--chat-template" in line for line in ask(folder, StartOptions(), 16 * MEBIBYTE).advice)
    given = StartOptions(chat_template="chatml")
    assert not any("--chat-template" in line for line in ask(folder, given, 16 * MEBIBYTE).advice)
