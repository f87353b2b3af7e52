"""The record of what comes to a tier and leaves it."""

from __future__ import annotations

from array import array

from octavo.memory.changes import ChangeRecord, Content, Place
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.names import NameChain
from octavo.memory.quota import SHARED
from octavo.memory.tiers import OffloadTier

TOKENS = array("I", [1, 2, 3, 4])
A, B = b"a" * 32, b"b" * 32


def chain_of(tokens: array[int] = TOKENS, root: bytes = b"r" * 32) -> NameChain:
    chain = NameChain(root, 2)
    chain.extend(tokens)
    return chain


def ledger_of(num_blocks: int, num_slots: int = 0, num_host: int = 0) -> tuple[Ledger, ChangeRecord]:
    ledger, record = Ledger(num_blocks, 2), ChangeRecord()
    ledger.history.changes = record
    ledger.attach(OffloadTier(num_slots, num_host=num_host) if num_slots else None)
    return ledger, record


def told(record: ChangeRecord) -> list[tuple[bytes, str, str, bool]]:
    return [(c.name, c.tenant, c.place.value, c.is_added) for c in record.take()]


def compute(ledger: Ledger, chain: NameChain, tenant: str = "") -> None:
    """What a sequence does that computes the whole chain and ends."""
    table = ledger.open(Holder(HolderKind.SEQUENCE, tenant), chain.num_shared)
    stop = 2 * len(chain.names)
    assert ledger.reserve(table, 0, stop) is not None
    ledger.describe(chain, TOKENS[:stop], tenant, "", 0, len(chain.names))
    ledger.publish(table, chain.names, stop)
    ledger.close(table)


def test_blocks_are_reported_head_first_with_parent_and_tokens_and_leave_tail_first() -> None:
    ledger, record = ledger_of(2)
    first, second = chain_of().names
    compute(ledger, chain_of())
    assert record.changes[1].content == Content(first, array("I", [3, 4]).tobytes())
    assert record.changes[0].content.parent is None
    assert told(record) == [(first, "", "pool", True), (second, "", "pool", True)]
    ledger.pool.drop_cached(2)
    assert told(record) == [(second, "", "pool", False), (first, "", "pool", False)]
    assert len(record) == 0


def test_a_block_that_is_computed_twice_is_reported_once() -> None:
    ledger, record = ledger_of(4)
    compute(ledger, chain_of())
    record.take()
    compute(ledger, chain_of())
    assert told(record) == []


def test_poisoned_names_and_those_of_a_smaller_pool_are_reported() -> None:
    ledger, record = ledger_of(4)
    first, second = chain_of().names
    compute(ledger, chain_of())
    record.take()
    ledger.forget([first, B])
    assert told(record) == [(first, "", "pool", False)]
    assert ledger.resize(1, ()) is not None  # the second is in the block that goes
    assert told(record) == [(second, "", "pool", False)]


def test_a_name_keeps_its_tokens_while_any_tier_has_it_or_gets_it() -> None:
    ledger, record = ledger_of(1, num_slots=2, num_host=1)
    chain, tier = chain_of(TOKENS[:2]), ledger.tier
    (name,) = chain.names
    assert tier is not None
    compute(ledger, chain)
    tier.begin_store(name)
    ledger.pool.drop_cached(1)
    tier.end_store(name, ok=True)
    assert told(record) == [(name, "", "pool", True), (name, "", "pool", False), (name, "", "host", True)]
    tier.begin_store(A)  # takes its slot: it moves on to disk
    assert told(record) == [(name, "", "disk", True), (name, "", "host", False)]
    tier.end_store(A, ok=False)
    tier.forget(name)
    assert told(record) == [(name, "", "disk", False)]
    assert len(record) == 0


def test_a_store_that_fails_shows_nothing_and_keeps_nothing() -> None:
    ledger, record = ledger_of(1, num_slots=1)
    assert ledger.tier is not None
    ledger.tier.begin_store(A)
    ledger.tier.end_store(A, ok=False)
    assert told(record) == []
    assert len(record) == 0


def test_names_of_an_older_process_are_reported_when_a_request_finds_them() -> None:
    ledger, record = Ledger(1, 2), ChangeRecord()
    ledger.history.changes = record
    chain = chain_of()
    ledger.attach(OffloadTier(2, [(chain.names[0], 0)]))
    assert told(record) == []
    ledger.describe(chain, TOKENS, "t", "salt", 0, 1)
    assert record.changes[0].content == Content(None, array("I", [1, 2]).tobytes(), "salt")
    assert told(record) == [(chain.names[0], "t", "disk", True)]


def test_a_shared_name_is_reported_for_each_tenant_that_used_it_and_leaves_for_all() -> None:
    ledger, record = ledger_of(4)
    whole = chain_of(TOKENS[:2])
    (shared,) = whole.names
    compute(ledger, whole, SHARED)
    assert told(record) == []
    for tenant in "uv":
        own = NameChain(tenant.encode() * 32, 2)
        own.begin_with_shared([shared])
        own.extend(TOKENS)
        compute(ledger, own, tenant)
        assert told(record) == [(shared, tenant, "pool", True), (own.names[1], tenant, "pool", True)]
    ledger.forget([shared])
    assert told(record) == [(shared, "u", "pool", False), (shared, "v", "pool", False)]


def test_tenants_that_are_not_published_are_not_reported_and_their_tokens_are_not_kept() -> None:
    record = ChangeRecord(["u"])
    chain = chain_of()
    record.describe(chain, TOKENS, "v", "", 0, 2)
    record.add(chain.names[0], Place.POOL)
    assert told(record) == []
    assert record.whole() == []


def test_the_whole_is_what_the_changes_come_to() -> None:
    ledger, record = ledger_of(4)
    compute(ledger, chain_of())
    added = record.take()
    assert sorted(record.whole(), key=lambda c: c.name) == sorted(added, key=lambda c: c.name)


def test_without_a_record_no_list_grows() -> None:
    ledger = Ledger(2, 2)
    ledger.attach(OffloadTier(2))
    compute(ledger, chain_of())
    assert ledger.history.changes is None
