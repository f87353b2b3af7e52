"""Every operation of the ledger in any order: after each, everything is recomputed, and the bytes that the
block tables reach are those that were written."""

from __future__ import annotations

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from octavo.memory.check import check
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.ledger import Ledger
from octavo.memory.names import NameChain, root_name
from octavo.memory.quota import TenantPolicy
from octavo.memory.table import BlockTable
from octavo.types import BlockCopy


class Model:
    """A table, and what its positions should hold."""

    def __init__(self, table: BlockTable, tenant: int, tokens: list[int]) -> None:
        self.table, self.tenant, self.tokens = table, tenant, tokens


class LedgerMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(3, 12), block_size=st.sampled_from([1, 2, 4]))
    def start(self, num_blocks: int, block_size: int) -> None:
        capacity = num_blocks + 4
        self.memory = Ledger(num_blocks, block_size, capacity)
        self.size = block_size
        self.slots: list[tuple[int, int] | None] = [None] * (capacity * block_size)
        self.holders: list[Model] = []
        self.stores: list[BlockTable] = []  # copies on their way down

    def names(self, tenant: int, tokens: list[int]) -> list[bytes]:
        chain = NameChain(root_name(bytes([tenant])), self.size)
        chain.extend(array("I", tokens))
        return chain.names

    def pick(self, data: st.DataObject) -> Model | None:
        return data.draw(st.sampled_from(self.holders)) if self.holders else None

    @rule(tenant=st.integers(0, 1), tokens=st.lists(st.integers(0, 1), max_size=10))
    def open_and_adopt(self, tenant: int, tokens: list[int]) -> None:
        table = self.memory.open(Holder(HolderKind.SEQUENCE, str(tenant)))
        room = self.memory.quotas.room(table.owner)  # admission does not adopt beyond it either
        hits = self.memory.adopt(table, self.names(tenant, tokens)[: max(0, room)])
        self.holders.append(Model(table, tenant, tokens[: hits * self.size]))

    @rule(data=st.data(), new=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def write(self, data: st.DataObject, new: list[int]) -> None:
        if (holder := self.pick(data)) is None:
            return
        start, stop = len(holder.tokens), len(holder.tokens) + len(new)
        before = list(holder.table.blocks)
        reservation = self.memory.reserve(holder.table, start, stop)
        if reservation is None:
            assert holder.table.blocks == before
            return
        self.copy(reservation.copies)
        holder.tokens += new
        for position in range(start, stop):
            block = holder.table.blocks[position // self.size]
            self.slots[block * self.size + position % self.size] = (holder.tenant, holder.tokens[position])

    def copy(self, copies: tuple[BlockCopy, ...]) -> None:
        for copy in copies:
            source = self.slots[copy.source * self.size : (copy.source + 1) * self.size]
            self.slots[copy.target * self.size : (copy.target + 1) * self.size] = source

    @rule(data=st.data())
    def begin_store(self, data: st.DataObject) -> None:
        pool = self.memory.pool
        cached = [block for block in pool.eviction_order() if pool.name_of[block] is not None]
        if cached and len(self.stores) < 2:
            name = pool.name_of[data.draw(st.sampled_from(cached))]
            assert name is not None
            before = list(pool.charged)
            self.stores.append(self.memory.open(Holder(HolderKind.STORE), charges=False))
            assert self.memory.adopt(self.stores[-1], [name]) == 1
            assert list(pool.charged) == before, "a copy on its way is charged to somebody"

    @rule()
    def end_store(self) -> None:
        if self.stores:
            self.memory.close(self.stores.pop(0))

    @rule(tenant=st.integers(0, 1), more=st.integers(0, 6), weight=st.sampled_from([0.5, 1.0, 3.0]))
    def bound(self, tenant: int, more: int, weight: float) -> None:
        held = self.memory.quotas.charged(str(tenant))
        policy = TenantPolicy(str(tenant), weight, min(more, held), max(1, held + more))
        others = [p for p in self.memory.quotas.policies() if p.name != str(tenant)]
        self.memory.quotas.set_policies([*others, policy])

    @rule(change=st.integers(-4, 4))
    def resize(self, change: int) -> None:
        pool = self.memory.pool
        target = min(pool.capacity, max(1, pool.num_blocks + change))
        fixed = {block for table in self.stores for block in table.blocks}
        copies = self.memory.resize(target, fixed)
        if copies is None:
            assert pool.num_blocks != target
        else:
            self.copy(copies)
            assert pool.num_blocks == target

    @rule(count=st.integers(0, 3))
    def drop_cached(self, count: int) -> None:
        cached = self.memory.counts().cached
        assert self.memory.pool.drop_cached(count) == min(count, cached)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        if (holder := self.pick(data)) is not None and len(self.holders) < 8:
            self.holders.append(
                Model(
                    self.memory.fork(holder.table, Holder(HolderKind.SEQUENCE, str(holder.tenant))),
                    holder.tenant,
                    list(holder.tokens),
                )
            )

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        if (holder := self.pick(data)) is not None:
            self.memory.publish(holder.table, self.names(holder.tenant, holder.tokens), len(holder.tokens))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        if (holder := self.pick(data)) is not None:
            keep = data.draw(st.integers(0, len(holder.tokens)))
            self.memory.truncate(holder.table, keep)
            del holder.tokens[keep:]

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if (holder := self.pick(data)) is not None:
            self.memory.close(holder.table)
            self.holders.remove(holder)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        if (holder := self.pick(data)) is not None:
            self.memory.forget(self.names(holder.tenant, holder.tokens))

    @invariant()
    def everything_recomputed_agrees(self) -> None:
        if not hasattr(self, "memory"):
            return
        check(self.memory)
        for holder in self.holders:
            for position, token in enumerate(holder.tokens):
                block = holder.table.blocks[position // self.size]
                assert self.slots[block * self.size + position % self.size] == (holder.tenant, token)
            waste = len(holder.table) * self.size - len(holder.tokens)
            assert 0 <= waste < self.size, "waste is below one block per sequence"


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase
