"""Contiguous allocators against a bitmap, and policies against figures made by hand."""

import random

import pytest

from octavo.sim.contiguous import BuddyAllocator, Extent, FirstFit, rounded
from octavo.sim.driver import Pool, replay_paged, requests_of, serve, slots_of
from octavo.sim.policies import Job, Policy, replay_reserved, reservation_policies

STEP_S = 0.01
MAX, POW2, ORACLE = "Orca Max", "Orca Pow2", "Orca Oracle"


class Bitmap:
    """The stupid model: a flag for each slot."""

    def __init__(self, num_slots):
        self.used = [False] * num_slots

    def mark(self, piece, used):
        assert 0 <= piece.start < piece.stop <= len(self.used)
        assert all(flag is not used for flag in self.used[piece.start : piece.stop]), "pieces overlap"
        self.used[piece.start : piece.stop] = [used] * piece.size

    def is_free(self, start, size):
        return start + size <= len(self.used) and not any(self.used[start : start + size])

    def buddies(self):
        """Sizes of which an aligned piece is free."""
        sizes = [1 << order for order in range(len(self.used).bit_length())]
        return [
            size
            for size in sizes
            if any(self.is_free(start, size) for start in range(0, len(self.used), size))
        ]


def live(allocator, num_slots, seed, check):
    """A random life: pieces are taken and given back; returns the pieces that are left."""
    r, bitmap, pieces = random.Random(seed), Bitmap(num_slots), []
    for _ in range(300):
        if pieces and r.random() < 0.45:
            piece = pieces.pop(r.randrange(len(pieces)))
            allocator.give(piece)
            bitmap.mark(piece, False)
        else:
            size = r.randint(1, r.choice([3, 10, num_slots]))
            piece = allocator.take(size)
            check(bitmap, size, piece)
            if piece is not None:
                assert piece.size >= size
                bitmap.mark(piece, True)
                pieces.append(piece)
        assert allocator.num_free == bitmap.used.count(False)
    return pieces, bitmap


@pytest.mark.parametrize("seed", range(40))
def test_buddies_are_aligned_and_found_whenever_there_is_one(seed):
    num_slots = random.Random(f"slots {seed}").choice([1, 2, 16, 64, 7, 100, 123])
    allocator = BuddyAllocator(num_slots)
    whole = [set(starts) for starts in allocator.free]

    def check(bitmap, size, piece):
        assert allocator.largest_hole <= max(bitmap.buddies(), default=0)
        if piece is None:
            assert rounded(size) not in bitmap.buddies(), "a free piece was not found"
        else:
            assert piece.size == rounded(size)
            assert piece.start % piece.size == 0

    pieces, bitmap = live(allocator, num_slots, seed, check)
    assert allocator.largest_hole == max(bitmap.buddies(), default=0)
    for piece in pieces:
        allocator.give(piece)
    assert allocator.free == whole, "free buddies were not joined"


def test_a_memory_that_is_no_power_of_two_is_several_trees():
    allocator = BuddyAllocator(15_744)
    sizes = [1 << order for order, starts in enumerate(allocator.free) if starts]
    assert sizes == [128, 256, 1024, 2048, 4096, 8192]
    assert [allocator.take(2048) is not None for _ in range(8)] == [True] * 7 + [False]
    assert (allocator.num_free, allocator.largest_hole) == (1408, 1024)


def test_a_buddy_that_is_split_is_not_joined():
    allocator = BuddyAllocator(4)
    left, right = allocator.take(2), allocator.take(1)
    assert (left, right) == (Extent(0, 2), Extent(2, 1))
    allocator.give(left)
    assert allocator.largest_hole == 2
    allocator.give(right)
    assert allocator.largest_hole == 4


def test_the_lowest_of_equal_buddies_is_taken():
    allocator = BuddyAllocator(8)
    pieces = [allocator.take(1) for _ in range(8)]
    for piece in pieces[::2]:
        allocator.give(piece)
    assert [allocator.take(1).start for _ in range(4)] == [0, 2, 4, 6]


def test_a_piece_given_back_twice_is_a_bug():
    allocator = BuddyAllocator(3)
    piece = allocator.take(1)
    allocator.give(piece)
    with pytest.raises(AssertionError):
        allocator.give(piece)


@pytest.mark.parametrize("size, power", [(1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64), (2048, 2048)])
def test_rounding_up_to_a_power_of_two(size, power):
    assert rounded(size) == power


@pytest.mark.parametrize("seed", range(20))
def test_first_fit_takes_the_lowest_hole(seed):
    num_slots = random.Random(f"slots {seed}").choice([1, 5, 64, 100])
    allocator = FirstFit(num_slots)

    def check(bitmap, size, piece):
        starts = [start for start in range(num_slots) if bitmap.is_free(start, size)]
        assert piece == (Extent(starts[0], size) if starts else None)

    for piece in live(allocator, num_slots, seed, check)[0]:
        allocator.give(piece)
    assert (allocator.num_free, allocator.largest_hole) == (num_slots, num_slots)


def replayed(name, jobs, num_slots, max_length):
    policy = next(policy for policy in reservation_policies(max_length) if policy.name == name)
    return replay_reserved(jobs, policy, num_slots, STEP_S)


