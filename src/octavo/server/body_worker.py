"""A process of its own that reads large bodies, as `body_reader` does, with bounded memory.

    stdin    the model's sizes as JSON, then requests, until it is closed
    stdout   nothing, then an answer to each

Each is a frame: its length in four bytes, then so many bytes. It is run by its path. Its time is bounded by
the server.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
from typing import IO

_PATHS_FROM = 1  # of sys.argv: where Octavo and what it imports are
_NICENESS = 10  # a large body may take longer, so that streams do not


def main() -> None:
    """Read bodies until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c is for the server, which lets answers end
    os.nice(_NICENESS)
    _be_ended_first()
    sys.path += sys.argv[_PATHS_FROM:]
    from octavo.server.body_reader import read_body
    from octavo.server.large_bodies import MEMORY_MAX, ModelSizes

    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sizes = ModelSizes(**json.loads(_read_frame(requests)))
    _bound_memory(MEMORY_MAX)
    gc.freeze()
    gc.disable()  # JSON has no cycles, and looking for them takes longer than parsing it
    _write_frame(answers, b"")
    while request := _read_frame(requests):
        _write_frame(answers, read_body(request, sizes))
        del request
        gc.collect()  # an error keeps what it met, in a cycle


def _write_frame(answers: IO[bytes], answer: bytes) -> None:
    answers.write(len(answer).to_bytes(4, "big"))
    answers.write(answer)
    answers.flush()


def _read_frame(requests: IO[bytes]) -> bytes:
    """The next request; empty at the end."""
    return requests.read(int.from_bytes(requests.read(4), "big"))


def _be_ended_first() -> None:
    """Where memory is short, the kernel ends this process before the server."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _bound_memory(num_bytes: int) -> None:
    """So much more address space than it has now, and no files."""
    size = 0
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    most = size + num_bytes if allowed == resource.RLIM_INFINITY else min(size + num_bytes, allowed)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
