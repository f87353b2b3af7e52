"""No death at any call, and no random life among faults, makes a store answer with anything else."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.doubles.faults import Crashed, Fault, FaultKind, FaultyFiles, scripted, seeded
from tests.executor.store import (
    BLOCK,
    NAMESPACE,
    blocks_in,
    bytes_of,
    check_never_wrong,
    check_reads_back,
    fetch,
    listed,
    name_of,
    open_store,
    put,
)
from tests.processes import running

from octavo.errors import ConfigError
from octavo.executor.disk import DiskStore
from octavo.files import Files


class Life:
    """One fixed life of a store, with every kind of call. `promised` is what a restart must find."""

    def __init__(self, folder: Path, aside: Path) -> None:
        self.folder = folder
        self.aside = aside  # the index as it was at the last commit
        self.live: dict[int, bytes] = {}
        self.promised: dict[int, bytes] = {}

    def run(self, files: Files) -> None:
        store = open_store(self.folder, files)
        self.put(store, 0, 1)
        self.put(store, 1, 2)
        self.put(store, 2, 3)
        self.commit(store)
        self.put(store, 1, 4)
        self.forget(store, 0)
        self.put(store, 3, 5)
        self.put(store, 3, 6)
        self.commit(store)
        assert fetch(store, 2, name_of(3)) == bytes_of(name_of(3))
        self.commit(store)
        self.forget(store, 3)
        self.put(store, 2, 7)
        self.put(store, 0, 8)
        self.commit(store)
        self.put(store, 3, 9)
        self.put(store, 0, 10)
        store.close()

    def put(self, store: DiskStore, slot: int, block: int) -> None:
        self.live.pop(slot, None)
        self.promised.pop(slot, None)
        assert put(store, slot, block)
        self.live[slot] = name_of(block)

    def forget(self, store: DiskStore, slot: int) -> None:
        self.live.pop(slot)
        self.promised.pop(slot)
        store.forget(slot)

    def commit(self, store: DiskStore) -> None:
        assert store.commit()
        self.promised = self.live.copy()
        shutil.rmtree(self.aside, ignore_errors=True)
        self.aside.mkdir()
        for path in (self.folder / NAMESPACE).glob("index.sqlite*"):
            shutil.copy(path, self.aside)


def calls_of_a_life(folder: Path) -> list[str]:
    files = FaultyFiles(Files())
    Life(folder / "life", folder / "aside").run(files)
    return files.calls


def die_at(folder: Path, call: int, fault: Fault) -> Life:
    """Live in a fresh folder until the fault; `folder/dead` is then what the dead process left."""
    for name in ("life", "aside", "dead"):
        shutil.rmtree(folder / name, ignore_errors=True)
    files = FaultyFiles(
        Files(),
        scripted({call: fault}),
        on_crash=lambda: (
            shutil.copytree(folder / "life", folder / "dead") if (folder / "life").exists() else None
        ),
    )
    life = Life(folder / "life", folder / "aside")
    with pytest.raises(Crashed):
        life.run(files)
    (folder / "dead").mkdir(exist_ok=True)
    return life


def test_after_a_crash_at_any_call_all_that_is_listed_reads_back_and_all_that_was_promised_is_listed(
    tmp_path: Path,
) -> None:
    calls = calls_of_a_life(tmp_path)
    assert set(calls) >= {"pwrite", "pread", "fdatasync", "fallocate", "execute", "connect", "close"}
    faults = [(call, Fault(FaultKind.CRASH)) for call in range(len(calls))]
    writes = [call for call, operation in enumerate(calls) if operation == "pwrite"]
    faults += [(call, Fault(FaultKind.TORN_WRITE, at)) for call in writes for at in (1, 4096, BLOCK)]
    for call, fault in faults:
        life = die_at(tmp_path, call, fault)
        store = open_store(tmp_path / "dead")
        found = check_reads_back(store)
        assert life.promised.items() <= found.items(), (call, fault, calls[call])
        assert put(store, 3, 99)
        store.close()
        again = open_store(tmp_path / "dead")
        assert check_reads_back(again) == found | blocks_in((3, 99)), (call, fault)
        again.close()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_after_a_power_cut_at_any_call_nothing_reads_back_wrong_and_nothing_promised_is_lost(
    tmp_path: Path, seed: int
) -> None:
    calls = calls_of_a_life(tmp_path)
    for call in range(len(calls)):
        life = die_at(tmp_path, call, Fault(FaultKind.POWER_CUT, seed))
        dead = tmp_path / "dead"
        older = tmp_path / "older"
        shutil.rmtree(older, ignore_errors=True)
        shutil.copytree(dead, older)
        # As if the medium has the index of now ...
        store = open_store(dead)
        assert life.promised.items() <= check_reads_back(store).items(), (call, calls[call])
        store.close()
        # ... and as if it has no more of it than the last commit waited for.
        if not life.aside.exists():
            continue
        for path in (older / NAMESPACE).glob("index.sqlite*"):
            path.unlink()
        shutil.copytree(life.aside, older / NAMESPACE, dirs_exist_ok=True)
        store = open_store(older)
        check_never_wrong(store)
        assert life.promised.items() <= listed(store).items(), (call, calls[call])
        store.close()


def test_a_log_that_is_cut_short_after_a_crash_costs_names_and_no_answer(tmp_path: Path) -> None:
    calls = calls_of_a_life(tmp_path)
    die_at(tmp_path, len(calls) - 3, Fault(FaultKind.CRASH))
    log = tmp_path / "dead" / NAMESPACE / "index.sqlite-wal"
    whole = log.read_bytes()
    assert len(whole) > 4096
    for length in range(0, len(whole), 1777):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "dead", copy)
        (copy / NAMESPACE / "index.sqlite-wal").write_bytes(whole[:length])
        store = open_store(copy)
        check_never_wrong(store)
        store.close()


@pytest.mark.parametrize("run", range(3))
def test_kill_9_in_the_middle_of_writing_loses_nothing_that_was_committed(tmp_path: Path, run: int) -> None:
    batch, num_slots = 4, 16
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from tests.executor.store import open_store, put\n"
        f"store = open_store(Path(sys.argv[2]), num_slots={num_slots})\n"
        "for block in range(10**9):\n"
        f"    assert put(store, block % {num_slots}, block)\n"
        f"    if block % {batch} == {batch - 1}:\n"
        "        assert store.commit()\n"
        "        print(block + 1, flush=True)\n"
    )
    root = str(Path(__file__).parents[2])
    with running([sys.executable, "-c", code, root, tmp_path]) as process:
        assert process.stdout is not None
        for _ in range(7 + 3 * run):
            assert process.stdout.readline()
        process.kill()
        lines = process.stdout.read().split()
    committed = int(lines[-1]) if lines else (7 + 3 * run) * batch
    store = open_store(tmp_path, num_slots=num_slots)
    found = check_reads_back(store)
    # At most one batch more was under way: the three before it are not touched by it.
    kept = range(committed - num_slots + batch, committed)
    assert blocks_in(*((block % num_slots, block) for block in kept)).items() <= found.items()
    store.close()


class StoreMachine(RuleBasedStateMachine):
    """A store and what it must hold: `live` in this process, `committed` in the index."""

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.generation = 0
        self.num_slots = 4
        self.block = 0
        self.live: dict[int, bytes] = {}
        self.committed: dict[int, bytes] = {}
        self.store = open_store(self.folder)

    @property
    def folder(self) -> Path:
        return self.root / str(self.generation)

    @rule(slot=st.integers(0, 5))
    def put(self, slot: int) -> None:
        slot %= self.num_slots
        self.block += 1
        assert put(self.store, slot, self.block)
        self.live[slot] = name_of(self.block)
        self.committed.pop(slot, None)

    @rule(slot=st.integers(0, 5))
    def fetch(self, slot: int) -> None:
        slot %= self.num_slots
        name = self.live.get(slot, name_of(0))
        assert fetch(self.store, slot, name) == (bytes_of(name) if slot in self.live else None)

    @rule(slot=st.integers(0, 5))
    def forget(self, slot: int) -> None:
        self.store.forget(slot % self.num_slots)
        self.live.pop(slot % self.num_slots, None)

    @rule()
    def commit(self) -> None:
        assert self.store.commit()
        self.committed = self.live.copy()

    @rule(num_slots=st.integers(1, 6))
    def restart(self, num_slots: int) -> None:
        self.store.close()
        self.num_slots = num_slots
        self.store = open_store(self.folder, num_slots=num_slots)
        self.live = {slot: name for slot, name in self.live.items() if slot < num_slots}
        self.committed = self.live.copy()

    @rule()
    def kill(self) -> None:
        dead = self.folder
        self.generation += 1
        shutil.copytree(dead, self.folder)
        self.store.close()
        shutil.rmtree(dead)
        self.store = open_store(self.folder, num_slots=self.num_slots)
        found = check_reads_back(self.store)
        kept = {slot: name for slot, name in self.committed.items() if self.live.get(slot) == name}
        assert kept.items() <= found.items() <= self.committed.items()
        self.live, self.committed = found, found.copy()

    @invariant()
    def lists_what_lives(self) -> None:
        assert listed(self.store) == self.live
        assert (self.store.damaged, self.store.errors) == (0, 0)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)

HARMLESS = [FaultKind.SHORT_READ, FaultKind.SHORT_WRITE, FaultKind.EIO, FaultKind.ENOSPC, FaultKind.SLOW]
DEADLY = [FaultKind.CRASH, FaultKind.TORN_WRITE]
FLIPS = [FaultKind.FLIP_READ, FaultKind.FLIP_WRITE]


def live_among_faults(store: DiskStore, chance: random.Random) -> dict[int, bytes]:
    """Random calls; returns what may be read, by slot, and checks whatever is."""
    book: dict[int, bytes] = {}
    since: set[int] = set()
    for block in range(60):
        slot, act = chance.randrange(4), chance.random()
        if act < 0.45:
            book.pop(slot, None)
            since.discard(slot)
            if put(store, slot, block):
                book[slot] = name_of(block)
                since.add(slot)
        elif act < 0.75 and slot in book:
            answer = fetch(store, slot, book[slot])
            assert answer in (None, bytes_of(book[slot]))
            if answer is None:
                del book[slot]
        elif act < 0.85:
            store.forget(slot)
            book.pop(slot, None)
        else:
            if not store.commit():
                book = {slot: name for slot, name in book.items() if slot not in since}
            since.clear()
        assert listed(store) == book
    return book


@pytest.mark.parametrize("kinds", [HARMLESS, HARMLESS + DEADLY, HARMLESS + FLIPS + DEADLY])
def test_a_random_life_among_faults_never_reads_wrong_and_lists_what_its_caller_believes(
    tmp_path: Path, kinds: list[FaultKind]
) -> None:
    struck: Counter[FaultKind] = Counter()
    for seed in range(80):
        folder, dead = tmp_path / str(seed), tmp_path / f"{seed}-dead"
        open_store(folder).close()
        files = FaultyFiles(
            Files(),
            seeded(seed, 0.02, kinds),
            on_crash=lambda a=folder, b=dead: shutil.copytree(a, b) and None,
        )
        try:
            store = open_store(folder, files)
            live_among_faults(store, random.Random(seed))
            store.close()
        except ConfigError:
            assert files.struck
        except Crashed:
            folder = dead
        struck += files.struck
        again = open_store(folder)
        if files.struck[FaultKind.FLIP_WRITE]:
            check_never_wrong(again)
        else:
            check_reads_back(again)
        again.close()
    assert set(struck) == set(kinds), f"{struck}"
