"""Reads a tokenizer.json, from a file or a text, with the `tokenizers` library after a trial."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from octavo.errors import BadModelFile
from octavo.text.encoding import panics_as
from octavo.text.tokenizer_trial import try_tokenizer

TOKENIZER_BYTES_MAX = 256 << 20


def read_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    """Raises BadModelFile, ConfigError if no process can be started."""
    size = path.stat().st_size
    if size > TOKENIZER_BYTES_MAX:
        raise BadModelFile(f"{path} has {size:,} bytes; allowed: up to {TOKENIZER_BYTES_MAX:,}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{path} is not UTF-8") from error
    return backend_of_json(text, str(path))


def backend_of_json(text: str, source: str) -> tokenizers.Tokenizer:
    """The tokenizer, without truncation and padding. Raises BadModelFile, ConfigError if no process can be
    started."""
    try_tokenizer(text, source)
    with panics_as(BadModelFile, source):
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise BadModelFile(f"{source} is not a sound tokenizer: {error!s:.300}") from error
        backend.no_truncation()
        backend.no_padding()
    return backend
