"""An engine over mapped weights: the setting, and what the system wrongly counts as free memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.chats import PairTokenizer
from tests.tiny import tiny_model

from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.executor.backend import HostBackend
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.model.loader import LoadedModel
from octavo.serving.start import engine_over, packed_folder, size_pool


def host(name: str, ops: NativeOps | ReferenceOps, available: int = 1 << 30) -> HostBackend:
    return HostBackend(name, ops, lambda: available)


@pytest.mark.parametrize(
    "given", [{"backend": "torch"}, {"backend": "reference"}, {"device": "cuda"}, {"device": "cuda:1"}]
)
def test_packed_weights_are_refused_with_a_backend_that_has_none(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"packed_cache is on, .* --backend native"):
        StartOptions(packed_cache=True, **given)  # type: ignore[arg-type]


def test_packed_weights_are_refused_where_auto_finds_another_backend() -> None:
    with pytest.raises(ConfigError, match="the backend is reference; allowed with it: off"):
        packed_folder(StartOptions(packed_cache=True), host("reference", ReferenceOps()))


def test_packed_weights_lie_in_the_cache_folder_by_arithmetic(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    ops = NativeOps("q4")
    assert packed_folder(StartOptions(), host("native", ops)) is None
    found = packed_folder(StartOptions(packed_cache=True), host("native", ops))
    assert found is not None
    assert found.folder == tmp_path / "packed"
    assert f"-{ops.arithmetic_id}-" in found.path_of(b"\1" * 32).name


def test_mapped_weights_are_not_counted_as_memory_to_be_had() -> None:
    ops = NativeOps()
    model, options = tiny_model(ops), StartOptions(max_seqs=4096)
    apart = LoadedModel(model, None)  # type: ignore[arg-type]
    mapped = LoadedModel(model, None, mapped_bytes=(1 << 30) - (16 << 20))  # type: ignore[arg-type]
    backend = host("native", ops)
    whole, less = size_pool(apart, backend, options), size_pool(mapped, backend, options)
    assert less.num_bytes <= (16 << 20) // 4 < whole.num_bytes
    assert less.capacity * less.bytes_per_block <= 16 << 20


def test_memory_is_watched_without_what_mapped_weights_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.serving.start.available_memory", lambda: 3 << 30)
    loaded = LoadedModel(tiny_model(NativeOps()), PairTokenizer(), mapped_bytes=1 << 30)  # type: ignore[arg-type]
    options = StartOptions(kv_memory_bytes=4 << 20, max_seqs=8)
    started = engine_over(loaded, host("native", NativeOps()), options)
    watch = started.engine._watch
    assert watch is not None
    assert watch._read() == 2 << 30
    started.engine.executor.close()
