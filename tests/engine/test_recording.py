"""What a scheduler was given, in a file; and the same again, without a model."""

from __future__ import annotations

import asyncio
import random
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from tests.engine.chats import BLOCK_BYTES
from tests.engine.served import POISON, LetterTokenizer, Turnstile, poisoned_model, read
from tests.engine.test_client import greedy, prompt_of
from tests.engine.test_sessions import HELLO
from tests.tiny import CONTEXT, VOCAB, tiny_engine
from tests.waiting import until, wait_until
from tests.wanted import request_for

from octavo.cli.replay import describe_result
from octavo.config import StartOptions
from octavo.engine.core import Engine
from octavo.engine.recording import MAGIC, Recorder
from octavo.engine.replay import ReplayResult, replay
from octavo.engine.requests import ModelFacts
from octavo.engine.scheduler_setup import SchedulerSetup, TierSetup
from octavo.errors import ConfigError, InvalidRequest, OctavoError, PinRefused
from octavo.executor.host import HostStore
from octavo.executor.runner import Runner
from octavo.kernels.native_ops import NativeOps
from octavo.memory.ledger import Ledger
from octavo.memory.quota import TenantPolicy
from octavo.params import BeamParams, SamplerParams, Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.scheduler.planner import Planner
from octavo.scheduler.pressure import PressureConfig
from octavo.serving.client import EngineClient
from octavo.serving.start import build_engine
from octavo.speculation.speculator import Speculation
from octavo.types import ChatMessage, FinishReason

FACTS = ModelFacts("tiny", CONTEXT, VOCAB)


def recorded_engine(path: Path, *, has_tenants: bool = True, **options: object) -> Engine:
    """A tiny engine that speculates and has host memory below its pool, and whose every step is recorded."""
    store = HostStore(30 * BLOCK_BYTES, BLOCK_BYTES)
    engine = tiny_engine(
        NativeOps(),
        num_blocks=60,
        rows=6,
        model=poisoned_model(),
        store=store,
        num_host=store.num_slots,
        **options,
    )
    setup = SchedulerSetup(
        engine.config,
        60,
        60,
        16,
        (b"tiny",),
        speculate=Speculation.AUTO,
        pressure=PressureConfig(BLOCK_BYTES),
    )
    recorder, speculator = Recorder.open(path, has_tenants=has_tenants), setup.new_speculator()

    def new_scheduler():  # type: ignore[no-untyped-def]
        tier = TierSetup(store.num_slots, store.num_slots, None, store.entries())
        recorder.begin(setup, tier)
        return setup.new_scheduler(tier, speculator)

    executor = engine.executor
    runner: Runner = executor._runner  # type: ignore[attr-defined]
    inbox = engine.inbox
    return Engine(new_scheduler, executor, runner.reset, engine.depth, engine.clock, inbox, None, recorder)


async def mixed_load(llm: EngineClient, count: int, seed: int) -> int:
    """So many requests of every kind, some at once; returns how many were answered."""
    generator, answered = random.Random(seed), 0
    shared = prompt_of(1) + prompt_of(2)

    async def one(number: int) -> None:
        nonlocal answered
        prompt = shared[: generator.randrange(1, 90)] + prompt_of(number)[: generator.randrange(1, 20)]
        kind = generator.randrange(8)
        output = generator.randrange(1, 30)
        timeouts = Timeouts(total=0.001 if generator.random() < 0.05 else None)
        try:
            if kind == 0:
                name = f"pin-{number}"
                await llm.control.pin(PinRequest(name, tuple(prompt), 60.0))
                if number % 2:
                    await llm.control.unpin("", name)
                return
            if kind == 1:
                await llm.control.resize(generator.choice([40, 50, 60]))
                return
            tenant = generator.choice(["", "alice", "bob"])
            if kind == 2:
                params = SamplerParams(max_tokens=output, temperature=0.0, beams=BeamParams(3))
            elif kind == 3:
                params = greedy(output, logprobs=2, prompt_logprobs=1)
            else:
                params = greedy(output, temperature=1.0, seed=number, stop_token_ids=(POISON,))
            n = 3 if kind == 4 else params.beams.width if params.beams is not None else 1
            stream = await llm.submit(
                request_for(
                    prompt, params, n=n, tenant=tenant, priority=generator.randrange(3), timeouts=timeouts
                )
            )
            async for delta in stream:
                if kind == 5 and len(delta.tokens) and generator.random() < 0.2:
                    break
            stream.cancel()
            answered += 1
        except (InvalidRequest, PinRefused, OctavoError):
            pass

    await llm.control.set_tenants((TenantPolicy("alice", 2.0, 5), TenantPolicy("bob", maximum=40)))
    for first in range(0, count, 12):
        await asyncio.gather(*(one(number) for number in range(first, min(first + 12, count))))
    return answered


