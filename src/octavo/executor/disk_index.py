"""The disk index: which block lies in which slot, in SQLite, as a restart will find it.

    meta     one row: format, fingerprint, block_bytes, piece_bytes, lanes, num_slots
    blocks   slot | name | digest | used (microseconds since 1970)
    contents slot | name | parent (empty: none) | tokens | salt | tenants (JSON)

The table `contents` exists once `keep_contents` was called. A row of it is valid only if `blocks` has the
same name in that slot.

An index is opened for one binding. A file that is damaged, or bound to something else, is removed and created
again, and `reset_reason` says why. An error of the disk rather than the file (no space, no permission, in
use) removes nothing and is raised.

`octavo.database` opens and changes the file. The index does not know the bytes of blocks.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.database import is_trouble, open_database, reset_database, transaction
from octavo.executor.disk_layout import are_lanes
from octavo.files import Files

FORMAT = 4  # 2: a digest was of a block as a whole; 3: a block lay in one piece
NAME_BYTES = 32
DIGEST_BYTES = 16
_USED_MAX = 2**62  # far beyond any date in microseconds, and far from the end of SQLite's integers

_SCHEMA = (
    "CREATE TABLE meta (format, fingerprint, block_bytes, piece_bytes, lanes, num_slots)",
    "CREATE TABLE blocks (slot INTEGER PRIMARY KEY, name, digest, used)",
)
_CONTENTS = "CREATE TABLE contents (slot INTEGER PRIMARY KEY, name, parent, tokens, salt, tenants)"


@dataclass(frozen=True, slots=True)
class Binding:
    """What a namespace holds. A change of `num_slots` keeps the content (and the lanes, if there are enough
    slots); a change of any other field resets it."""

    fingerprint: bytes
    block_bytes: int
    piece_bytes: int  # 0: a block is one piece
    lanes: int  # of a new namespace
    num_slots: int


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One stored block."""

    slot: int
    name: bytes
    digest: bytes
    used: int


@dataclass(frozen=True, slots=True)
class ContentRow:
    """The content of a stored block, for KV events. `tokens`: little-endian uint32."""

    slot: int
    name: bytes
    parent: bytes  # the name of the block before it; empty: it begins a prompt
    tokens: bytes
    salt: str
    tenants: tuple[str, ...]


class DiskIndex:
    """An open index. `rows` and `unsound` are its content when it was opened."""

    def __init__(self, database: sqlite3.Connection, reset_reason: str, lanes: int) -> None:
        self.reset_reason = reset_reason
        self.lanes = lanes  # of this namespace
        self.rows: list[IndexRow] = []
        self.unsound: list[int] = []  # slots whose rows make no sense
        self._database = database
        self._has_contents = False

    @classmethod
    def open(cls, files: Files, path: Path, binding: Binding) -> DiskIndex:
        """The index at `path`, existing or new. Raises sqlite3.Error or OSError for errors of the disk."""
        why = ""
        if path.exists():
            found = _continue(files, path, binding)
            if isinstance(found, DiskIndex):
                return found
            why = found
        with _close_on_error(reset_database(files.connect, files.remove, path)) as database:
            index = cls(database, why, binding.lanes)
            with transaction(database, durable=True):
                for table in _SCHEMA:
                    database.execute(table)
                database.execute(
                    "INSERT INTO meta VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        FORMAT,
                        binding.fingerprint,
                        binding.block_bytes,
                        binding.piece_bytes,
                        binding.lanes,
                        binding.num_slots // binding.lanes * binding.lanes,
                    ),
                )
        return index

    def change(
        self,
        removed: Iterable[int],
        added: Iterable[IndexRow],
        used: Iterable[tuple[int, int]],
        contents: Iterable[ContentRow] = (),
        *,
        durable: bool,
    ) -> None:
        """One transaction: delete rows, insert rows, update (use, slot) of others, add new blocks' contents.
        Raises sqlite3.Error, and then it is undone, except that a `durable` one may still be found after a
        crash.
        """
        with transaction(self._database, durable=durable):
            self._remove(removed)
            self._database.executemany(
                "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?)",
                [(row.slot, row.name, row.digest, row.used) for row in added],
            )
            self._database.executemany("UPDATE blocks SET used = ? WHERE slot = ?", used)
            if self._has_contents:
                self._database.executemany(
                    "INSERT OR REPLACE INTO contents VALUES (?, ?, ?, ?, ?, ?)",
                    [(c.slot, c.name, c.parent, c.tokens, c.salt, json.dumps(c.tenants)) for c in contents],
                )

    def keep_contents(self) -> list[ContentRow]:
        """From now on `change` stores contents; returns those of stored blocks. Raises sqlite3.Error."""
        if not self._has_contents:
            with transaction(self._database, durable=False):
                self._database.execute(_CONTENTS)
            self._has_contents = True
        found = self._database.execute(
            "SELECT c.slot, c.name, parent, tokens, salt, tenants FROM contents c "
            "JOIN blocks b ON b.slot = c.slot AND b.name = c.name"
        )
        return [row for row in (_parse_content(*fields) for fields in found) if row is not None]

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _remove(self, slots: Iterable[int]) -> None:
        rows = [(slot,) for slot in slots]
        self._database.executemany("DELETE FROM blocks WHERE slot = ?", rows)
        if self._has_contents:
            self._database.executemany("DELETE FROM contents WHERE slot = ?", rows)


