"""The scheduler's invariants, recomputed: for tests, the simulator, and idle moments. O(everything)."""

from __future__ import annotations

from collections import Counter

from octavo.memory.capacity import blocks_needed
from octavo.memory.holders import HolderKind
from octavo.memory.ledger import Ledger
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import State


def check_live(ledger: Ledger, live: LiveSequences, max_rows: int) -> None:
    """Raise AssertionError, with the difference, unless ledger and sequences agree."""
    everyone = [s for request in live.live_requests() for s in live.sequences_of(request)]
    running = [s for s in everyone if s.state is State.RUNNING]
    assert set(running) == set(live.running), "a running sequence is not in the list"
    ranks = [s.own_rank for s in live.running]
    assert ranks == sorted(ranks), "running sequences are out of order"
    assert set(live.waiting) == set(everyone) - set(running), "a waiting sequence is not in the queue"
    registered = {h for h in ledger.holders.values() if h.kind is HolderKind.SEQUENCE}
    assert registered == {s.holder for s in running}, "holders and running sequences differ"
    rows = [s.row for s in running]
    assert len(rows) == len(set(rows)), "two sequences share a row"
    assert live.num_free_rows == max_rows - len(rows) - sum(s.forks_left for s in running)
    assert live.names.sequences() <= set(running), "no sequence computes a name that is registered"
    admitted = Counter[str]()
    for s in running:
        admitted[s.request.tenant] += s.num_prompt_unserved
    assert +admitted == +live.service.admitted, "a tenant's turn counts prompts that do not run"
    assert min(live.service.admitted.values(), default=0) >= 0
    for s in everyone:
        assert s.table is s.holder.table
        assert 0 <= s.num_computed <= s.num_planned, f"counters of sequence {s.seq_id}"
        assert s.num_planned <= s.known + s.num_guessed, f"sequence {s.seq_id} is planned ahead of its tokens"
        assert len(s.chain.names) == len(s.tokens) // ledger.block_size
        if s.state is State.RUNNING:
            assert s.table is not None
            assert s.num_planned <= len(s.table) * ledger.block_size
            assert s.table.num_published * ledger.block_size <= s.num_computed, "published before its step"
            num_cold = len(s.table.cold)
            assert s.table.cold == s.chain.names[:num_cold], "a cold block belongs to another prefix"
            assert not num_cold or s.request.hot_blocks, (
                "a sequence that the pool has room for has cold blocks"
            )
            for name, block in zip(s.chain.names[num_cold:], s.table.published, strict=False):
                assert ledger.pool.name_of[block] in (name, None), "a block has another prefix's name"
        else:
            assert s.table is None
            assert s.row == -1
            assert s.num_planned == 0


def check_beams(ledger: Ledger, live: LiveSequences) -> None:
    """A group runs with all its beams or waits with only its leader, has its rows, and stays within its worst
    case."""
    for request in live.requests():
        sequences = live.sequences_of(request.request_id)
        group = sequences[0].group
        if group is None:
            continue
        assert set(sequences) == set(group.sequences()), (
            "a beam without a sequence, or a sequence without a beam"
        )
        assert group.leader.forks_left == sum(s.forks_left for s in sequences), (
            "rows promised to another beam"
        )
        assert len(sequences) + group.leader.forks_left == group.params.width, "a group has lost a row"
        for beam in group.beams:
            s = beam.sequence
            assert s is None or len(s.tokens) == s.num_prompt + beam.length, (
                "a beam's tokens are not its path"
            )
            assert beam.candidates is None or (s is not None and s.pending == 0), "delivered, and in flight"
        if group.leader.state is not State.RUNNING:
            assert sequences == [group.leader], "a beam runs while its leader waits"
            continue
        held = {block for s in sequences if s.table is not None for block in s.table.blocks}
        needed = blocks_needed(request, ledger.block_size)
        assert len(held) <= needed, "a group holds more than its worst case"
