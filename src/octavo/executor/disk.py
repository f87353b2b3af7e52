"""The disk store: KV blocks in one file of fixed slots, found again after a restart.

    folder/
      3f0c...e1/         a namespace: the first 32 hex digits of the fingerprint of model and KV layout
        lock             held by the one process that uses the namespace
        blocks           [ slot 0 | slot 1 | slot 2 | ... ]    block_bytes each, rounded up to 4 KiB; or
                         [ stripe 0 | stripe 1 | ... ]         some slots each, layer by layer (`disk_layout`)
        index.sqlite     meta: what all of this is bound to
                         blocks: slot -> name, digest of (name, bytes), last use

A running store answers from its records in memory. The index is what a restart reads. Every slot is in one of
four states:

                     record   row          becomes
    empty            no       no           uncommitted by write()
    uncommitted      yes      no           listed by commit(), empty by forget()
    listed           yes      the same     stale by forget()
    stale            no       an old one   empty by commit(), or by a write() to the slot

Three rules make a crash harmless:

1. An old row is deleted before its slot is overwritten. The deletion is in SQLite's log, but not synced: it
   survives the death of the process, so after kill -9 the index lists nothing that does not read back right.
   It may not survive a power cut, and then rule 3 turns the row into a miss. A synced deletion would make
   every write to a full store wait for the medium, and save only a miss after a power cut.
2. A new row is inserted after fdatasync() of what it lists, in a transaction that is synced.
3. One checksum covers name and bytes, so torn, stale, flipped or another block's bytes are never returned
   as the requested block.

A damaged index loses its names and never causes a wrong answer: the namespace is reset. The store does not
know what a name means, which blocks deserve a slot, or what the bytes are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from octavo.errors import ConfigError
from octavo.executor.disk_folder import check_room, refusal
from octavo.executor.disk_index import DIGEST_BYTES, NAME_BYTES, Binding, ContentRow, DiskIndex, IndexRow
from octavo.executor.disk_layout import Extents, choose_lanes
from octavo.files import Files, OpenPaths

_PAGE = 4096
_PARTS, _CORES_EACH = 4, 4  # parts of a block for its digest; cores for each further digest thread


class DiskStore:
    """The bytes of one offload tier, in slots that its caller allocates.

    Use `open`. One thread makes all calls, except that an earlier thread may call `open` and then `entries`.
    After `open`, disk errors are results and counters, never exceptions. It holds about 140 bytes of memory
    for a stored block.
    """

    @classmethod
    def open(
        cls,
        folder: Path,
        num_bytes: int,
        block_bytes: int,
        fingerprint: bytes,
        files: Files | None = None,
        *,
        piece_bytes: int | None = None,
        max_age_s: float = math.inf,
        needed_s: Callable[[Path], float] = lambda namespace: 0.0,
        clock: Callable[[], float] = time.time,
    ) -> DiskStore:
        """The store of this fingerprint in `folder`, with as much of its content as is sound and still fits.

        A block is stored in pieces of `piece_bytes` (one layer's bytes), or (None) in one piece. Allocates
        the space of all slots now, so that a full disk is found before memory is allocated for so many slots.
        A resized store keeps the blocks of the slots that remain, unless these are fewer than its lanes.
        Blocks last used more than `max_age_s` ago are dropped; `needed_s`, called under the store's lock, may
        return a longer time. Raises ConfigError for a folder that cannot be used, is in use, or has no room.
        O(blocks stored), without reading them.
        """
        assert len(fingerprint) >= 16, "a fingerprint is a strong hash"
        files = files or Files()
        page_bytes = -(-block_bytes // _PAGE) * _PAGE
        pieces = 1 if piece_bytes is None else -(-block_bytes // piece_bytes)
        slot_bytes = page_bytes if piece_bytes is None else pieces * piece_bytes
        num_slots = num_bytes // slot_bytes
        if num_slots < 1:
            raise ConfigError(
                f"the disk tier has {num_bytes:,} bytes; allowed: {slot_bytes:,} (one block) or more; "
                "give it more, or none"
            )
        lanes = 1 if piece_bytes is None else choose_lanes(piece_bytes, num_slots)
        namespace = folder / namespace_of(fingerprint)
        with contextlib.ExitStack() as resources:
            try:
                files.make_folder(namespace)
                _lock(files, namespace / "lock", resources)
                fd = files.open(namespace / "blocks")
                resources.callback(files.close, fd)
                binding = Binding(fingerprint, block_bytes, piece_bytes or 0, lanes, num_slots)
                index = DiskIndex.open(files, namespace / "index.sqlite", binding)
                resources.callback(index.close)
                whole_stripes = num_slots // index.lanes * index.lanes
                extents = Extents(fd, index.lanes, pieces, piece_bytes or slot_bytes, whole_stripes)
                check_room(namespace / "blocks", extents.file_bytes)
                store = cls(files, extents, index, block_bytes, clock)
                store.namespace = namespace
                store._fit(max_age_s if max_age_s == math.inf else max(max_age_s, needed_s(namespace)))
                files.sync_folder(namespace)
                files.sync_folder(folder)
                parts = ("blocks", "index.sqlite", "index.sqlite-wal", "lock")
                store._where = OpenPaths(files, [namespace / part for part in parts])
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(refusal(folder, num_bytes, error)) from None
            store._resources = resources.pop_all()
        return store

    def __init__(
        self,
        files: Files,
        extents: Extents,
        index: DiskIndex,
        block_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self.namespace = Path()  # the folder of this fingerprint
        self.block_bytes = block_bytes
        self.extents = extents  # where slots lie, for readers of single pieces
        self.slot_bytes = extents.pieces * extents.piece_bytes
        self.num_slots = extents.num_slots
        self.reset_reason = index.reset_reason  # why `open` discarded the content; "" if it did not
        self.writes = 0  # blocks written, committed or not
        self.reads = 0  # blocks read and found sound
        self.damaged = 0  # blocks dropped because their bytes or rows were not as written
        self.aged = 0  # blocks dropped at open because they were unused for too long
        self.errors = 0  # errors of the operating system or of SQLite
        self.given_up: list[bytes] = []  # names, see `take_given_up`
        self.last_error = ""  # the message of the last one
        self._files = files
        self._fd = extents.fd
        self._index = index
        self._records: list[bytes | None] = [None] * self.num_slots  # name and digest of each readable block
        self._used = [0] * self.num_slots  # last use, microseconds since 1970; strictly increasing
        self._last_use = 0
        self._clock = clock
        self._uncommitted: set[int] = set()  # slots with a record and no row
        self._stale: set[int] = set()  # slots without a record that have a row, or may have one
        self._cut: set[int] = set()  # slots that the file lost, and that the caller still counts as stored
        self._touched: set[int] = set()  # slots used since the last commit
        self._verified = bytearray()  # scratch for `verify`
        self._digester = _Digester(len(os.sched_getaffinity(0)))
        self._resources = contextlib.ExitStack()
        self._content_of: Callable[[int, bytes], ContentRow | None] = lambda slot, name: None
        self._is_open = True
        self._where = OpenPaths(files, [])

    def entries(self) -> list[tuple[bytes, int]]:
        """(name, slot) of every block that can be read, the longest unused first. O(n log n)."""
        found = [(self._used[slot], slot) for slot, record in enumerate(self._records) if record is not None]
        return [(self._name(slot), slot) for _, slot in sorted(found)]

    def write(self, slot: int, name: bytes, data: memoryview) -> bool:
        """Put a block into a slot, replacing its content; a restart finds it after the next `commit`.

        False: the slot is empty now, and the caller records it as empty. The checksum is computed before the
        bytes are written: data that changes meanwhile is a miss later, not a wrong answer.
        """
        assert self._is_open
        assert len(name) == NAME_BYTES
        data = data.cast("B")
        assert data.nbytes == self.block_bytes
        self.forget(slot)
        # Rule 1: delete the old row first, with all stale rows in the same transaction.
        if slot in self._stale and not self._delete_stale():
            return False
        digest = self._digester.digest(name, data)
        try:
            self._check_length()
            for offset, piece in self._pieces(slot, data):
                self._pwrite(offset, piece)
        except OSError as error:
            self._record(error)
            return False
        self._records[slot] = name + digest
        self._uncommitted.add(slot)
        self._touch(slot)
        self.writes += 1
        return True

    def read(self, slot: int, name: bytes, into: memoryview) -> bool:
        """Copy a block into `into`, committed or not. True: all of it is there, exactly as written.

        False: the slot does not hold that name, or its bytes did not read back as written; then the slot is
        empty now. After False, `into` holds garbage.
        """
        assert self._is_open
        record = self._records[slot]
        if record is None or self._name(slot) != name:
            return False
        into = into.cast("B")
        assert into.nbytes == self.block_bytes
        try:
            sound = self._pread_pieces(list(self._pieces(slot, into)))
            sound = sound and record[NAME_BYTES:] == self._digester.digest(name, into)
        except OSError as error:
            self._record(error)
            self.forget(slot)
            return False
        if not sound:
            self.damaged += 1
            self.last_error = f"slot {slot} did not read back as it was written"
            self.forget(slot)
            self._cut.add(slot)  # until the caller forgets it, too
            return False
        self._touch(slot)
        self.reads += 1
        return True

    def verify(self, slot: int, name: bytes) -> bool:
        """Whether `read` would find the block: reads and checks it, with the same effects on the store."""
        self._verified = self._verified or bytearray(self.block_bytes)
        return self.read(slot, name, memoryview(self._verified))

    def host_of(self, slot: int) -> None:
        """No slot lies in host memory."""

    def is_listed(self, slot: int, name: bytes) -> bool:
        """Whether a restart would find that name in the slot, as of the last `commit`."""
        record = self._records[slot]
        return record is not None and slot not in self._uncommitted and self._name(slot) == name

    def keep_contents(self, content_of: Callable[[int, bytes], ContentRow | None]) -> list[ContentRow]:
        """From now on the index keeps the contents of blocks, where `content_of(slot, name)`, called by
        `commit`, returns them. Returns the contents that it has already."""
        try:
            found = self._index.keep_contents()
        except sqlite3.Error as error:
            self._record(error)
            return []
        self._content_of = content_of
        return found

    def find_vanished(self) -> Path | None:
        """A file of the store that was removed, moved or replaced: a restart would not find new blocks."""
        return self._where.find_vanished()

    def forget(self, slot: int) -> None:
        """Empty a slot. Until the next `commit`, a crash may bring the block back, sound; never after it."""
        self._cut.discard(slot)
        if self._records[slot] is None:
            return
        self._records[slot] = None
        self._touched.discard(slot)
        if slot in self._uncommitted:
            self._uncommitted.remove(slot)
        else:
            self._stale.add(slot)

    def commit(self) -> bool:
        """Make a restart find what was written, and not what was forgotten. One or two waits for the medium.

        False: every block written since the last True is lost: those slots are empty, in this process and
        after a restart, and the caller drops their names. What was committed before stays. For a caller that
        does not drop them, `read` returns False.
        """
        assert self._is_open
        if not (self._uncommitted or self._stale or self._touched):
            return True
        if self._uncommitted:
            try:
                self._files.fdatasync(self._fd)
            except OSError as error:
                # The kernel may have dropped the dirty pages and marked them clean: a second fdatasync proves
                # nothing, so the blocks are given up.
                self._record(error)
                self._give_up_uncommitted()
                return False
        added = [self._row(slot) for slot in sorted(self._uncommitted)]
        used = [(self._used[slot], slot) for slot in sorted(self._touched - self._uncommitted)]
        try:
            # The order of use alone is not worth a sync.
            found = (self._content_of(row.slot, row.name) for row in added)
            contents = [content for content in found if content is not None]
            self._index.change(self._stale, added, used, contents, durable=bool(added or self._stale))
        except sqlite3.Error as error:
            self._record(error)
            # A COMMIT that failed may still have reached the log, so each of these may have a row.
            maybe_listed = self._uncommitted.copy()
            self._give_up_uncommitted()
            self._stale |= maybe_listed
            return False
        self._uncommitted.clear()
        self._stale.clear()
        self._touched.clear()
        return True

    def take_given_up(self) -> list[bytes]:
        """Names lost since the last call, because a commit failed or the file was truncated: they cannot be
        read."""
        names, self.given_up = self.given_up, []
        return names

    def close(self) -> None:
        """Commit, and release files and lock. Idempotent. `errors` counts what failed."""
        if not self._is_open:
            return
        try:
            self.commit()
        finally:
            self._is_open = False
            self._digester.close()
            try:
                self._resources.close()
            except (OSError, sqlite3.Error) as error:
                self._record(error)

    def _fit(self, max_age_s: float) -> None:
        """Resize the file, and keep the rows whose bytes it has and that are not too old."""
        index, length = self._index, self._files.size(self._fd)
        num_present = self.extents.num_present(length)
        num_cut = sum(num_present <= row.slot < self.num_slots for row in index.rows)
        if index.rows and num_present == 0:
            self.reset_reason = "its blocks file was empty"
        self.damaged += num_cut + len(index.unsound)
        present = [row for row in index.rows if row.slot < min(num_present, self.num_slots)]
        kept = [row for row in present if self._clock() - row.used / 1e6 <= max_age_s]
        self.aged = len(present) - len(kept)
        gone = {row.slot for row in index.rows}.union(index.unsound).difference(row.slot for row in kept)
        # 1. Delete rows before their bytes.
        if gone:
            index.change(gone, [], [], durable=True)
        # 2. Resize the file; one that cannot grow keeps its size.
        wanted = self.extents.file_bytes
        if length > wanted:
            self._files.truncate(self._fd, wanted)
        try:
            self._files.fallocate(self._fd, wanted)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.truncate(self._fd, min(length, wanted))
            raise
        # 3. The records.
        for row in kept:
            self._records[row.slot] = row.name + row.digest
            self._used[row.slot] = row.used
            self._last_use = max(self._last_use, row.used)

    def _check_length(self) -> None:
        """Raise OSError if the file was truncated, until the caller has forgotten every lost slot: in a file
        that grew again it would read as zeros. Then the file gets its size back."""
        length = self._files.size(self._fd)
        if length >= self.extents.file_bytes:
            return
        for slot in range(self.extents.num_present(length), self.num_slots):
            if self._records[slot] is not None:
                self.given_up.append(self._name(slot))
                self.forget(slot)
                self._cut.add(slot)
        if self._cut:
            raise OSError(errno.EIO, f"the blocks file was cut to {length:,} bytes")
        self._files.fallocate(self._fd, self.extents.file_bytes)

    def _delete_stale(self) -> bool:
        try:
            self._index.change(self._stale, [], [], durable=False)
        except sqlite3.Error as error:
            self._record(error)
            return False
        self._stale.clear()
        return True

    def _give_up_uncommitted(self) -> None:
        for slot in self._uncommitted:
            self.given_up.append(self._name(slot))
            self._records[slot] = None
        self._touched -= self._uncommitted
        self._uncommitted.clear()

    def _pieces(self, slot: int, block: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Each piece of a block with its offset in the file. The last one may be short."""
        size = self.extents.piece_bytes
        for piece, start in enumerate(range(0, self.block_bytes, size)):
            yield self.extents.offset(slot, piece), block[start : start + size]

    def _pwrite(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            count = self._files.pwrite(self._fd, data[done:], offset + done)
            if count == 0:
                raise OSError(errno.EIO, "a write wrote nothing")
            done += count

    def _pread_pieces(self, pieces: Sequence[tuple[int, memoryview]]) -> bool:
        """False when the file ends first."""
        if len(pieces) > 1:  # read one by one, each would wait for the medium
            for offset, piece in pieces:
                self._files.read_ahead(self._fd, offset, len(piece))
        return all(self._pread(offset, piece) for offset, piece in pieces)

    def _pread(self, offset: int, into: memoryview) -> bool:
        """False when the file ends first."""
        done = 0
        while done < len(into):
            count = self._files.pread(self._fd, into[done:], offset + done)
            if count == 0:
                return False
            done += count
        return True

    def _name(self, slot: int) -> bytes:
        record = self._records[slot]
        assert record is not None
        return record[:NAME_BYTES]

    def _row(self, slot: int) -> IndexRow:
        record = self._records[slot]
        assert record is not None
        return IndexRow(slot, record[:NAME_BYTES], record[NAME_BYTES:], self._used[slot])

    def _touch(self, slot: int) -> None:
        self._last_use = max(self._last_use + 1, int(self._clock() * 1e6))  # also where the clock went back
        self._used[slot] = self._last_use
        self._touched.add(slot)

    def _record(self, error: Exception) -> None:
        self.errors += 1
        self.last_error = str(error)


def namespace_of(fingerprint: bytes) -> str:
    """The name of its folder."""
    return fingerprint.hex()[:32]


class _Digester:
    """Digests of blocks: of the name and the digests of four parts. Several threads make them if there are
    enough cores, because one thread is slower than reads and writes."""

    def __init__(self, num_cores: int) -> None:
        """The calling thread computes, and one more for each four cores."""
        num_threads = min(_PARTS - 1, num_cores // _CORES_EACH)
        self._threads = ThreadPoolExecutor(num_threads, "octavo-digest") if num_threads else None

    def digest(self, name: bytes, data: memoryview) -> bytes:
        """O(bytes)."""
        size = -(-len(data) // _PARTS)
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        if self._threads is None:
            digests = list(map(_digest, parts))
        else:
            others = [self._threads.submit(_digest, part) for part in parts[1:]]
            digests = [_digest(parts[0]), *(other.result() for other in others)]
        return _digest(b"".join([name, *digests]))

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _lock(files: Files, path: Path, resources: contextlib.ExitStack) -> None:
    """Hold the namespace until `resources` are closed or the process ends."""
    fd = files.open(path)
    resources.callback(files.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.exists(path) and os.path.samestat(os.fstat(fd), os.stat(path))
    except BlockingIOError:
        is_ours = False
    if not is_ours:  # held by another process, or just being removed by one
        raise ConfigError(
            f"the disk folder {path.parents[1]} is in use by another process (it holds {path}); "
            "allowed: one process for a folder and a model; stop the other, or choose another folder"
        ) from None