@contextlib.contextmanager
def _close_on_error(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Close it if the body raises."""
    try:
        yield database
    except BaseException:
        database.close()
        raise


def _continue(files: Files, path: Path, binding: Binding) -> DiskIndex | str:
    """The index as it was left, or why it is of no use."""
    try:
        with _close_on_error(open_database(files.connect, path)) as database:
            lanes = _lanes_or_misfit(database, binding)
            if isinstance(lanes, str):
                database.close()
                return lanes
            index = DiskIndex(database, "", lanes)
            tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            index._has_contents = tables != (len(_SCHEMA),)
            _load(index, database)
            # Some damage shows only on a write.
            with transaction(database, durable=False):
                database.execute("UPDATE meta SET num_slots = ?", (binding.num_slots // lanes * lanes,))
            return index
    except UnicodeDecodeError:
        return "its index was damaged (so badly that SQLite's words about it are no text)"
    except sqlite3.Error as error:
        if is_trouble(error):
            raise
        return f"its index was damaged ({error})"


def _lanes_or_misfit(database: sqlite3.Connection, binding: Binding) -> int | str:
    """The lanes of this database's blocks, or why it is not the binding's."""
    verdict = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != ("ok",):
        return f"its index was damaged ({verdict[0]})"
    schema = database.execute("SELECT sql FROM sqlite_master ORDER BY rowid").fetchall()
    if schema not in ([(table,) for table in _SCHEMA], [(table,) for table in (*_SCHEMA, _CONTENTS)]):
        return f"its index was unfinished, or had other tables than format {FORMAT}"
    meta = database.execute(
        "SELECT format, fingerprint, block_bytes, piece_bytes, lanes FROM meta"
    ).fetchall()
    if len(meta) != 1:
        return f"its index had {len(meta)} rows about itself; it has one"
    format_, fingerprint, block_bytes, piece_bytes, lanes = meta[0]
    if format_ != FORMAT:
        return f"its index had format {format_!r}; this is format {FORMAT}"
    if fingerprint != binding.fingerprint:
        return "it belonged to another model or layout"
    if block_bytes != binding.block_bytes:
        return f"its blocks had {block_bytes!r} bytes; these have {binding.block_bytes}"
    if piece_bytes != binding.piece_bytes:
        return f"its pieces had {piece_bytes!r} bytes; these have {binding.piece_bytes} (0: a block is one)"
    if not are_lanes(lanes):
        return f"its stripes had {lanes!r} slots, which is no number of slots"
    if lanes > binding.num_slots:
        return f"its stripes had {lanes} slots, and there is room for {binding.num_slots}"
    return int(lanes)


def _load(index: DiskIndex, database: sqlite3.Connection) -> None:
    """Fill `rows` and `unsound`."""
    for slot, name, digest, used in database.execute("SELECT slot, name, digest, used FROM blocks"):
        is_name = isinstance(name, bytes) and len(name) == NAME_BYTES
        is_digest = isinstance(digest, bytes) and len(digest) == DIGEST_BYTES
        is_use = isinstance(used, int) and 0 <= used < _USED_MAX
        if is_name and is_digest and is_use and slot >= 0:
            index.rows.append(IndexRow(slot, name, digest, used))
        else:
            index.unsound.append(slot)


def _parse_content(
    slot: int, name: bytes, parent: object, tokens: object, salt: object, tenants: object
) -> ContentRow | None:
    """Check the columns of a row of `contents`. Returns None for an invalid row, as if there were none."""
    if not isinstance(parent, bytes) or len(parent) not in (0, NAME_BYTES):
        return None
    if not isinstance(tokens, bytes) or not tokens or len(tokens) % 4:
        return None
    if not isinstance(salt, str) or not isinstance(tenants, str):
        return None
    try:
        tenant_names = json.loads(tenants)
    except ValueError:
        return None
    if not isinstance(tenant_names, list) or not all(isinstance(tenant, str) for tenant in tenant_names):
        return None
    return ContentRow(slot, name, parent, tokens, salt, tuple(tenant_names))
