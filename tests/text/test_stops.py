"""A stop string is found wherever the pieces are cut, and only what may begin one is held back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.text.stops import StopMatcher

letters = st.text("ab", min_size=1, max_size=4)
stop_lists = st.lists(letters, min_size=1, max_size=4, unique=True)


def whole_text(text, stops, include_stop):
    """The stupid version: look at every beginning of the text until one ends with a stop string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return (text[:end] if include_stop else text[: end - len(stop)]), stop
    return text, None


def split(text, cuts):
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(borders)]


def run(pieces, stops, include_stop):
    """Everything that came out, and the stop string."""
    matcher, emitted = StopMatcher(stops, include_stop), ""
    for piece in pieces:
        emit, stop = matcher.push(piece)
        emitted += emit
        if stop is not None:
            return emitted + matcher.finish(), stop
    return emitted + matcher.finish(), None


@settings(max_examples=400)
@given(st.text("abc", max_size=12), stop_lists, st.lists(st.integers(0, 99), max_size=8), st.booleans())
def test_any_split_equals_the_whole_text(text, stops, cuts, include_stop):
    assert run(split(text, cuts), stops, include_stop) == whole_text(text, stops, include_stop)


def test_every_short_text_letter_by_letter_equals_the_whole_text():
    words = ["".join(word) for length in range(7) for word in itertools.product("ab", repeat=length)]
    stops = [word for word in words if 1 <= len(word) <= 3]
    for pair in [*((stop,) for stop in stops), *itertools.combinations(stops, 2)]:
        for text in words:
            assert run(text, pair, False) == whole_text(text, pair, False), (text, pair)


@given(st.text("abc", max_size=24), stop_lists)
def test_only_what_may_begin_a_stop_is_held_back(text, stops):
    matcher = StopMatcher(stops)
    seen = emitted = ""
    for letter in text:
        seen += letter
        emit, stop = matcher.push(letter)
        emitted += emit
        if stop is not None:
            return
        held = seen[len(emitted) :]
        assert held == "" or any(candidate.startswith(held) for candidate in stops)


def test_a_stop_across_pieces_leaves_nothing_of_itself():
    matcher = StopMatcher(["</end>"])
    assert matcher.push("text <") == ("text ", None)
    assert matcher.push("/en") == ("", None)
    assert matcher.push("d> more") == ("", "</end>")
    assert matcher.push("and more") == ("", None)
    assert matcher.finish() == ""


def test_a_false_beginning_is_given_out_at_once():
    matcher = StopMatcher(["</end>"])
    assert matcher.push("a </") == ("a ", None)
    assert matcher.push("b>") == ("</b>", None)


def test_the_end_gives_out_what_was_held():
    matcher = StopMatcher(["stop"])
    assert matcher.push("do not st") == ("do not ", None)
    assert matcher.finish() == "st"


def test_without_stop_strings_nothing_is_held():
    assert StopMatcher([]).push("anything") == ("anything", None)


def test_an_empty_stop_string_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError):
        StopMatcher([""])
