"""The suffix automaton against twins too stupid to be wrong: one compares every place, one hashes n-grams."""

import random
import tracemalloc
from collections import Counter

import pytest

from octavo.speculation.automaton import SuffixAutomaton
from octavo.speculation.drafter import NO_DRAFT, Draft

ALPHABETS = [1, 2, 3, 20]
LIMIT = 6
NGRAM_MOST = 5
# A token: itself, at most 2 states of 5 numbers, and at most one dict of a state that branches.
BYTES_MOST = 4 * (1 + 2 * 5) + 300


def random_text(r, alphabet, length):
    return [r.randrange(alphabet) for _ in range(length)]


def fibonacci(length):
    """Repeats itself at all lengths, and has no period."""
    shorter, text = [0], [0, 1]
    while len(text) < length:
        shorter, text = text, text + shorter
    return text[:length]


def text_of(kind, length):
    r = random.Random(1)
    once = random_text(r, 300, length // 4)
    return {
        "one token": [7] * length,
        "two tokens": random_text(r, 2, length),
        "twenty tokens": random_text(r, 20, length),
        "few often, many rarely": [min(int(r.paretovariate(0.7)), 50_000) for _ in range(length)],
        "all different": list(range(1000, 1000 + length)),
        "four times the same": 4 * once,
        "a period of three": [1, 2, 3] * (length // 3),
        "fibonacci": fibonacci(length),
        "runs of one token": [7] * (length // 2) + [8] + [7] * (length // 2 - 1),
    }[kind]


KINDS = [
    "one token",
    "two tokens",
    "twenty tokens",
    "few often, many rarely",
    "all different",
    "four times the same",
    "a period of three",
    "fibonacci",
    "runs of one token",
]


def common(text, one, other):
    """How many tokens that end at two places are the same."""
    count = 0
    while count <= min(one, other) and text[one - count] == text[other - count]:
        count += 1
    return count


def quoted(text, end, limit):
    """What followed a place; behind the text, what is drafted follows."""
    text = list(text)
    for _ in range(limit):
        end += 1
        text.append(text[end])
    return tuple(text[len(text) - limit :])


class StupidTwin:
    """Compares what ends at every earlier place with what ends here."""

    def __init__(self):
        self.text, self.matches, self.match, self.ends = [], [], 0, []

    def push(self, token):
        self.text.append(token)
        here = len(self.text) - 1
        lengths = [common(self.text, end, here) for end in range(here)]
        self.match = max(lengths, default=0)
        self.ends = [end for end in range(here) if lengths[end] == self.match] if self.match else []
        self.matches.append(self.match)

    def extend(self, tokens):
        for token in tokens:
            self.push(token)

    def place_of_last_match(self):
        """Where it was last the longest match itself, alone or with what always stood before it; if nowhere,
        where it ended first."""
        text, ends = self.text, self.ends
        always = min([common(text, ends[0], end) for end in ends[1:]], default=ends[0] + 1)
        matched = [end for end in ends if self.match <= self.matches[end] <= always]
        return matched[-1] if matched else ends[0]

    def possible(self, limit):
        """All drafts that quote the match, wherever it ended."""
        return {Draft(quoted(self.text, end, limit), self.match) for end in self.ends} or {NO_DRAFT}


class NgramTwin:
    """For n from long to short: where the last n tokens ended last."""

    def __init__(self):
        self.text, self.ended, self.match, self.end = [], {}, 0, -1

    def push(self, token):
        self.text.append(token)
        self.match = 0
        for n in range(min(NGRAM_MOST, len(self.text)), 0, -1):
            key = tuple(self.text[-n:])
            if key in self.ended and not self.match:
                self.match, self.end = n, self.ended[key]
            self.ended[key] = len(self.text) - 1


def read(text):
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_the_match_is_the_longest_suffix_that_came_before(alphabet):
    for seed in range(100):
        automaton, twin = SuffixAutomaton(), StupidTwin()
        for token in random_text(random.Random(seed), alphabet, 40):
            automaton.extend([token])
            twin.push(token)
            draft = automaton.draft(LIMIT)
            assert draft.match == twin.match, (seed, twin.text)
            assert draft in twin.possible(LIMIT), (seed, twin.text)


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_a_draft_is_what_followed_where_its_match_was_last_the_longest(alphabet):
    for seed in range(100):
        automaton, twin = SuffixAutomaton(), StupidTwin()
        for token in random_text(random.Random(seed), alphabet, 40):
            automaton.extend([token])
            twin.push(token)
            if twin.match:
                tokens = quoted(twin.text, twin.place_of_last_match(), LIMIT)
                assert automaton.draft(LIMIT).tokens == tokens, (seed, twin.text)


def test_a_match_that_ended_last_inside_a_longer_one_is_quoted_from_where_it_was_the_longest():
    # b ended at 1 (c b), 4 (a b, where b was the match) and 7 (a b again, where the match was a b); then y b.
    a, b, c, d, e, f, y = range(7)
    assert read([c, b, d, a, b, e, a, b, f, y, b]).draft(1) == Draft((e,), 1)


@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_a_hash_of_n_grams_finds_matches_of_the_same_length(alphabet):
    for seed in range(100):
        automaton, ngrams = SuffixAutomaton(), NgramTwin()
        for token in random_text(random.Random(seed), alphabet, 60):
            automaton.extend([token])
            ngrams.push(token)
            assert min(automaton.draft(1).match, NGRAM_MOST) == ngrams.match, (seed, ngrams.text)


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_a_periodic_text_runs_on_periodically(period):
    block = list(range(period))
    text, after = 3 * block, 5 * block
    for extra in range(period):
        draft = read(text + block[:extra]).draft(4 * period)
        assert draft == Draft(tuple(after[extra : extra + 4 * period]), 2 * period + extra)


def test_a_period_begins_where_the_text_begins_to_repeat_itself():
    assert read([9, 8, 1, 2, 1]).draft(5) == Draft((2, 1, 2, 1, 2), 1)


def test_the_first_token_ever_drafts_nothing():
    automaton = SuffixAutomaton()
    assert automaton.draft(4) == NO_DRAFT
    automaton.extend([5])
    assert automaton.draft(4) == NO_DRAFT
    automaton.extend([5])
    assert automaton.draft(4) == Draft((5, 5, 5, 5), 1)


def test_a_token_that_never_came_drafts_nothing():
    assert read([1, 2, 1, 2, 3]).draft(4) == NO_DRAFT


def test_a_text_of_no_tokens_changes_nothing():
    automaton = read([1, 2, 1])
    before = automaton.draft(4)
    automaton.extend([])
    assert (automaton.num_tokens, automaton.draft(4)) == (3, before)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_none_drafts_nothing(limit):
    assert read([1, 2, 1]).draft(limit) == NO_DRAFT


def test_a_draft_is_as_long_as_its_limit_and_begins_like_a_shorter_one():
    automaton = read(random_text(random.Random(0), 3, 60))
    longest = automaton.draft(50)
    for limit in range(1, 51):
        assert automaton.draft(limit) == Draft(longest.tokens[:limit], longest.match)


def test_a_draft_changes_nothing():
    automaton, other = read([1, 2, 1]), read([1, 2, 1])
    automaton.draft(9)
    for token in (2, 1, 3, 1):
        automaton.extend([token])
        other.extend([token])
        assert automaton.draft(9) == other.draft(9)


@pytest.mark.parametrize("seed", range(10))
def test_tokens_in_pieces_are_the_same_as_tokens_at_once(seed):
    r = random.Random(seed)
    text, in_pieces, begun = random_text(r, 3, 200), SuffixAutomaton(), 0
    while begun < len(text):
        stop = begun + r.randrange(30)
        in_pieces.extend(text[begun:stop])
        begun = min(stop, len(text))
        assert in_pieces.num_tokens == begun
        assert in_pieces.draft(9) == read(text[:begun]).draft(9)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("first", ["original", "copy"])
def test_a_copy_and_its_original_know_nothing_of_each_other(seed, first):
    r = random.Random(seed)
    alphabet = r.choice(ALPHABETS)
    text = random_text(r, alphabet, r.randrange(40))
    original = read(text)
    copy = original.copy()
    assert copy.num_bytes == original.num_bytes
    assert copy.draft(LIMIT) == original.draft(LIMIT)
    if first == "copy":
        original, copy = copy, original
    still = copy.draft(LIMIT)
    # 1. One is extended; the other is unchanged.
    text_1 = text + random_text(r, alphabet + 1, 30)
    for count in range(len(text), len(text_1)):
        original.extend(text_1[count : count + 1])
        assert copy.draft(LIMIT) == still
    assert (copy.num_tokens, original.num_tokens) == (len(text), len(text_1))
    # 2. The other goes its own way, as if it had always been alone.
    text_2 = text + random_text(r, alphabet + 1, 30)
    still, alone, twin = original.draft(LIMIT), read(text), StupidTwin()
    twin.extend(text)
    for token in text_2[len(text) :]:
        for one in (copy, alone, twin):
            one.extend([token])
        assert copy.draft(LIMIT) == alone.draft(LIMIT)
        assert copy.draft(LIMIT).match == twin.match
        assert copy.draft(LIMIT) in twin.possible(LIMIT)
        assert original.draft(LIMIT) == still == read(text_1).draft(LIMIT)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_grow_with_the_tokens(kind):
    counts = (1000, 2000, 4000)
    sizes = [read(text_of(kind, count)).num_bytes for count in counts]
    for count, size in zip(counts, sizes, strict=True):
        assert 0 < size <= BYTES_MOST * count
    assert sizes[0] < sizes[1] < sizes[2] < 5 * sizes[0]


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_within_twice_what_is_held(kind):
    text = text_of(kind, 4000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        automaton = read(text)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 < automaton.num_bytes / held < 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_costs_a_few_operations(kind, monkeypatch):
    """However long the text: amortised, so they are counted over all of it."""
    counts = Counter()

    def counted(name):
        method = getattr(SuffixAutomaton, name)

        def count(self, *args):
            counts[name] += 1
            return method(self, *args)

        monkeypatch.setattr(SuffixAutomaton, name, count)

    for name in ("_go", "_lead", "_add"):
        counted(name)
    text = text_of(kind, 20_000)
    automaton = read(text)
    assert counts["_go"] < 6 * len(text)
    assert counts["_lead"] < 4 * len(text)
    assert counts["_add"] < 2 * len(text)
    # A clone copies a dict; all that were ever copied are still there, so this bounds their cost.
    assert sum(len(others) for others in automaton._more.values()) < 3 * len(text)
