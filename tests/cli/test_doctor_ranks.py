"""`octavo doctor -tp N` says what each rank would have, from headers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.model.checkpoints import save_checkpoint

from octavo.cli.doctor import run
from octavo.cli.doctor_ranks import gathers_of
from octavo.config import StartOptions
from octavo.engine import backends
from octavo.errors import ConfigError
from octavo.kernels.reference import ReferenceOps
from octavo.model.loader import check_tables, load_model
from octavo.model.split import Split
from octavo.units import format_bytes

CPU = {"backend": "torch", "device": "cpu"}


def test_each_ranks_weights_are_those_that_it_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_checkpoint("qwen3_moe", tmp_path)
    options = StartOptions(tensor_parallel_size=2, kv_memory_bytes=1 << 20, **CPU)  # type: ignore[arg-type]
    run(str(tmp_path), options, as_json=True)
    told = {line["name"]: line["text"] for line in json.loads(capsys.readouterr().out)["ranks"]}
    for rank in range(2):
        part = load_model(path, ReferenceOps(), split=Split(rank, 2)).model
        held = part.weights.num_bytes + check_tables(path, part.spec, part.weights.num_bytes)
        assert told[f"rank {rank}"].startswith(f"weights {format_bytes(held)}, ")
        assert "blocks (" in told[f"rank {rank}"]
    assert {"1 position", "32 positions", "512 positions"} <= told.keys()


def test_missing_devices_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint("llama", tmp_path)
    monkeypatch.setattr(backends, "_find_obstacle", lambda: "there is none")
    assert not run(str(tmp_path), StartOptions(tensor_parallel_size=2))
    assert "missing: cuda:0 to cuda:1: there is none" in capsys.readouterr().out


def test_a_number_that_does_not_divide_the_heads_is_refused_with_those_that_do(tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    with pytest.raises(ConfigError, match=r"4 query heads and 2 KV heads.*allowed: 1, 2, 4"):
        run(str(tmp_path), StartOptions(tensor_parallel_size=3))


def test_what_a_step_gathers_grows_with_its_positions(tmp_path: Path) -> None:
    spec = load_model(save_checkpoint("llama", tmp_path), ReferenceOps()).model.spec
    one, many = (gathers_of(spec, 2, positions, 2) for positions in (1, 32))
    assert one.count == many.count == 4 * spec.num_layers + 4
    assert many.num_bytes == 32 * one.num_bytes
    assert many.seconds("PCIe") > one.seconds("PCIe") > one.seconds("NVLink")


@pytest.mark.parametrize("given", [{"backend": "native"}, {"backend": "reference"}, {"attention": "flash"}])
def test_what_ranks_do_not_know_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size is 2, and"):
        StartOptions(tensor_parallel_size=2, **given)  # type: ignore[arg-type]


def test_a_processor_without_torch_asked_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size is 2, and no GPU is used here"):
        backends.choose_backend(StartOptions(tensor_parallel_size=2, device="cpu"))
