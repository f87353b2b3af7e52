"""A process of its own that reads large bodies, as `body_reader` does, with bounded memory.

    stdin    the model's sizes as JSON, then requests, until it is closed
    stdout   nothing, then an answer to each

Each is a frame: its length in four bytes, then so many bytes. It is run by its path. Its time is bounded by
the server.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys

_PATHS_FROM = 1  # of sys.argv: where Octavo and what it imports are
_NICENESS = 10  # a large body may take longer, so that streams do not


def main() -> None:
    """Read bodies until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c is for the server, which lets answers end
    os.nice(_NICENESS)
    sys.path += sys.argv[_PATHS_FROM:]
    from octavo.helper_worker import bound_memory, prefer_as_oom_victim, read_frame, write_frame

    prefer_as_oom_victim()
    from octavo.server.body_reader import read_body
    from octavo.server.large_bodies import MEMORY_MAX, ModelSizes

    sizes = ModelSizes(**json.loads(read_frame(0)))
    bound_memory(MEMORY_MAX)
    gc.freeze()
    gc.disable()  # JSON has no cycles, and looking for them takes longer than parsing it
    write_frame(1, b"")
    while request := read_frame(0):
        write_frame(1, read_body(request, sizes))
        del request
        gc.collect()  # an error keeps what it met, in a cycle


if __name__ == "__main__":
    main()
