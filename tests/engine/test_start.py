"""What a server does before it serves."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.engine.chats import PairTokenizer
from tests.engine.served import read
from tests.engine.test_sessions import HELLO
from tests.model.checkpoints import save_checkpoint
from tests.tiny import tiny_model
from tests.wanted import request_for

from octavo.cli import serve
from octavo.config import StartOptions
from octavo.engine.available import available_memory
from octavo.engine.offload import OffloadStores, open_stores
from octavo.errors import ConfigError, TenantsRefused
from octavo.executor.backend import HostBackend
from octavo.executor.runner import Runner
from octavo.kernels.contract import KvShape
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_layer
from octavo.memory.quota import TenantPolicy
from octavo.model.loader import LoadedModel
from octavo.params import SamplerParams
from octavo.retention.transfers import Transfers
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.serving import start as start_module
from octavo.serving.client import EngineClient
from octavo.serving.start import (
    Budget,
    build_engine,
    check_template,
    client_of,
    engine_over,
    ready_blocks,
    start_engine,
)
from octavo.text.chat import ChatTemplate
from octavo.types import ChatMessage


def host_backend(ops: NativeOps) -> HostBackend:
    return HostBackend("native", ops, available_memory)


def start(folder: Path, *policies: TenantPolicy, is_shared: bool = False, **given: object) -> EngineClient:
    ops = NativeOps()
    model = tiny_model(ops)
    model = replace(model, spec=replace(model.spec, context_length=512))
    memory = {"kv_memory_bytes": 4 << 20, "disk_cache": str(folder), "disk_size_bytes": 16 << 20}
    options = StartOptions(kv="f32", max_seqs=8, **memory, **given)  # type: ignore[arg-type]
    loaded = LoadedModel(model, PairTokenizer())  # type: ignore[arg-type]
    policies_of = None if is_shared else lambda size: policies  # no tenants: a server without a file of them
    return client_of(engine_over(loaded, host_backend(ops), options, policies_of), options)


async def chat(llm: EngineClient, text: str) -> str:
    """A session of tenant "t", whose turn has ended and which is suspended."""
    params = SamplerParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    turn = await llm.sessions.turn(
        request_for((), params, tenant="t", session="new"), [ChatMessage("user", text)]
    )
    await read(turn.stream)
    view = await llm.sessions.suspend("t", turn.session_id)
    assert view.blocks.kept == 4
    return turn.session_id


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (TenantPolicy("t"), [4, 4]),
        (TenantPolicy("t", disk_maximum=6), [0, 4]),
        (TenantPolicy("t", session_maximum=3), [0, 0]),
    ],
)
def test_sessions_are_found_again_within_their_tenants_bounds(
    tmp_path: Path, policy: TenantPolicy, kept: list[int]
) -> None:
    async def before() -> list[str]:
        llm = start(tmp_path)
        try:
            return [await chat(llm, HELLO), await chat(llm, HELLO[::-1])]
        finally:
            llm.close()

    async def after(ids: list[str]) -> None:
        llm = start(tmp_path, policy)
        try:
            views = [await llm.sessions.find("t", session_id) for session_id in ids]
            assert [view.blocks.kept for view in views] == kept, "the one that was used last comes first"
            for view in views:
                is_refused = any(
                    words in view.blocks.note for words in ("of at most 6 blocks", "may keep 3 blocks")
                )
                assert is_refused == (view.blocks.kept == 0)
        finally:
            llm.close()

    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        asyncio.run(asyncio.wait_for(after(asyncio.run(asyncio.wait_for(before(), 60))), 60))


def test_a_block_lies_on_disk_in_a_piece_for_each_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[OffloadStores | None] = []
    monkeypatch.setattr(
        start_module, "open_stores", lambda *given: opened.append(open_stores(*given)) or opened[-1]
    )
    start(tmp_path).close()
    assert opened[0] is not None
    extents = opened[0].store.extents
    assert extents is not None
    assert (extents.pieces, extents.piece_bytes) == (2, bytes_per_layer(KvShape(2, 2, 16, 16, "f32")))


def test_serve_gives_the_engine_its_tenants_before_anything_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started(Exception):
        pass

    given: list[Callable[[int], Sequence[TenantPolicy]]] = []

    def start_engine(*arguments: Any) -> None:
        given.append(arguments[3])
        raise Started

    path = tmp_path / "tenants.toml"
    path.write_text(f'[[tenant]]\nname = "t"\nkey_sha256 = "{"0" * 64}"\nmaximum = 5\n')
    monkeypatch.setattr("octavo.serving.start.start_engine", start_engine)
    before = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(Started):
            serve.run(None, StartOptions(), ServerSettings(port=0, roster=TenantRegistry(path)))
    finally:
        signal.signal(signal.SIGHUP, before)
    [policies_of] = given
    assert policies_of(4096) == (TenantPolicy("t", maximum=5),)


@pytest.mark.parametrize(
    ("asked", "available", "ready"),
    [
        (0, 1 << 30, 0),
        (1000 << 10, 1 << 30, 10),
        (1 << 30, 1 << 30, 50),  # all there are
        (1 << 30, (1 << 20) + (600 << 10), 3),  # half of what nobody else shall have
        (1 << 30, 1 << 19, 0),
    ],
)
def test_memory_that_is_taken_at_start_leaves_others_theirs(asked: int, available: int, ready: int) -> None:
    budget = Budget(50, 16, 100 << 10, "", 60)
    options = StartOptions(kv_ready_bytes=asked, memory_reserve_bytes=1 << 20)
    assert ready_blocks(budget, options, available) == ready


def test_blocks_that_are_ready_count_as_resident_and_go_back_like_others() -> None:
    ops = NativeOps()
    loaded = LoadedModel(tiny_model(ops), PairTokenizer())  # type: ignore[arg-type]
    options = StartOptions(
        kv="f32", kv_memory_bytes=4 << 20, kv_ready_bytes=1 << 20, max_seqs=8, memory_reserve_bytes=0
    )
    started = engine_over(loaded, host_backend(ops), options)
    engine = started.engine
    expected = (1 << 20) // started.budget.bytes_per_block
    assert engine.scheduler.ledger.pool.backing.count == expected > 10
    engine.scheduler.idle_memory.give_back()
    engine.step()
    assert engine.scheduler.ledger.pool.backing.count == 0
    assert started.runner.forward.readying._stopping.is_set()  # before the memory went back: it stays there
    engine.executor.close()


class BrokenTokenizer(PairTokenizer):
    """Its template refuses every chat."""

    chat_template = ChatTemplate("{{ raise_exception('I never chat') }}")

    def start_threads(self) -> None:
        pass


def test_a_broken_template_is_reported_at_start_and_the_server_starts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ops, told = NativeOps(), threading.Event()
    options = StartOptions(kv="f32", kv_memory_bytes=4 << 20, max_seqs=8)
    loaded = LoadedModel(tiny_model(ops), BrokenTokenizer())  # type: ignore[arg-type]
    started = engine_over(loaded, host_backend(ops), options)
    monkeypatch.setattr("octavo.serving.start.build_engine", lambda *given: started)
    monkeypatch.setattr(logging.getLogger("octavo.start"), "warning", lambda *given: told.set())
    llm = start_engine(None, options, lambda text: None)
    try:
        assert told.wait(30)
        assert asyncio.run(llm.encode("ab"))
    finally:
        llm.close()
    monkeypatch.undo()
    check_template(loaded.tokenizer)
    assert "the model's chat template refuses these messages: I never chat" in caplog.text
    assert "will be refused" in caplog.text


def test_a_sound_template_and_none_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    check_template(SilentTokenizer())  # type: ignore[arg-type]
    check_template(PairTokenizer())  # type: ignore[arg-type]
    assert caplog.text == ""


class SilentTokenizer(PairTokenizer):
    """It has no template."""

    chat_template = None


def test_the_first_request_of_a_tenant_is_sized_by_its_bounds_before_any_step() -> None:
    ops = NativeOps()
    loaded = LoadedModel(tiny_model(ops), PairTokenizer())  # type: ignore[arg-type]
    options = StartOptions(kv="f32", kv_memory_bytes=4 << 20, max_seqs=8, memory_reserve_bytes=0)
    bounds = TenantPolicy("t", request_maximum=3)
    engine = engine_over(loaded, host_backend(ops), options, lambda size: [bounds]).engine
    assert engine.scheduler.room.hard.room("t") == 3


@pytest.mark.parametrize("fails", ["bounds", "sessions", "attach"])
def test_a_start_that_fails_behind_the_runner_leaves_no_thread_and_no_lock(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, policies = ConfigError("no"), [TenantPolicy("t", guaranteed=10**6)]
    if fails != "bounds":
        name, policies = {"sessions": "open_sessions", "attach": "attach"}[fails], []
        monkeypatch.setattr(start_module, name, mock.Mock(side_effect=error))
    before = set(threading.enumerate())
    with pytest.raises((ConfigError, TenantsRefused)):
        start(tmp_path, *policies)
    assert set(threading.enumerate()) == before
    monkeypatch.undo()
    start(tmp_path).close()


def test_a_start_that_is_interrupted_leaves_no_thread_and_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def build(*_given: object) -> object:
        ops = NativeOps()
        loaded = LoadedModel(tiny_model(ops), SilentTokenizer())  # type: ignore[arg-type]
        options = StartOptions(kv="f32", kv_memory_bytes=4 << 20, disk_cache=str(tmp_path), max_seqs=8)
        options = replace(options, disk_size_bytes=16 << 20)
        begun.append(engine_over(loaded, host_backend(ops), options))
        return begun[-1]

    monkeypatch.setattr(start_module, "build_engine", build)
    monkeypatch.setattr(PairTokenizer, "start_threads", lambda self: None, raising=False)
    monkeypatch.setattr(PairTokenizer, "close", lambda self: None, raising=False)
    monkeypatch.setattr(Runner, "wait_ready", mock.Mock(side_effect=KeyboardInterrupt))
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        start_engine(None, StartOptions(), lambda text: None)
    assert len(begun) == 1
    assert {thread for thread in threading.enumerate() if thread.name != "octavo-template"} <= before
    monkeypatch.undo()
    start(tmp_path).close()


@pytest.mark.parametrize("weights, is_told", [("bf16", True), ("f32", False), ("int8", False)])
def test_a_start_in_bf16_shows_what_int8_gives(
    weights: str, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint("mistral-window", tmp_path)
    options = StartOptions(weights=weights, kv="f32", kv_memory_bytes=1 << 20)
    with caplog.at_level(logging.INFO, "octavo.start"):
        build_engine(str(tmp_path), options, lambda text: None).engine.executor.close()
    told = [line for line in caplog.messages if "--weights int8: weights 109 KiB instead of 204 KiB" in line]
    assert len(told) == is_told


def test_shed_without_a_target_is_refused() -> None:
    ops = NativeOps()
    loaded = LoadedModel(tiny_model(ops), PairTokenizer())  # type: ignore[arg-type]
    options = StartOptions(kv="f32", kv_memory_bytes=4 << 20, max_seqs=8, memory_reserve_bytes=0, shed=True)
    with pytest.raises(ConfigError, match="allowed: with --target-ttft TIME"):
        engine_over(loaded, host_backend(ops), options)
