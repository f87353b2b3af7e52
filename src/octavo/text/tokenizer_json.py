"""Reads a tokenizer.json, from a file or a text, with the `tokenizers` library after a trial.

The file is untrusted, and the library that reads it may panic, use all memory, or end its process. So a
process of its own (`tokenizer_worker`) tries it first: it loads, encodes texts of many kinds in time, and
makes none too long (`growth`).
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import tokenizers

from octavo.errors import BadModelFile, ConfigError
from octavo.helper_process import HelperEnded, HelperProcess, HelperTimeout, import_folders
from octavo.text.encoding import panics_as

TOKENIZER_BYTES_MAX = 256 << 20
SECONDS_MAX = 120.0
TEXT_SECONDS_MAX = 3.0  # of a processor, for 65,536 characters
MEMORY_MAX = 1 << 30  # and for each byte of the file:
MEMORY_PER_BYTE = 32
_ANSWER_BYTES_MAX = 64 << 10
_WORKER = Path(__file__).with_name("tokenizer_worker.py")


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


def try_tokenizer(text: str, source: str) -> None:
    """Raises BadModelFile for any error of the tokenizer, ConfigError if no process can be started. About 0.4
    s, and the time of loading it."""
    data = text.encode()
    memory = MEMORY_MAX + MEMORY_PER_BYTE * len(data)
    settings = {"memory_bytes": memory, "text_seconds": TEXT_SECONDS_MAX}
    try:
        helper = HelperProcess(_WORKER, import_folders("octavo", "tokenizers"), _ANSWER_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"the process that tries {source} did not start: {error}") from error
    try:
        helper.send(json.dumps(settings).encode(), SECONDS_MAX)
        answer = json.loads(helper.exchange(data, SECONDS_MAX))
    except HelperTimeout:
        raise _refused(source, f"loading it took more than {SECONDS_MAX:.0f} s") from None
    except HelperEnded as error:
        if str(error) == f"signal {int(signal.SIGPROF)}":
            why = f"a text of 65,536 characters takes it more than {TEXT_SECONDS_MAX:.0f} s"
        else:
            why = f"it ended the process that tried it ({error}); allowed: up to {memory >> 20:,} MiB"
        raise _refused(source, why) from None
    finally:
        helper.end()
    if "error" in answer:
        raise _refused(source, answer["error"])


def _refused(source: str, why: str) -> BadModelFile:
    return BadModelFile(f"{source} is not a sound tokenizer: {why}")
