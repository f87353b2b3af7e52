"""The speculator: what it reads, what it learns, and how many guesses it lets a step take."""

import math
import random

import pytest

from octavo.speculation.automaton import SuffixAutomaton
from octavo.speculation.drafter import NO_DRAFT, Draft
from octavo.speculation.speculator import DRAFTS_MAX, STEP_DRAFTS_MAX, DrafterState, Speculation, Speculator

RIGHT, WRONG = 1, 2


class FixedDrafter:
    """Says always the same: `count` times the token RIGHT."""

    def __init__(self, match=8, count=DRAFTS_MAX, name="fixed"):
        self.match, self.count, self.name = match, count, name
        self.seen = []

    @property
    def num_tokens(self):
        return len(self.seen)

    @property
    def num_bytes(self):
        return 8 * len(self.seen)

    def extend(self, tokens):
        self.seen += tokens

    def draft(self, limit):
        return Draft((RIGHT,) * min(limit, self.count), self.match)

    def copy(self):
        copy = FixedDrafter(self.match, self.count, self.name)
        copy.seen = self.seen[:]
        return copy


class DecodeLoop:
    """One sequence that decodes: every step takes the guesses that the speculator wants, and is measured."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.speculator = Speculator(Speculation.AUTO, FixedDrafter)
        self.drafting = self.speculator.begin()
        self.text = [RIGHT]
        self.speculator.read(self.drafting, self.text, 1)

    def seconds(self, num_positions):
        return 0.010 * (1.0 + 0.1 * (num_positions - 1)) * math.exp(self.random.gauss(0.0, 0.05))

    def run(self, steps, luck, pause_every=0):
        """How many guesses each step took, where each is right with probability `luck`. Every so many steps
        one is held up: another program ran, or the garbage collector."""
        taken = []
        for index in range(steps):
            count = self.speculator.counts([(self.drafting, DRAFTS_MAX)], 1, DRAFTS_MAX)[0]
            came = []
            while len(came) < count + 1 and WRONG not in came:
                came.append(RIGHT if self.random.random() < luck else WRONG)
            accepted = min(count, len(came) - 1)
            self.speculator.learn(self.drafting, came, count, accepted)
            self.text += came
            assert self.speculator.read(self.drafting, self.text, len(came)) == len(came)
            pause = 10.0 if pause_every and index % pause_every == 0 else 1.0
            self.speculator.costs.observe(1 + count, pause * self.seconds(1 + count))
            taken.append(count)
        return taken


def mean(numbers):
    return sum(numbers) / len(numbers)


def offered(match, count):
    """A drafting that guesses so many tokens by such a match."""
    drafting = DrafterState(FixedDrafter())
    drafting.draft = Draft((RIGHT,) * count, match)
    return drafting


def counts(mode, offers, budget):
    return Speculator(mode).counts(offers, len(offers), budget)


def read_all(tokens, new_drafter=SuffixAutomaton):
    speculator = Speculator(Speculation.AUTO, new_drafter)
    drafting = speculator.begin()
    assert speculator.read(drafting, tokens, len(tokens)) == len(tokens)
    return speculator, drafting


# Fixed counts


def test_ngram_takes_8_guesses_where_2_tokens_match():
    offers = [(offered(match, 16), 16) for match in (0, 1, 2, 3, 100)]
    assert counts(Speculation.NGRAM, offers, 1000) == [0, 0, 8, 8, 8]


def test_ngram_takes_no_more_than_there_are_and_than_may_be():
    offers = [(offered(9, 3), 16), (offered(9, 16), 5), (offered(9, 0), 16), (offered(9, 16), 0)]
    assert counts(Speculation.NGRAM, offers, 1000) == [3, 5, 0, 0]


def test_ngram_gives_the_first_sequences_what_the_budget_has():
    offers = [(offered(9, 16), 16), (offered(1, 16), 16), (offered(9, 16), 16), (offered(9, 16), 16)]
    assert counts(Speculation.NGRAM, offers, 11) == [8, 0, 3, 0]
    assert counts(Speculation.NGRAM, offers, 0) == [0, 0, 0, 0]


@pytest.mark.parametrize("mode", [Speculation.NGRAM, Speculation.AUTO])
def test_no_offers_are_no_counts(mode):
    assert counts(mode, [], 100) == []


def test_ngram_counts_do_not_change_with_what_comes_of_them():
    speculator = Speculator(Speculation.NGRAM, FixedDrafter)
    drafting, text = speculator.begin(), [RIGHT]
    speculator.read(drafting, text, 1)
    for _ in range(50):
        assert speculator.counts([(drafting, 16)], 1, 100) == [8]
        speculator.learn(drafting, [WRONG], 8, 0)
        text.append(WRONG)
        speculator.read(drafting, text, 1)
        speculator.costs.observe(9, 1.0)


# Counts that pay


def test_auto_takes_no_more_than_there_are_and_than_may_be():
    speculator = Speculator(Speculation.AUTO)
    for size in range(1, 40):
        speculator.costs.observe(size, 0.010)
    offers = [(offered(100, 3), 16), (offered(100, 16), 5), (offered(100, 0), 16), (offered(100, 16), 0)]
    for _ in range(200):
        speculator.learn(offered(100, 1), [RIGHT], 0, 0)
        for size in (4, 8, 9, 12, 16):
            speculator.costs.observe(size, 0.010)
    assert speculator.counts(offers, 4, 1000) == [3, 5, 0, 0]
    assert sum(speculator.counts(offers, 4, 2)) == 2
    assert speculator.counts(offers, 4, 0) == [0, 0, 0, 0]


def test_auto_takes_no_more_than_a_step_has_room_for():
    speculator = Speculator(Speculation.AUTO)
    for _ in range(200):
        speculator.learn(offered(100, 1), [RIGHT], 0, 0)
    for _ in range(50):
        for size in (1, 10, 16, 32, 64, 72, 80, 128, 256):
            speculator.costs.observe(size, 0.010)
    offers = [(offered(100, DRAFTS_MAX), DRAFTS_MAX) for _ in range(10)]
    assert sum(speculator.counts(offers, 10, 1000)) == STEP_DRAFTS_MAX


def test_auto_takes_more_guesses_where_the_match_is_longer():
    offers = [(offered(1, 16), 16), (offered(40, 16), 16)]
    short, long = counts(Speculation.AUTO, offers, 100)
    assert short < long


def test_auto_trusts_a_guess_more_the_more_are_before_it():
    speculator = Speculator(Speculation.AUTO)
    for index in range(200):
        speculator.learn(offered(3, 1), [RIGHT if index % 2 else WRONG], 0, 0)
        for match in (4, 8, 16):
            speculator.learn(offered(match, 1), [RIGHT], 0, 0)
    # One of two is right first, and then all are: were all like the first, 2 would be taken.
    assert speculator.counts([(offered(3, 1), 16)], 1, 16) == [1]
    assert speculator.counts([(offered(3, 16), 16)], 1, 16)[0] > 8


@pytest.mark.parametrize("seed", range(3))
def test_auto_takes_what_pays(seed):
    assert mean(DecodeLoop(seed).run(400, 0.9)[-100:]) > 4.0


@pytest.mark.parametrize("seed", range(3))
def test_guesses_that_are_wrong_for_long_stop_and_come_back_when_they_are_right(seed):
    loop = DecodeLoop(seed)
    assert mean(loop.run(200, 0.9)[-50:]) > 4.0
    assert loop.run(1000, 0.0)[-900:] == [0] * 900  # none is computed, and each is compared
    assert mean(loop.run(200, 0.9)[-50:]) > 4.0


@pytest.mark.parametrize("seed", range(3))
def test_pauses_while_no_guess_is_taken_do_not_keep_guesses_from_coming_back(seed):
    loop = DecodeLoop(seed)
    assert mean(loop.run(200, 0.9)[-50:]) > 4.0
    assert loop.run(1000, 0.0, pause_every=50)[-900:] == [0] * 900
    assert mean(loop.run(200, 0.9)[-50:]) > 4.0


def test_one_sequence_that_is_wrong_for_long_takes_no_guesses_from_others():
    loop = DecodeLoop()
    loop.run(300, 0.9)
    other = loop.speculator.begin()
    text = [RIGHT]
    loop.speculator.read(other, text, 1)
    for _ in range(30):
        loop.run(5, 0.9)
        loop.speculator.learn(other, [WRONG], 0, 0)
        text.append(WRONG)
        loop.speculator.read(other, text, 1)
        loop.speculator.costs.observe(
            2, loop.seconds(2)
        )  # else the first such step goes without, to be measured
    one, wrong = loop.speculator.counts([(loop.drafting, 16), (other, 16)], 2, 100)
    assert one > 4
    assert wrong == 0


def test_where_every_step_has_guesses_one_without_is_measured_now_and_then():
    """Else nothing would tell that it is cheaper, where it is: here guesses never pay."""
    loop = DecodeLoop()
    loop.seconds = lambda num_positions: 0.010 * num_positions
    loop.run(2000, 0.9)
    assert mean(loop.run(200, 0.9)) < 0.5


def test_a_size_that_was_held_for_dear_is_tried_again():
    loop = DecodeLoop()
    for size in range(2, 18):
        for _ in range(50):
            loop.speculator.costs.observe(1, 0.010)
            loop.speculator.costs.observe(size, 0.012 * size)
    assert loop.speculator.costs.of(5) > 4.5 * loop.speculator.costs.of(1)
    loop.run(5_000, 0.9)
    assert mean(loop.run(100, 0.9)) > 4.0


def test_a_sequence_promises_where_its_next_guess_is_likelier_right_than_not():
    speculator = Speculator(Speculation.AUTO)
    assert not speculator.is_promising(offered(40, 0))
    assert not speculator.is_promising(offered(1, 16))
    assert speculator.is_promising(offered(40, 16))
    drafting = offered(40, 16)
    for _ in range(100):
        drafting.draft = Draft((RIGHT,), 40)
        speculator.learn(drafting, [WRONG], 0, 0)
    drafting.draft = Draft((RIGHT,), 40)
    assert not speculator.is_promising(drafting)


# Reading


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_a_prompt_is_read_in_pieces_and_drafted_from_at_its_end(limit):
    tokens = [1, 2, 3, 1, 2, 3, 1]
    speculator = Speculator(Speculation.AUTO)
    drafting = speculator.begin()
    pieces = []
    while count := speculator.read(drafting, tokens, limit):
        pieces.append(count)
        assert count <= limit
        assert drafting.drafter.num_tokens == sum(pieces)
        if sum(pieces) < len(tokens):
            assert drafting.draft == NO_DRAFT
    assert sum(pieces) == len(tokens)
    assert len(pieces) == math.ceil(len(tokens) / limit)
    assert drafting.draft.tokens[:6] == (2, 3, 1, 2, 3, 1)
    assert len(drafting.draft.tokens) == DRAFTS_MAX


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_none_reads_nothing(limit):
    speculator = Speculator(Speculation.AUTO)
    drafting = speculator.begin()
    assert speculator.read(drafting, [1, 1], limit) == 0
    assert drafting.drafter.num_tokens == 0
    assert drafting.draft == NO_DRAFT


def test_what_is_read_is_not_read_again():
    speculator, drafting = read_all([1, 2, 1], FixedDrafter)
    draft = drafting.draft
    assert speculator.read(drafting, [1, 2, 1], 100) == 0
    assert speculator.read(drafting, [1, 2, 1, 5], 100) == 1
    assert drafting.drafter.seen == [1, 2, 1, 5]
    assert draft.tokens


# Learning


def test_guesses_are_counted_by_the_name_of_their_drafter():
    speculator = Speculator(Speculation.AUTO)
    one, other = DrafterState(FixedDrafter(name="one")), DrafterState(FixedDrafter(name="other"))
    speculator.learn(one, [RIGHT, RIGHT, WRONG], 5, 2)
    speculator.learn(other, [RIGHT], 1, 0)
    speculator.learn(one, [RIGHT, RIGHT], 3, 1)
    speculator.learn(one, [RIGHT], 0, 0)
    assert speculator.drafted == {"one": 8, "other": 1}
    assert speculator.accepted == {"one": 3, "other": 0}
    assert (one.num_drafted, one.num_accepted) == (8, 3)
    assert (other.num_drafted, other.num_accepted) == (1, 0)


def test_guesses_that_were_not_computed_are_not_counted():
    speculator, drafting = read_all([1, 1, 1])
    speculator.learn(drafting, [1], 0, 0)
    assert (speculator.drafted, speculator.accepted) == ({}, {})
    assert (drafting.num_drafted, drafting.num_accepted) == (0, 0)


def test_guesses_that_were_not_computed_teach_as_much_as_others():
    computed, compared = read_all([1, 1, 1]), read_all([1, 1, 1])
    for _ in range(20):
        for (speculator, drafting), count in ((computed, 4), (compared, 0)):
            drafting.draft = Draft((RIGHT, RIGHT, RIGHT), 4)
            speculator.learn(drafting, [RIGHT, WRONG], count, min(count, 1))
            drafting.draft = Draft((RIGHT,) * 16, 4)
    offers = [[(drafting, 16)] for _, drafting in (computed, compared)]
    assert computed[0].counts(offers[0], 1, 16) == compared[0].counts(offers[1], 1, 16)
    for match in (1, 4, 5, 8):
        rates = [pair[1].fate.rate(pair[0]._acceptance, match) for pair in (computed, compared)]
        assert rates[0] == rates[1]


def test_nothing_is_learned_behind_the_first_guess_that_is_wrong():
    speculator = Speculator(Speculation.AUTO)
    before = [speculator._acceptance.rate(match) for match in (7, 8, 16)]
    drafting = DrafterState(FixedDrafter())
    drafting.draft = Draft((RIGHT,) * 16, 7)
    speculator.learn(drafting, [WRONG] + [RIGHT] * 15, 16, 0)
    after = [speculator._acceptance.rate(match) for match in (7, 8, 16)]
    assert after[0] < before[0]
    assert after[1:] == before[1:]


def test_a_guess_counts_as_of_a_longer_match_the_more_were_right_before_it():
    speculator = Speculator(Speculation.AUTO)
    before = [speculator._acceptance.rate(match) for match in (7, 8, 16)]
    drafting = DrafterState(FixedDrafter())
    drafting.draft = Draft((RIGHT, RIGHT, RIGHT), 7)
    speculator.learn(drafting, [RIGHT, WRONG], 0, 0)
    after = [speculator._acceptance.rate(match) for match in (7, 8, 16)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert after[2] == before[2]


def test_a_draft_is_compared_once():
    speculator, drafting = read_all([1, 1, 1])
    assert drafting.draft.tokens
    speculator.learn(drafting, [1], 0, 0)
    assert drafting.draft == NO_DRAFT
    before = speculator._acceptance.rate(2)
    speculator.learn(drafting, [5], 0, 0)
    assert speculator._acceptance.rate(2) == before


# Forks


def test_a_fork_has_its_parent_s_guesses_and_counts_of_its_own():
    speculator, parent = read_all([1, 2, 3, 1, 2])
    parent.draft = Draft((RIGHT, RIGHT), 2)
    speculator.learn(parent, [RIGHT, WRONG], 2, 1)
    speculator.read(parent, [1, 2, 3, 1, 2, 3, 1], 2)
    fork = speculator.fork(parent)
    assert (fork.num_drafted, fork.num_accepted) == (0, 0)
    assert fork.draft == parent.draft
    assert fork.draft.tokens[:3] == (2, 3, 1)
    assert fork.drafter.num_tokens == 7

    speculator.learn(fork, [9], 3, 0)
    speculator.read(fork, [1, 2, 3, 1, 2, 3, 1, 9], 1)
    assert (fork.num_drafted, fork.num_accepted) == (3, 0)
    assert (parent.num_drafted, parent.num_accepted) == (2, 1)
    assert (parent.drafter.num_tokens, fork.drafter.num_tokens) == (7, 8)
    assert parent.draft.tokens[:3] == (2, 3, 1)
    assert fork.draft == NO_DRAFT
    assert speculator.drafted == {"ngram": 5}


def test_a_fork_s_fate_is_its_own():
    speculator, parent = read_all([1, 1, 1])
    fork = speculator.fork(parent)
    for _ in range(10):
        fork.draft = Draft((RIGHT,), 8)
        speculator.learn(fork, [WRONG], 0, 0)
    parent.draft = fork.draft = Draft((RIGHT,), 8)
    acceptance = speculator._acceptance
    assert parent.fate.rate(acceptance, 8) == acceptance.rate(8)
    assert fork.fate.rate(acceptance, 8) < 0.5 * acceptance.rate(8)


def test_steps_that_are_not_measured_are_not_made_to_measure_them():
    """Steps with prompts: they are neither kept plain where guesses pay, nor lengthened where none does."""
    loop = DecodeLoop()
    loop.run(600, 0.9)
    offers = [(loop.drafting, DRAFTS_MAX)]
    assert loop.speculator.counts(offers, 9, 100)[0] == 0  # never measured: it is made to be
    assert loop.speculator.counts(offers, 2, 100, is_measured=False)[0] > 0
    loop.run(600, 0.0)
    taken = [loop.speculator.counts(offers, 60, 100, is_measured=False)[0] for _ in range(300)]
    assert taken == [0] * 300


def test_beyond_a_bound_of_bytes_sequences_decode_plainly(monkeypatch):
    monkeypatch.setattr("octavo.speculation.speculator.BYTES_MAX", 1000)
    speculator = Speculator(Speculation.NGRAM)
    drafting = speculator.begin()
    tokens = [1, 2, 3] * 40
    speculator.read(drafting, tokens, 60)
    assert speculator.num_bytes > 1000
    assert speculator.read(drafting, tokens, 60) == 0
    assert drafting.draft == NO_DRAFT
    assert speculator.fork(drafting) is None
    speculator.end(drafting)
    assert speculator.num_bytes == 0
