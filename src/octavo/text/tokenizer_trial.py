"""A trial of a tokenizer.json in a process of its own (`tokenizer_worker`), before the server loads it.

The file is untrusted, and the library that reads it may panic, use all memory, or end its process. The trial
shows that it loads, encodes texts of many kinds in time, and makes none too long (`growth`).
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

from octavo.errors import BadModelFile, ConfigError
from octavo.helper_process import HelperEnded, HelperProcess, HelperTimeout, import_folders

SECONDS_MAX = 120.0
TEXT_SECONDS_MAX = 3.0  # of a processor, for 65,536 characters
MEMORY_MAX = 1 << 30  # and for each byte of the file:
MEMORY_PER_BYTE = 32
_ANSWER_BYTES_MAX = 64 << 10
_WORKER = Path(__file__).with_name("tokenizer_worker.py")


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
