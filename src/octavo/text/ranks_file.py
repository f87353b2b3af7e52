"""Reads a vocabulary of ranks, tiktoken's kind: a line for each token, its bytes in base64 and its rank.

    IQ== 0
    Ig== 1

It has neither the pre-tokenizer nor the special tokens: `vocabulary_folder` knows them by the family.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path

from octavo.errors import BadModelFile
from octavo.text.byte_level import byte_level_letters

FILE_BYTES_MAX = 64 << 20
RANKS_MAX = 1 << 22
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]{1,9}")


def is_ranks(head: bytes) -> bool:
    """Whether a file begins with such a line."""
    return _LINE.match(head) is not None


def read_ranks(path: Path) -> dict[str, int]:
    """The rank of each token, spelt in byte-level letters; ranks are 0 to n - 1. Raises BadModelFile."""
    size = path.stat().st_size
    if size > FILE_BYTES_MAX:
        raise BadModelFile(f"{path} has {size:,} bytes; allowed: up to {FILE_BYTES_MAX:,}")
    ranks: dict[str, int] = {}
    lines = path.read_bytes().splitlines()
    if len(lines) > RANKS_MAX:
        raise BadModelFile(f"{path} has {len(lines):,} lines; allowed: up to {RANKS_MAX:,}")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        if _LINE.fullmatch(line) is None:
            raise BadModelFile(f"{path}: line {number:,} is not a token in base64 and its rank")
        token, _, rank = line.partition(b" ")
        try:
            ranks[byte_level_letters(base64.b64decode(token, validate=True))] = int(rank)
        except binascii.Error as error:
            raise BadModelFile(f"{path}: line {number:,} is not base64: {error}") from error
    if not ranks or sorted(ranks.values()) != list(range(len(ranks))):
        raise BadModelFile(f"{path}: its {len(ranks):,} tokens do not have the ranks 0 to {len(ranks) - 1:,}")
    return ranks
