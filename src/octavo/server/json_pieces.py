"""A JSON object in pieces that are each parsed quickly, so that other threads run in between.

    {"prompt": [1, 2, 3, 4], "n": 2}     KEY "prompt"  LIST  MORE [1,2]  MORE [3,4]  END  MORE {"n":2}

MORE extends the innermost open list or object; KEY is the key of the next value in an object. A long text is
one piece (TEXT), and so is a long key, because UTF-8 is decoded fast. A piece is its kind, its length in four
bytes, and its bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

PIECE_CHARS_MAX: Final = 64 << 10  # about a millisecond
_PAUSE_S, _PAUSE_BYTES_MIN = 0.0002, 4096
_HEADER_BYTES = 5
_MORE, _KEY, _TEXT, _LIST, _OBJECT, _END = b"+", b"k", b"t", b"[", b"{", b"]"


def to_pieces(value: dict[str, object]) -> bytes:
    """All pieces, concatenated. O(size), times the depth of the long lists."""
    pieces = _pieces(value, len(value) * PIECE_CHARS_MAX)
    return b"".join(kind + len(data).to_bytes(_HEADER_BYTES - 1, "big") + data for kind, data in pieces)


def from_pieces(data: memoryview) -> dict[str, object]:
    """The object. Releases the interpreter's lock between pieces."""
    whole: dict[str, object] = {}
    opened: list[Any] = [whole]
    key = ""
    while data:
        end = _HEADER_BYTES + int.from_bytes(data[1:_HEADER_BYTES], "big")
        kind, piece, data = data[:1], bytes(data[_HEADER_BYTES:end]), data[end:]
        if len(piece) >= _PAUSE_BYTES_MIN:
            time.sleep(_PAUSE_S)
        if kind == _MORE:
            part = json.loads(piece)
            if isinstance(part, dict):
                opened[-1].update(part)
            else:
                opened[-1].extend(part)
        elif kind == _KEY:
            key = json.loads(piece)
        elif kind == _END:
            opened.pop()
        else:
            value: Any = piece.decode() if kind == _TEXT else [] if kind == _LIST else {}
            if isinstance(opened[-1], dict):
                opened[-1][key] = value
            else:
                opened[-1].append(value)
            if kind != _TEXT:
                opened.append(value)
    return whole


def _pieces(value: dict[str, object] | list[object], size: int) -> Iterator[tuple[bytes, bytes]]:
    """The pieces of the items of a list or an object whose text has about `size` characters."""
    items: list[Any] = list(value.items()) if isinstance(value, dict) else value
    step = max(1, len(items) * PIECE_CHARS_MAX // max(1, size))
    for start in range(0, len(items), step):
        yield from _split(items[start : start + step], type(value))


def _split(
    items: Sequence[Any], container: type[dict[str, object] | list[object]]
) -> Iterator[tuple[bytes, bytes]]:
    """The pieces of some items of a list, or some (key, value) pairs of an object.

    One MORE if its text is short enough; else the pieces of each half; and a single long value is opened.
    """
    text = _to_json(container(items))
    if len(text) <= PIECE_CHARS_MAX:
        yield _MORE, text
        return
    if len(items) > 1:
        middle = len(items) // 2
        yield from _split(items[:middle], container)
        yield from _split(items[middle:], container)
        return
    key, item = items[0] if container is dict else (None, items[0])
    if not isinstance(item, dict | list | str):  # a number, true, false or null: only its key can be long
        yield _MORE, text
        return
    if container is dict:
        yield _KEY, _to_json(key)
    if isinstance(item, str):
        yield _TEXT, item.encode()
        return
    yield _OBJECT if isinstance(item, dict) else _LIST, b""
    yield from _pieces(item, len(text))
    yield _END, b""


def _to_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
