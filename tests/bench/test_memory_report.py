"""The figures of memory that are known beforehand, and the order that policies must come in."""

import itertools
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.tiers import full

from octavo.bench.lengths import CHATS, INSTRUCTIONS, Trace, lengths_of, quantiles, synthetic
from octavo.bench.memory import (
    Bookkeeping,
    bookkeeping,
    deep_size,
    measure,
    paged_waste,
    parallel_sampling,
    pool_of,
    scattered,
    worked,
)
from octavo.bench.traces import read_trace
from octavo.bench.workloads import Memory
from octavo.errors import ConfigError
from octavo.sim.policies import Job, replay_reserved, reservation_policies

SETTINGS = Memory()


def test_600_tokens_in_blocks_of_16():
    found = worked(600, 2048, 16)
    assert (found.num_blocks, found.slots_wasted) == (38, 8)
    assert f"{found.share_wasted:.1%} {found.share_wasted_reserved:.1%}" == "1.3% 70.7%"


def test_900_tokens_in_blocks_of_32():
    found = worked(900, 4096, 32)
    assert (found.num_blocks, found.slots_wasted) == (29, 28)
    assert f"{found.share_wasted:.1%} {found.share_wasted_reserved:.1%}" == "3.0% 78.0%"


def test_a_contiguous_memory_with_room_enough_refuses_what_blocks_serve():
    found = scattered()
    assert (found.wanted, found.num_free, found.largest_hole) == (600, 4096, 512)
    assert not found.contiguous_serves
    assert found.paged_serves
    assert found.blocks_taken == 38
    assert found.runs_taken >= 2


@pytest.mark.parametrize("source, count", [(CHATS, 60), full(INSTRUCTIONS, 240)])
def test_policies_come_in_the_papers_order(source, count):
    settings = replace(SETTINGS, pool_tokens=4096)
    trace, pool = synthetic(source, count, 0, settings.max_length), pool_of(settings)
    found = [
        replay_reserved(trace.jobs, policy, pool.num_slots, pool.step_s)
        for policy in reservation_policies(settings.max_length)
    ]
    found.append(paged_waste(trace, settings).result)
    assert [row.policy for row in found] == ["static", "Orca Max", "Orca Pow2", "Orca Oracle", "Octavo"]
    static, reserved_max, *_ = found
    assert static.stored == reserved_max.stored  # 2,048 is a power of two
    assert reserved_max.running_max == 2
    for worse, better in itertools.pairwise(found[1:]):
        assert worse.stored < better.stored
        assert worse.running < better.running
        assert worse.steps > better.steps
    for row in found:
        assert row.stored + row.reserved + row.internal + row.external == pytest.approx(1)


def test_more_answers_to_a_prompt_share_more():
    trace = synthetic(INSTRUCTIONS, 24, 0, SETTINGS.max_length)
    saved = [parallel_sampling(trace, n, SETTINGS).saved for n in (1, 2, 4, 6)]
    assert saved[0] == 0
    assert saved == sorted(saved)


def test_what_is_shared_of_one_request_by_hand():
    # 64 tokens are 4 blocks that two answers share; from the second step on each has a block of its own.
    found = parallel_sampling(Trace("one", (Job(64, 10),)), 2, SETTINGS)
    assert (found.steps, found.preemptions) == (10, 0)
    assert found.saved == pytest.approx((4 / 8 + 9 * 4 / 10) / 10)


def test_a_tail_is_shared_until_it_is_written():
    # 60 tokens are 3 full blocks and a tail, which the first output of either answer makes two.
    found = parallel_sampling(Trace("one", (Job(60, 4),)), 2, SETTINGS)
    assert found.saved == pytest.approx((4 / 8 + 3 * 3 / 8) / 4)


TRACE = """
import tracemalloc
from octavo.bench.memory import deep_size, full_memory

tracemalloc.start()
memory = full_memory(2048, 16, 512)
traced = tracemalloc.get_traced_memory()[0]
tracemalloc.stop()
print(deep_size(memory), traced)
"""


def test_the_ledgers_size_is_what_the_allocator_says():
    """In a process of its own: what earlier tests freed, the interpreter keeps and uses again, untraced."""
    done = subprocess.run(
        [sys.executable, "-c", TRACE], capture_output=True, text=True, check=True, timeout=60
    )
    size, traced = map(int, done.stdout.split())
    assert size == pytest.approx(traced, rel=0.1)


def test_the_ledger_is_a_thousandth_of_its_kv():
    found = {size: bookkeeping(size) for size in (16, 32)}
    assert found[16].kv_bytes == found[32].kv_bytes == 65_536 * 23_040
    assert found[16].share < 0.002
    assert found[32].share < found[16].share


def test_deep_size_counts_a_thing_once():
    thing = list(range(1000, 1100))
    assert deep_size([thing, thing]) == deep_size([thing, None]) - deep_size(None)


@pytest.mark.parametrize("source", [CHATS, INSTRUCTIONS])
def test_synthetic_lengths_have_the_stated_means_and_a_tail(source):
    for lengths in (source.prompt, source.output):
        drawn = quantiles(lengths, 4000)
        assert statistics.fmean(drawn) == pytest.approx(lengths.mean, rel=0.02)
        assert 1 <= min(drawn) < max(drawn) <= lengths.most
        assert statistics.median(drawn) < lengths.mean
    few = synthetic(source, 100, 0, 2048)
    assert few.prompt_mean == pytest.approx(source.prompt.mean, rel=0.05)
    assert few.output_mean == pytest.approx(source.output.mean, rel=0.05)
    assert few == synthetic(source, 100, 0, 2048) != synthetic(source, 100, 1, 2048)


@pytest.mark.parametrize("max_length", [2, 3, 100])
def test_synthetic_requests_fit_a_shorter_maximum(max_length):
    for source in (CHATS, INSTRUCTIONS):
        assert all(job.positions < max_length for job in synthetic(source, 50, 0, max_length).jobs)


def test_a_trace_from_a_file_is_its_lengths_by_arrival(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": 10, "output": 5, "arrival": 0.5}\n\n{"prompt": 3, "output": 1}\n')
    assert lengths_of(read_trace(path)) == Trace("mine.jsonl", (Job(3, 1, 0.0), Job(10, 5, 0.5)))


def test_a_pool_that_is_too_small_is_refused_before_anything_runs():
    settings = Memory(pool_tokens=2000, max_length=1025)
    with pytest.raises(ConfigError, match="--pool-tokens"):
        next(measure([], [], settings))


def test_the_same_seed_gives_the_same_rows():
    settings = Memory(pool_tokens=256, block_size=4, max_length=64, seed=3)
    traces = [synthetic(INSTRUCTIONS, 12, 3, 64)]
    one, other = (
        [row for row in measure(traces, traces, settings) if not isinstance(row, Bookkeeping)]
        for _ in range(2)
    )
    assert one == other
