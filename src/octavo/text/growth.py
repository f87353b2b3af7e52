"""Bounds how much longer a text can become in a tokenizer: the most characters made of one.

    Replace "a" by "aa", 40 times      2 * 2 * ... = 2**40
    Prepend "_", NFKC                  2 * 18; of ASCII 2, since NFKC leaves that as it is

Each step of a normalizer multiplies the length, so a small file can make a text arbitrarily long. The bound
follows from the description alone, for any text; a regular expression counts as one that matches the empty
string before every character. A text is refused if it could become too long.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from octavo.errors import BadModelFile, InvalidRequest

if TYPE_CHECKING:
    import tokenizers

GROWTH_MAX = 4096  # loading refuses a tokenizer with more
CHARS_MAX = 16 << 20  # of a text after normalising
ADDED_MAX = 1024  # tokens that are put around a text
WORD_CHARS_MAX = 256  # of an unknown token, a prefix and a suffix, which the library copies for each piece
# Of one non-ASCII character. Measured over all of Unicode; for Bert's, the product of its parts.
_FORMS: Mapping[str, float] = MappingProxyType(
    {"NFC": 4.0, "NFD": 4.0, "NFKC": 18.0, "NFKD": 18.0, "Lowercase": 2.0, "BertNormalizer": 24.0}
    | {"ByteLevel": 4.0, "Strip": 1.0, "StripAccents": 1.0, "Nmt": 1.0}
)
_COMPOSING = ("NFC", "NFD", "NFKC", "NFKD")  # several in a row grow a text no more than one


class GrowthRefused(BadModelFile):
    """A tokenizer whose texts could become too long."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The most characters made of one: of an ASCII text, and of any text."""

    of_ascii: float = 1.0
    of_any: float = 1.0

    def check(self, text: str) -> None:
        """Raise InvalidRequest for a text that could become longer than `CHARS_MAX`."""
        most = len(text) * (self.of_ascii if text.isascii() else self.of_any)
        if most > CHARS_MAX:
            raise InvalidRequest(
                f"the text has {len(text):,} characters, of which this model's tokenizer could make "
                f"{most:,.0f}; allowed: up to {CHARS_MAX:,}; send a shorter text",
                param="prompt",
            )


def growth_of(backend: tokenizers.Tokenizer) -> Growth:
    """The growth of a tokenizer, from the library's description of it. Raises GrowthRefused."""
    _check_model(backend.model)
    if backend.post_processor is not None:
        _check_added(backend)
    if backend.normalizer is None:
        return Growth()
    growth = normalizer_growth(json.loads(backend.normalizer.__getstate__()))
    if growth.of_any > GROWTH_MAX:
        raise GrowthRefused(
            f"the normalizer could make {growth.of_any:,.0f} characters of one; allowed: up to {GROWTH_MAX:,}"
        )
    return growth


def normalizer_growth(description: Mapping[str, object]) -> Growth:
    """The growth of a normalizer, from the library's description of it. Raises GrowthRefused."""
    of_ascii = of_any = composed = 1.0
    is_ascii = True
    for step in _steps(description, "normalizers"):
        kind = str(step.get("type"))
        form = _FORMS.get(kind)
        if form is None:
            times, keeps_ascii = _written(kind, step)
            of_ascii, of_any = of_ascii * times, of_any * times
            is_ascii, composed = is_ascii and keeps_ascii, 1.0
            continue
        times = form
        if kind in _COMPOSING:
            times, composed = max(1.0, form / composed), max(form, composed)
        of_any *= times
        of_ascii *= 1.0 if is_ascii else times
        is_ascii = is_ascii and kind != "ByteLevel"
    return Growth(of_ascii, of_any)


def charsmap_growth(charsmap: bytes) -> float:
    """The growth of SentencePiece's map of characters: a trie, then zero-terminated texts, each of which
    replaces one character or more. Raises GrowthRefused."""
    trie = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or trie > len(charsmap) - 4:
        raise GrowthRefused(f"the map of characters has {len(charsmap):,} bytes, fewer than it says")
    texts = charsmap[4 + trie :].split(b"\0")
    return max(1, *(len(text.decode(errors="replace")) for text in texts))


def _written(kind: str, step: Mapping[str, object]) -> tuple[float, bool]:
    """For a step that inserts the file's text: the growth, and whether ASCII stays ASCII."""
    if kind == "Prepend":
        text = str(step["prepend"])
        return 1 + len(text), text.isascii()
    if kind == "Precompiled":
        return charsmap_growth(base64.b64decode(str(step["precompiled_charsmap"]))), False
    if kind == "Replace":
        text, pattern = str(step["content"]), step["pattern"]
        found = pattern.get("String") if isinstance(pattern, dict) else None
        if found:
            return max(1.0, len(text) / len(str(found))), text.isascii()
        return 1 + 2 * len(text), text.isascii()  # before each character, and at the end
    raise GrowthRefused(
        f"the normalizer has a step {kind!r:.40}; allowed: {', '.join(sorted(_FORMS))}, Prepend, "
        "Precompiled, Replace"
    )


def _steps(description: Mapping[str, object], inner: str) -> Iterator[Mapping[str, object]]:
    """The steps of a (nested) sequence; a single step alone."""
    if description.get("type") != "Sequence":
        yield description
        return
    steps = description[inner]
    for step in steps if isinstance(steps, list) else []:
        yield from _steps(step, inner)


def _check_added(backend: tokenizers.Tokenizer) -> None:
    """Check a post-processor, which puts tokens around a text."""
    added = backend.num_special_tokens_to_add(is_pair=False)
    if added > ADDED_MAX:
        raise GrowthRefused(
            f"the post-processor puts {added:,} tokens around a text; allowed: up to {ADDED_MAX:,}"
        )
    for step in _steps(json.loads(backend.post_processor.__getstate__()), "processors"):
        pieces = step.get("single", []) if step.get("type") == "TemplateProcessing" else []
        times = sum("Sequence" in piece for piece in pieces) if isinstance(pieces, list) else 0
        if times > 1:
            raise GrowthRefused(f"the post-processor writes a text {times:,} times; allowed: once")


def _check_model(model: tokenizers.models.Model) -> None:
    """Check the model's words that are copied for each piece of a text."""
    for name in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        word = getattr(model, name, None)
        if isinstance(word, str) and len(word) > WORD_CHARS_MAX:
            raise GrowthRefused(f"{name} has {len(word):,} characters; allowed: up to {WORD_CHARS_MAX}")
