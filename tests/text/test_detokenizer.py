"""Pieces of text, however the bytes are split over tokens, equal the whole decoded at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.text.detokenizer import IncrementalDetokenizer

pieces = st.lists(st.binary(max_size=5), max_size=12)
character_bytes = st.text(max_size=12).map(lambda text: [bytes([byte]) for byte in text.encode()])


@given(pieces | character_bytes)
def test_pieces_equal_the_whole_decoded_at_once(table):
    detokenizer = IncrementalDetokenizer(table.__getitem__)
    text = "".join(map(detokenizer.push, range(len(table)))) + detokenizer.finish()
    assert text == b"".join(table).decode(errors="replace")


@given(character_bytes)
def test_a_character_comes_whole_with_its_last_byte(table):
    detokenizer = IncrementalDetokenizer(table.__getitem__)
    for index in range(len(table)):
        piece = detokenizer.push(index)
        assert "\ufffd" not in piece or "\ufffd".encode() in b"".join(table)
        assert len(piece) <= 1
    assert detokenizer.finish() == ""


def test_an_unfinished_character_becomes_a_replacement_at_the_end():
    detokenizer = IncrementalDetokenizer([b"ok \xf0\x9f"].__getitem__)
    assert detokenizer.push(0) == "ok "
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_have_no_text_and_do_not_break_a_character():
    detokenizer = IncrementalDetokenizer([b"\xc3", b"<|x|>", b"\xa9"].__getitem__, frozenset({1}))
    assert [detokenizer.push(token) for token in (0, 1, 2)] == ["", "", "é"]


def test_one_leading_space_is_dropped_only_when_asked():
    table = [b" ", b" a", b" b"]
    asked = IncrementalDetokenizer(table.__getitem__, strip_leading_space=True)
    assert [asked.push(token) for token in (1, 2)] == ["a", " b"]
    asked = IncrementalDetokenizer(table.__getitem__, strip_leading_space=True)
    assert [asked.push(token) for token in (0, 1)] == ["", " a"]
    assert IncrementalDetokenizer(table.__getitem__).push(1) == " a"
