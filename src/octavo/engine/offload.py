"""Opens the offload tiers: host memory, and disk, whose bytes are bound to model and layout, and whose unused
bytes expire."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.config import StartOptions
from octavo.engine.scheduler_setup import TierSetup
from octavo.engine.steady_clock import CLOCK_FILE, SteadyClock
from octavo.errors import ConfigError
from octavo.executor.disk import DiskStore, namespace_of
from octavo.executor.disk_folder import remove_unused, survey
from octavo.executor.disk_index import ContentRow
from octavo.executor.host import HostStore, TieredStore
from octavo.executor.transfers import BlockStore
from octavo.memory.changes import ChangeRecord, Content
from octavo.units import format_age, format_bytes

log = logging.getLogger("octavo.offload")

# Seconds from a given time for which the blocks in a namespace are needed.
NeededSeconds = Callable[[Path, float], float]


def not_needed(namespace: Path, now: float) -> float:
    """The value without references to blocks on disk."""
    return 0.0


@dataclass(frozen=True, slots=True)
class OffloadStores:
    """The bytes of the offload tiers, and the parameters of a ledger over them."""

    store: BlockStore
    num_host: int  # slots in host memory: the first ones
    max_age_s: float
    namespace: Path | None = None  # the disk's folder for this model and layout
    clock: SteadyClock | None = None  # for ages of things on disk
    disk: DiskStore | None = None

    def describe(self, record: ChangeRecord) -> None:
        """Describe the blocks on disk to a new ledger's record, and record new arrivals on disk."""
        if self.disk is None:
            return

        def content_of(slot: int, name: bytes) -> ContentRow | None:
            if (found := record.find(name)) is None:
                return None
            content, tenants = found
            return ContentRow(slot, name, content.parent or b"", content.tokens, content.salt, tenants)

        for row in self.disk.keep_contents(content_of):
            record.expect(row.name, Content(row.parent or None, row.tokens, row.salt), row.tenants)

    def setup(self, num_readable: int = 0) -> TierSetup:
        """The tier's parameters with its present names; attention can read the first `num_readable` slots."""
        max_age_s = None if math.isinf(self.max_age_s) else self.max_age_s
        stored = self.store.entries()
        return TierSetup(self.store.num_slots, self.num_host, max_age_s, stored, num_readable)


def open_stores(
    options: StartOptions,
    block_bytes: int,
    fingerprint: bytes,
    needed_s: NeededSeconds = not_needed,
    piece_bytes: int | None = None,
) -> OffloadStores | None:
    """Open host memory, disk, both or neither. On disk a block consists of pieces of `piece_bytes`, one per
    layer, or of one piece. Raises ConfigError."""
    max_age_s = options.disk_max_age_days * 86_400.0 or math.inf
    clock = open_clock(options, fingerprint)
    disk = open_disk(options, block_bytes, fingerprint, max_age_s, clock, needed_s, piece_bytes)
    if not options.host_cache_bytes:
        return None if disk is None else OffloadStores(disk, 0, max_age_s, disk.namespace, clock, disk)
    try:
        host = HostStore(options.host_cache_bytes, block_bytes)
    except ConfigError:
        if disk is not None:
            disk.close()
        raise
    if disk is None:
        return OffloadStores(host, host.num_slots, max_age_s)
    return OffloadStores(TieredStore(host, disk), host.num_slots, max_age_s, disk.namespace, clock, disk)


def open_clock(options: StartOptions, fingerprint: bytes) -> SteadyClock:
    """The clock of this model's part of the disk cache, if there is one."""
    folder = options.disk_folder
    return (
        SteadyClock() if folder is None else SteadyClock.open(folder / namespace_of(fingerprint) / CLOCK_FILE)
    )


def open_disk(
    options: StartOptions,
    block_bytes: int,
    fingerprint: bytes,
    max_age_s: float,
    clock: SteadyClock,
    needed_s: NeededSeconds = not_needed,
    piece_bytes: int | None = None,
) -> DiskStore | None:
    """The disk cache, if configured, bound to everything that its bytes depend on. Other namespaces in its
    folder are reported, and removed if no server has used them for too long; not if `clock` is unsure of
    ages.

    Raises ConfigError.
    """
    folder = options.disk_folder
    if folder is None:
        return None
    if not clock.is_sure:
        max_age_s = math.inf
    tidy(folder, namespace_of(fingerprint), max_age_s, clock())
    store = DiskStore.open(
        folder,
        options.disk_size_bytes,
        block_bytes,
        fingerprint,
        piece_bytes=piece_bytes,
        max_age_s=max_age_s,
        needed_s=lambda namespace: needed_s(namespace, clock()),
        clock=clock,
    )
    clock.keep(store.namespace / CLOCK_FILE)
    if store.reset_reason:
        log.warning("the disk cache in %s starts empty: %s", folder, store.reset_reason)
    if store.aged:
        log.warning("%s blocks in %s had not been used for too long and are gone", f"{store.aged:,}", folder)
    return store


def tidy(folder: Path, own: str, max_age_s: float, now: float) -> None:
    """Remove namespaces of other models or settings that were unused for too long from a disk cache's folder,
    and report the rest. `own` is the namespace that stays; `now` is in seconds since 1970."""
    for gone in remove_unused(folder, own, now - max_age_s):
        log.warning(
            "removed %s (%s) from the disk cache: not used for %s (setting disk_max_age)",
            gone.path,
            format_bytes(gone.num_bytes),
            format_age(now - gone.used_at),
        )
    others = [namespace for namespace in survey(folder) if namespace.name != own and not namespace.in_use]
    if others:
        log.warning(
            "%s also keeps %s of %d other models or settings, last used %s ago or more; "
            "`octavo disk clean` removes them",
            folder,
            format_bytes(sum(namespace.num_bytes for namespace in others)),
            len(others),
            format_age(now - max(namespace.used_at for namespace in others)),
        )