def random_jobs(seed, count=60):
    r = random.Random(seed)
    return [Job(r.randint(1, 40), r.randint(1, 24), r.choice([0, r.random()])) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_every_policy_serves_everything_and_gives_all_back(seed):
    jobs = random_jobs(seed)
    for policy in reservation_policies(64):
        made = []

        def allocator(num_slots, policy=policy, made=made):
            made.append(policy.allocator(num_slots))
            return made[-1]

        found = replay_reserved(jobs, Policy(policy.name, allocator, policy.wanted), 300, STEP_S)
        assert found.stored + found.reserved + found.internal + found.external == pytest.approx(1)
        assert min(found.stored, found.reserved, found.internal, found.external) >= 0
        assert found.steps >= max(job.output for job in jobs)
        assert found.measured_steps <= found.steps
        assert found.running <= found.running_max <= len(jobs)
        assert made[0].num_free == 300


def test_static_and_max_hold_the_whole_maximum_for_each():
    # One at a time: 3 then 4 of 8 slots are stored; then nobody waits any more, and the measure ends.
    for name in ("static", MAX):
        found = replayed(name, [Job(3, 2), Job(3, 2)], 8, 8)
        assert (found.steps, found.measured_steps, found.running) == (4, 2, 1)
        assert (found.stored, found.reserved, found.internal) == (7 / 16, 1 / 16, 8 / 16)
        assert found.external == 0


def test_oracle_holds_what_will_be_stored():
    found = replayed(ORACLE, [Job(3, 2), Job(3, 2)], 8, 8)
    assert (found.steps, found.measured_steps, found.running) == (2, 2, 2)
    assert (found.stored, found.reserved, found.internal) == (7 / 8, 1 / 8, 0)


def test_oracle_is_rounded_up_by_its_allocator():
    found = replayed(ORACLE, [Job(5, 1), Job(5, 1)], 8, 8)
    assert (found.running, found.stored, found.internal) == (1, 5 / 8, 3 / 8)


def test_pow2_holds_the_next_power_of_two_of_the_output():
    # 8 + 32 = 40 slots, of which the buddies make 64; 27 will be stored: 8, 9 ... 27 are.
    found = replayed(POW2, [Job(8, 20)], 64, 64)
    assert (found.steps, found.measured_steps, found.internal) == (20, 20, 37 / 64)
    assert found.stored == pytest.approx(17.5 / 64)
    assert found.reserved == pytest.approx(9.5 / 64)


def test_free_memory_counts_while_someone_waits():
    # 8 + 4 slots: the second request of 8 finds 4 free slots, which nobody can use.
    found = replayed(MAX, [Job(4, 3), Job(4, 3)], 12, 8)
    # Once nobody waits, the measure ends.
    assert (found.steps, found.measured_steps) == (6, 3)
    assert found.stored == pytest.approx((4 + 5 + 6) / 3 / 12)
    assert found.external == pytest.approx(4 / 12)


def test_free_memory_that_no_one_waits_for_is_no_waste():
    found = replayed(MAX, [Job(4, 3)], 12, 8)
    assert (found.external, found.internal) == (0, 2 / 8)


def test_a_large_request_is_passed_by_a_bounded_number():
    # 16 of 32 slots are taken, 32 are wanted, and small ones find room all the while.
    jobs = [Job(2, 15), Job(16, 2), *[Job(4, 1) for _ in range(100)]]
    taken = []

    class Spy(BuddyAllocator):
        def take(self, size):
            piece = super().take(size)
            taken.extend([size] if piece else [])
            return piece

    replay_reserved(jobs, Policy("spy", Spy, lambda job: job.positions), 32, STEP_S)
    assert taken.index(17) == 1 + 32


def test_time_passes_without_steps_while_no_one_is_there():
    for replay in (
        lambda jobs: replayed(ORACLE, jobs, 64, 64),
        lambda jobs: replay_paged(jobs, Pool(4, 16, STEP_S), seed=0),
    ):
        found = replay([Job(4, 3), Job(4, 3, arrival=1000.0)])
        assert (found.steps, found.running, found.running_max) == (6, 1, 1)


def test_paged_memory_by_hand():
    # Blocks of 4: a prompt of 3, then two more positions: the last block will hold one of them.
    found = replay_paged([Job(3, 3), Job(3, 3)], Pool(2, 4, STEP_S), seed=0)
    assert (found.steps, found.measured_steps, found.running) == (6, 3, 1)
    # Step 1: 3 of 4 slots, 1 to come, 4 free; 2: 4 stored, 4 free; 3: 5 stored, 3 never; then nobody waits.
    assert found.stored == pytest.approx((3 + 4 + 5) / 3 / 8)
    assert found.reserved == pytest.approx(1 / 3 / 8)
    assert found.internal == pytest.approx(3 / 3 / 8)
    assert found.external == pytest.approx((4 + 4) / 3 / 8)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_in_blocks_waste_is_under_one_block_for_each_sequence(seed, block_size):
    pool = Pool(320 // block_size, block_size, STEP_S)

    def look(scheduler, to_come):
        scheduler.check()
        slots = slots_of(scheduler)
        assert slots.stored + slots.reserved + slots.internal + slots.free == pool.num_slots
        assert slots.reserved + slots.internal <= (block_size - 1) * len(scheduler.live.running)

    jobs = random_jobs(seed)
    served = serve(requests_of(jobs, seed), pool, look)
    found = replay_paged(jobs, pool, seed)
    assert (found.steps, found.preemptions) == (served.steps, served.preemptions)
    assert found.stored + found.reserved + found.internal + found.external == pytest.approx(1)


def test_requests_are_distinguished_by_their_prompts_and_repeat_for_a_seed():
    jobs = [Job(20, 2, arrival=1.0), Job(20, 2)]
    requests = requests_of(jobs, seed=1)
    assert [request.arrival for request in requests] == [0.0, 1.0]
    assert requests == requests_of(jobs, seed=1) != requests_of(jobs, seed=2)
    assert requests[0].prompt[:16] != requests[1].prompt[:16]
