"""What is kept for a time is as old as it is, whatever becomes of the wall clock."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.executor.store import BLOCK, SLOT, name_of
from tests.executor.store import bytes_of as bytes_of_block

from octavo.config import StartOptions
from octavo.conversations.store import GRACE_S, ConversationStore
from octavo.engine.offload import open_clock, open_disk
from octavo.engine.steady_clock import CLOCK_FILE, ClockReading, Sources, SteadyClock
from octavo.errors import UnknownSession
from octavo.executor.disk import DiskStore, namespace_of

HOUR, DAY = 3600.0, 86_400.0
NOON = 20_000 * DAY
FINGERPRINT = b"f" * 32


@dataclass
class Machine:
    """Its clocks."""

    wall: float = NOON
    since_boot: float = 1000.0
    boot: str = "first"

    def sources(self) -> Sources:
        return Sources(lambda: self.wall, lambda: self.since_boot, lambda: self.boot)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.since_boot += seconds

    def reboots(self, away: float) -> None:
        self.wall += away
        self.since_boot, self.boot = 5.0, self.boot + "'"


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("ahead", [2 * DAY, -2 * DAY, 10_000 * DAY])
def test_while_it_runs_no_change_of_the_wall_clock_moves_it_and_each_is_reported_once(
    ahead: float, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SteadyClock(None, machine.sources())
    machine.passes(10.0)
    assert clock() == NOON + 10
    assert caplog.records == []
    machine.wall += ahead
    assert clock() == NOON + 10
    machine.passes(10.0)
    assert clock() == NOON + 20
    [told] = caplog.messages
    where = "ahead" if ahead > 0 else "back"
    assert told.startswith(f"the wall clock was set {where} by ")
    machine.wall -= ahead
    assert clock() == NOON + 20
    assert len(caplog.records) == 2


def test_a_clock_ahead_for_one_listing_forgets_no_session(machine: Machine) -> None:
    store = ConversationStore(SteadyClock(None, machine.sources()))
    session_id = store.create("", HOUR).session_id
    machine.wall += 2 * DAY
    assert [record.session_id for record in store.all()] == [session_id]
    machine.wall -= 2 * DAY
    assert store.find("", session_id).session_id == session_id
    machine.passes(HOUR)
    assert store.all() == []


def again(path: Path, machine: Machine) -> SteadyClock:
    """As a process has it that starts now."""
    clock = SteadyClock.open(path, machine.sources())
    clock.keep(path)
    return clock


def test_in_the_same_boot_the_next_process_goes_on_and_is_sure(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / CLOCK_FILE
    assert not again(path, machine).is_sure
    machine.passes(40 * DAY)
    clock = again(path, machine)
    assert (clock(), clock.is_sure) == (NOON + 40 * DAY, True)


@pytest.mark.parametrize("moved, now", [(2 * DAY, NOON + 10), (-2 * DAY, NOON + 10 - 2 * DAY)])
def test_a_wall_clock_that_was_moved_between_two_processes_is_reported_and_the_earlier_time_counts(
    moved: float, now: float, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / CLOCK_FILE
    again(path, machine)
    machine.passes(10.0)
    machine.wall += moved
    clock = again(path, machine)
    assert (clock(), clock.is_sure) == (now, False)
    assert "2 days since a server began to use this disk cache" in caplog.text
    machine.wall -= moved
    assert not again(path, machine).is_sure or moved > 0


@pytest.mark.parametrize("away, is_sure", [(60.0, True), (40 * DAY, False), (-HOUR, False)])
def test_in_another_boot_time_begins_with_the_wall_clock(
    away: float, is_sure: bool, machine: Machine, tmp_path: Path
) -> None:
    path = tmp_path / CLOCK_FILE
    again(path, machine)
    machine.reboots(away)
    clock = again(path, machine)
    assert (clock(), clock.is_sure) == (NOON + away, is_sure)
    machine.passes(5.0)
    assert again(path, machine).is_sure


@pytest.mark.parametrize(
    "written", ["", "{", "[1]", '{"boot": "first"}', "[" * 9999, '{"boot": 1, "wall": "x"}']
)
def test_a_file_that_makes_no_sense_is_none(written: str, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / CLOCK_FILE).write_text(written)
    clock = again(tmp_path / CLOCK_FILE, machine)
    assert (clock(), clock.is_sure) == (NOON, False)
    assert json.loads((tmp_path / CLOCK_FILE).read_text())["wall"] == NOON


def test_where_the_boot_has_no_name_nothing_is_sure(machine: Machine) -> None:
    machine.boot = ""
    assert not SteadyClock(ClockReading("", 1000.0, NOON + DAY), machine.sources()).is_sure


def test_a_disk_that_refuses_the_time_is_reported(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SteadyClock(None, machine.sources()).keep(tmp_path / "nowhere" / CLOCK_FILE)
    assert "the time could not be written to" in caplog.text


def test_the_clocks_of_this_machine_go_on() -> None:
    clock = SteadyClock()
    assert clock() <= clock()


# -- what lies on disk ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl, more", [(60.0, 60.0), (DAY, GRACE_S)])
def test_a_session_that_seems_to_have_expired_is_kept_a_while_longer(
    ttl: float, more: float, machine: Machine, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path, clock=SteadyClock(None, machine.sources()))
    session_id = store.create("", ttl).session_id
    store.close()
    machine.passes(20 * DAY)
    store = ConversationStore.open(path, clock=SteadyClock(None, machine.sources()))
    assert store.num_graced == 1
    machine.passes(more - 1)
    assert store.seconds_left(store.find("", session_id)) == pytest.approx(1.0)
    machine.passes(2.0)
    with pytest.raises(UnknownSession):
        store.find("", session_id)
    assert store.all() == []
    store.close()
    store = ConversationStore.open(path, clock=SteadyClock(None, machine.sources()))
    assert (store.num_graced, store.all()) == (0, [])
    store.close()


def test_a_session_of_a_time_to_come_lives_its_ttl_from_now(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path, clock=lambda: NOON + 300 * DAY)
    session_id = store.create("", HOUR).session_id
    store.close()
    store = ConversationStore.open(path, clock=SteadyClock(None, machine.sources()))
    assert store.seconds_left(store.find("", session_id)) == HOUR
    store.close()


def options(folder: Path) -> StartOptions:
    return StartOptions(disk_cache=str(folder), disk_size_bytes=4 << 20, disk_max_age_days=30)


def reopened(folder: Path, machine: Machine) -> DiskStore:
    """As a server opens it that starts now."""
    clock = SteadyClock.open(folder / namespace_of(FINGERPRINT) / CLOCK_FILE, machine.sources())
    store = open_disk(options(folder), BLOCK, FINGERPRINT, 30 * DAY, clock)
    assert store is not None
    return store


def test_blocks_and_other_models_are_removed_for_their_age_only_where_it_is_sure(
    machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    DiskStore.open(tmp_path, 4 * SLOT, BLOCK, b"o" * 32).close()
    machine.wall = (tmp_path / namespace_of(b"o" * 32) / "lock").stat().st_mtime
    store = reopened(tmp_path, machine)
    name = name_of(1)
    assert store.write(0, name, memoryview(bytes_of_block(name)))
    store.close()
    machine.wall += 40 * DAY  # set wrong
    store = reopened(tmp_path, machine)
    assert len(store.entries()) == 1
    store.close()
    machine.wall -= 40 * DAY
    machine.reboots(40 * DAY)  # or the machine was off: nobody knows
    store = reopened(tmp_path, machine)
    assert len(store.entries()) == 1
    store.close()
    assert (tmp_path / namespace_of(b"o" * 32)).exists()
    store = reopened(tmp_path, machine)  # it is still the same time
    assert store.entries() == []
    store.close()
    assert not (tmp_path / namespace_of(b"o" * 32)).exists()


def test_without_a_disk_cache_there_is_a_clock_all_the_same() -> None:
    assert open_clock(StartOptions(), FINGERPRINT)() > NOON
