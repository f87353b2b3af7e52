"""Vocabularies of byte-level BPE, from GGUF metadata, from vocab.json with merges.txt, or from a list of
ranks.

A token is spelt in GPT-2's letters, one for each byte. A vocabulary of ranks (tiktoken's kind) has no merges:
any two neighbours merge to a token, the lowest rank first, so every split of a token into two is a merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import models

from octavo.errors import BadModelFile
from octavo.text.pre_tokenizers import PreTokenizer, set_byte_level


def byte_level_backend(
    source: str, ids: Mapping[str, int], merges: Sequence[tuple[str, str]], pre: PreTokenizer
) -> tokenizers.Tokenizer:
    """The library's tokenizer. Raises BadModelFile if a merge names no tokens."""
    try:
        model = models.BPE(vocab=dict(ids), merges=list(merges), ignore_merges=pre.ignore_merges)
    except Exception as error:  # the library raises nothing narrower
        raise BadModelFile(f"{source}: {error!s:.300}") from error
    backend = tokenizers.Tokenizer(model)
    set_byte_level(backend, pre)
    return backend


def merges_from_text(source: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Parse merges: two tokens with a space between. Raises BadModelFile."""
    pairs = [tuple(line.split(" ")) for line in lines]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        wrong = next(line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2 or not all(pair))
        raise BadModelFile(f"{source}: merge {wrong!r:.80} is not two tokens and a space between")
    return [(pair[0], pair[1]) for pair in pairs]


def merges_from_ranks(ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every split of a token into two tokens, the lowest rank first; of one token, those of the lowest parts.
    O(all letters), half a second for 128,000 tokens."""
    ranked: list[tuple[int, int, int, str]] = []
    for token, rank in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((rank, left, right, token))
    ranked.sort()
    spelt = {rank: token for token, rank in ids.items()}
    return [(spelt[left], spelt[right]) for _, left, right, _ in ranked]


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a byte-level token: each letter stands for one byte (GPT-2's alphabet)."""
    try:
        return piece.translate(_LETTER_TO_BYTE).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()  # letters outside the alphabet: not a byte-level token, so literal text


def byte_level_letters(token: bytes) -> str:
    """The inverse: the spelling of bytes in a byte-level vocabulary."""
    return token.decode("latin-1").translate(_BYTE_TO_LETTER)


def _letter_to_byte() -> Mapping[int, int]:
    """Printable Latin-1 stands for itself; the other 68 bytes follow in order from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {256 + index: byte for index, byte in enumerate(others)}


_LETTER_TO_BYTE = _letter_to_byte()
_BYTE_TO_LETTER = {byte: letter for letter, byte in _LETTER_TO_BYTE.items()}