def record(path: Path, count: int = 96, seed: int = 1, **options: object) -> int:
    """A recording of a mixed load."""
    engine = recorded_engine(path, **options)  # type: ignore[arg-type]
    llm = EngineClient.over(engine, LetterTokenizer(), FACTS, 1000)  # type: ignore[arg-type]
    try:
        return asyncio.run(mixed_load(llm, count, seed))
    finally:
        llm.close()


def replayed(path: Path, **given: int) -> ReplayResult:
    return replay(path, lambda count: None, **given)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_mixed_load_replays_with_equal_plans(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "recording"
    assert record(path, depth=depth) > 40
    found = replayed(path)
    assert found.fault == ""
    assert found.num_plans > 150
    assert found.num_commands > 100
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert describe_result(found).endswith("entries replayed: all plans are the same")


def test_a_planted_bug_of_the_scheduler_is_found(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    record(path)
    share = Planner.share

    def shares_backwards(planner: Planner, continuing, prompts):  # type: ignore[no-untyped-def]
        return share(planner, continuing, prompts)[::-1]

    with mock.patch.object(Planner, "share", shares_backwards):
        found = replayed(path)
    assert "the plan differs: " in found.fault
    close = Ledger.close

    def leaks(ledger: Ledger, table) -> None:  # type: ignore[no-untyped-def]
        kept = table.blocks[-1:]
        close(ledger, table)
        for block in kept:
            ledger.pool.holders[block] += 1

    with mock.patch.object(Ledger, "close", leaks):
        found = replayed(path)
    assert "an invariant broke: AssertionError" in found.fault


def test_what_broke_in_production_is_replayed_up_to_its_recovery_and_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = recorded_engine(path)
    gate = engine.executor = Turnstile(engine.executor)
    llm = EngineClient.over(engine, LetterTokenizer(), FACTS, 1000)  # type: ignore[arg-type]

    async def work() -> None:
        await read(await llm.submit(request_for(prompt_of(1), greedy(9))))
        gate.failures = 1
        await read(await llm.submit(request_for(prompt_of(1), greedy(9))))
        await read(await llm.submit(request_for(prompt_of(2), greedy(9))))

    try:
        asyncio.run(work())
    finally:
        llm.close()
    found = replayed(path)
    assert found.fault == ""
    assert "; recovered then: the engine found its own state broken" in describe_result(found)
    assert describe_result(found).endswith("RuntimeError: the executor broke: all plans are the same")


def test_a_recording_is_bounded_and_ends_with_a_whole_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recording"
    opened = Recorder.open
    with mock.patch.object(Recorder, "open", lambda path, **given: opened(path, bytes_max=20_000)):
        record(path, 24)
    assert "it is full" in caplog.text
    assert path.stat().st_size <= 20_000
    found = replayed(path)
    assert (found.fault, found.is_cut) == ("", False)
    assert found.num_plans > 10


def test_an_engine_that_sleeps_has_written_all_that_it_did(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    engine = recorded_engine(path)
    llm = EngineClient.over(engine, LetterTokenizer(), FACTS, 1000)  # type: ignore[arg-type]

    async def work() -> None:
        await read(await llm.submit(request_for(prompt_of(1), greedy(9))))
        await until(lambda: engine.idle)

    try:
        with mock.patch("octavo.engine.recording._FLUSH_S", 1e9):
            asyncio.run(work())
            wait_until(lambda: replayed(path).num_plans >= 9)  # as a kill now would leave it
    finally:
        llm.close()


def test_a_file_that_was_cut_by_a_kill_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    record(path, 12)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    found = replayed(path, check_every=0)
    assert (found.fault, found.is_cut) == ("", True)
    assert "the file ends inside an entry" in describe_result(found)


def _of(data: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: data


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_of(b""), "no recording of this version"),
        (_of(b"GGUF" + bytes(40)), "no recording of this version"),
        (_of(MAGIC + b"\xff\xff\xff\xff"), "an entry of 4,294,967,295 bytes"),
        (_of(MAGIC + b"\x03\x00\x00\x00abc"), "damaged at byte 23"),
    ],
)
def test_a_file_that_is_no_recording_is_refused_in_words(
    tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    path = tmp_path / "recording"
    path.write_bytes(damage(b""))
    with pytest.raises(ConfigError, match=said):
        replayed(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        replayed(tmp_path / "none")


def test_a_recording_that_is_there_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    path.write_text("of the server that failed")
    Recorder.open(path).close()
    assert (tmp_path / "recording.1").read_text() == "of the server that failed"
    assert path.read_bytes() == MAGIC
    for _ in range(5):
        Recorder.open(path).close()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "recording",
        *(f"recording.{n}" for n in (1, 2, 3)),
    ]
    with pytest.raises(ConfigError, match="holds nothing"):
        replayed(path)
    with pytest.raises(ConfigError, match=r"record is .*/none/recording, which cannot be written"):
        Recorder.open(tmp_path / "none" / "recording")


def test_a_disk_that_fails_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "recording"
    engine = recorded_engine(path)
    recorder = engine._recorder
    assert recorder is not None
    with mock.patch.object(
        recorder, "_file", mock.Mock(write=mock.Mock(side_effect=OSError(28, "No space")))
    ):
        llm = EngineClient.over(engine, LetterTokenizer(), FACTS, 1000)  # type: ignore[arg-type]
        try:
            assert asyncio.run(mixed_load(llm, 12, 3)) > 3
        finally:
            llm.close()
    assert caplog.text.count("ends here") == 1


def test_what_has_no_encoding_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = recorded_engine(tmp_path / "recording")
    llm = EngineClient.over(engine, LetterTokenizer(), FACTS, 1000)  # type: ignore[arg-type]

    async def work() -> None:
        stream = await llm.submit(request_for(prompt_of(1), greedy(3), cache_salt="\ud800"))
        assert (await read(stream))[0].finishes == [FinishReason.LENGTH]

    try:
        asyncio.run(work())
    finally:
        llm.close()
    assert caplog.text.count("ends here: an entry has no encoding") == 1
    assert replayed(tmp_path / "recording").fault == ""


def test_tenants_prompts_are_recorded_only_where_that_was_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = StartOptions(record=tmp_path / "recording")
    with pytest.raises(ConfigError, match=r"allowed: with record_tenants too \(--record-tenants\)"):
        build_engine("none", options, lambda text: None, lambda size: ())
    assert not (tmp_path / "recording").exists()
    with_tenants = recorded_engine(tmp_path / "all")
    record(tmp_path / "none", has_tenants=False)
    with_tenants.close()
    assert "there are tenants now" in caplog.text
    assert b"alice" not in (tmp_path / "none").read_bytes()
    assert replayed(tmp_path / "none").fault == ""


def test_what_tenants_said_before_is_recorded_only_where_that_was_asked_for(tmp_path: Path) -> None:
    from tests.engine.test_start import chat, start

    llm = start(tmp_path / "disk", TenantPolicy("t"))
    try:
        asyncio.run(chat(llm, HELLO))
    finally:
        llm.close()
    with pytest.raises(ConfigError, match="the tenants' sessions in the disk cache"):
        start(tmp_path / "disk", record=tmp_path / "recording", is_shared=True)


@pytest.mark.parametrize("bug", ["raises", "plans nothing"])
def test_a_bug_that_broke_the_state_while_a_step_was_planned_breaks_it_again(
    tmp_path: Path, bug: str
) -> None:
    path, share = tmp_path / "recording", Planner.share

    def breaks(planner: Planner, continuing, prompts):  # type: ignore[no-untyped-def]
        if len(continuing) > 1:
            assert bug != "raises", "a planted bug"
            return []
        return share(planner, continuing, prompts)

    with mock.patch.object(Planner, "share", breaks):
        record(path, 24)
        found = replayed(path)
    words = "AssertionError: a planted bug" if bug == "raises" else "work is left and nothing can be planned"
    assert f"an invariant broke: {words}" in found.fault
    assert (
        "broke then while this step was planned, and does not now" in replayed(path).fault or bug != "raises"
    )


def test_a_server_is_recorded_from_its_start(tmp_path: Path) -> None:
    """As `octavo serve --record` starts one, with sessions on a disk cache that a restart finds."""
    from tests.engine.test_start import start  # with its own model

    folder = tmp_path / "disk"
    for _ in range(2):
        llm = start(folder, record=tmp_path / "recording", record_tenants=True)

        async def work(llm: EngineClient = llm) -> None:
            turn = await llm.sessions.turn(
                request_for((), greedy(20), session="new"), [ChatMessage("user", "hello " * 20)]
            )
            await read(turn.stream)
            await llm.sessions.suspend("", turn.session_id)
            await llm.sessions.fork("", turn.session_id)

        try:
            asyncio.run(work())
        finally:
            llm.close()
    for name in ("recording", "recording.1"):
        found = replayed(tmp_path / name)
        assert found.fault == ""
        assert found.num_commands > 8


def test_a_recording_of_any_size_stays_within_it(tmp_path: Path) -> None:
    """The length that stands before an entry counts, too."""
    for size in range(60, 130):
        path = tmp_path / str(size)
        recorder = Recorder.open(path, bytes_max=size)
        for now in range(20):
            recorder.expire(float(now))
        recorder.close()
        assert path.stat().st_size <= size
