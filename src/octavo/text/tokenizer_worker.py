"""A process of its own that loads one tokenizer.json and encodes texts with it, with bounded memory and time.

    stdin    {"memory_bytes", "text_seconds"}, then the tokenizer.json
    stdout   {}, or {"error"}

Each is a frame: its length in four bytes, then so many bytes. It is run by its path. The library may panic,
which is an answer, or end the process; SIGPROF ends an encoding that takes too long.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator

_PATHS_FROM = 1  # of sys.argv: where Octavo and the library are
_ERROR_CHARS_MAX = 500
_TEXT_CHARS = 1 << 16


def main() -> None:
    """Try one tokenizer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c is for the server
    sys.path += sys.argv[_PATHS_FROM:]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from octavo.helper_worker import bound_memory, prefer_as_oom_victim, read_frame, write_frame

    prefer_as_oom_victim()
    settings = json.loads(read_frame(0))
    text = read_frame(0).decode()
    import tokenizers  # noqa: F401  before memory is bounded

    bound_memory(settings["memory_bytes"])
    try:
        answer = dict[str, str]()
        _try(text, settings["text_seconds"])
    except MemoryError:
        answer = {"error": "it needs too much memory"}
    except BaseException as error:  # noqa: BLE001  a panic of the library's is no Exception
        answer = {"error": f"{error!s:.{_ERROR_CHARS_MAX}}"}
    write_frame(1, json.dumps(answer).encode())


def _try(text: str, text_seconds: float) -> None:
    """Raises the library's errors, GrowthRefused, MemoryError."""
    import tokenizers

    from octavo.text.growth import growth_of

    backend = tokenizers.Tokenizer.from_str(text)
    backend.no_truncation()
    backend.no_padding()
    growth_of(backend)
    for one in texts():
        signal.setitimer(signal.ITIMER_PROF, text_seconds)
        backend.encode(one)
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def texts() -> Iterator[str]:
    """The trial's texts: every character of Unicode's first plane, and long texts of few characters."""
    yield "Hello, world"
    yield "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10000)]))
    prose = "The 3 quick foxes, they'll say: x = [1, 2];\n\t"
    for piece in ("a", " ", "\n", prose, "0123456789", "世界", "!?\"'."):
        yield (piece * _TEXT_CHARS)[:_TEXT_CHARS] + "~"


if __name__ == "__main__":
    main()
