"""A restart publishes what is on disk."""

from __future__ import annotations

from array import array
from pathlib import Path

from tests.executor.store import bytes_of, name_of, open_store

from octavo.engine.offload import OffloadStores
from octavo.memory.changes import ChangeRecord, Place
from octavo.memory.names import NameChain


def test_blocks_on_disk_are_reported_with_their_tokens_after_a_restart(tmp_path: Path) -> None:
    tokens, chain = array("I", [1, 2, 3, 4]), NameChain(b"r" * 32, 2)
    chain.names = [name_of(0), name_of(1)]
    store, record = open_store(tmp_path), ChangeRecord()
    OffloadStores(store, 0, 1.0, disk=store).describe(record)
    record.describe(chain, tokens, "t", "salt", 0, 2)
    for slot, name in enumerate(chain.names):
        record.begin_store(name)
        assert store.write(slot, name, memoryview(bytes_of(name)))
    assert store.commit()
    store.close()
    again, new = open_store(tmp_path), ChangeRecord()
    OffloadStores(again, 0, 1.0, disk=again).describe(new)
    for name, _ in again.entries():
        new.add(name, Place.DISK)
    told = new.take()
    assert {(one.name, one.tenant, one.place) for one in told} == {
        (name, "t", Place.DISK) for name in chain.names
    }
    assert {one.name: (one.content.parent, one.content.tokens, one.content.salt) for one in told} == {
        chain.names[0]: (None, tokens[:2].tobytes(), "salt"),
        chain.names[1]: (chain.names[0], tokens[2:].tobytes(), "salt"),
    }
    again.close()


def test_of_what_a_restart_finds_the_published_tenants_blocks_alone_are_reported(tmp_path: Path) -> None:
    record = ChangeRecord(["a"])
    full = ChangeRecord()
    chain = NameChain(b"r" * 32, 2)
    chain.extend(array("I", [1, 2]))
    full.describe(chain, array("I", [1, 2]), "b", "", 0, 1)
    found = full.find(chain.names[0])
    assert found is not None
    record.expect(chain.names[0], *found)
    record.add(chain.names[0], Place.DISK)
    assert record.take() == []
