"""A fingerprint of behaviour: every plan and every update of many random lives, as one hash.

    python -m tests.simulator.fingerprint                    1,000 seeds, overlap 0 and 1, one hash
    python -m tests.simulator.fingerprint --save FILE        and the hash of each life, to compare with later
    python -m tests.simulator.fingerprint --against FILE     the first life that is not the same, if any
    python -m tests.simulator.fingerprint --trace 7 --overlap 1     that life, a line for each plan and update

Two versions with the same hash decide alike, so a change of structure alone prints the hash from before. Only
values are hashed, in the order in which a type declares its fields: a new name changes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import hashlib
import itertools
import json
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

import msgspec
from tests.simulator.lives import Simulation

from octavo.types import Update

STEPS = 300
SEEDS = 1000
OVERLAPS = (0, 1)


class WitnessedLife(Simulation):
    """A life that tells each plan when it is made and each update when a client learns it, as plain values.
    Where a tier outlives the process, every third one dies with plans and transfers in flight."""

    def __init__(self, seed: int, overlap: int, tell: Callable[[str, object], None]) -> None:
        super().__init__(random.Random(seed), overlap)
        self._tell_witness = tell

    def plan(self) -> bool:
        """Make a plan and run it."""
        before = len(self.pipe)
        planned = super().plan()
        for plan, _ in itertools.islice(self.pipe, before, None):
            self._tell_witness("plan", self._plain(plan))
        return planned

    def learn(self, updates: list[Update]) -> None:
        """What clients are told."""
        for update in updates:
            self._tell_witness("update", self._plain(update))
        super().learn(updates)

    def live(self, seed: int) -> None:
        """All of it."""
        if self.has_tier and seed % 3 == 0:
            for _ in range(STEPS // 4):
                self.arrive()
                self.sessions.act()
                self.step()
            self.crash()
        self.run(STEPS)

    def _plain(self, value: object) -> object:
        """The same as JSON knows it."""
        if dataclasses.is_dataclass(value):
            return [self._plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
        if isinstance(value, msgspec.Struct):
            return [self._plain(field) for field in msgspec.structs.astuple(value)]
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, Mapping):
            return [[self._plain(key), self._plain(item)] for key, item in value.items()]
        if isinstance(value, Set):
            return sorted(map(self._plain, value))  # type: ignore[type-var]
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        assert value is None or isinstance(value, bool | int | float | str), f"{type(value)} is not plain"
        return value


def live(life: tuple[int, int], tell: Callable[[str, object], None]) -> None:
    """One life, of this seed and overlap."""
    seed, overlap = life
    WitnessedLife(seed, overlap, tell).live(seed)


def hash_of(life: tuple[int, int]) -> str:
    """Of one life, 16 hexadecimal digits."""
    told = hashlib.blake2b(digest_size=8)
    live(life, lambda kind, value: told.update(f"{kind} {json.dumps(value)}\n".encode()))
    return told.hexdigest()


def hashes_of(lives: list[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], str]]:
    """Of all of them, in order, computed on all cores."""
    with multiprocessing.Pool() as pool:
        yield from zip(lives, pool.imap(hash_of, lives, chunksize=4), strict=True)


def total(hashes: Mapping[str, str]) -> str:
    """The fingerprint."""
    return hashlib.blake2b("\n".join(hashes.values()).encode(), digest_size=16).hexdigest()


def main() -> int:
    """Print the fingerprint; 1 where it is not the one it is compared with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many lives (default {SEEDS:,})")
    parser.add_argument("--save", type=Path, help="write the hash of each life to this file")
    parser.add_argument("--against", type=Path, help="compare each life with those of this file")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print all plans and updates of one life")
    parser.add_argument("--overlap", type=int, default=0, help="of the life to trace (default 0)")
    given = parser.parse_args()
    if given.trace is not None:
        live((given.trace, given.overlap), lambda kind, value: _say(f"{kind} {json.dumps(value)}"))
        return 0
    expected = json.loads(given.against.read_text()) if given.against else {}
    lives = list(itertools.product(range(given.seeds), OVERLAPS))
    hashes: dict[str, str] = {}
    for (seed, overlap), found in hashes_of(lives):
        name = f"{seed}/{overlap}"
        hashes[name] = found
        if expected.get(name, found) != found:
            _say(f"not the same: --trace {seed} --overlap {overlap}")
            return 1
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(hashes):,} of {len(lives):,} lives ")
    if given.save:
        given.save.write_text(json.dumps(hashes))
    _say(f"{total(hashes)}  {len(hashes):,} lives")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
