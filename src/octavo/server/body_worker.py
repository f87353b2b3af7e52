"""The process that reads large bodies (`body_reader`), with bounded memory. The server bounds its time.

    stdin    the model's sizes as JSON, then requests, until it is closed
    stdout   an empty answer, then one answer per request

Each is a frame: its length in four bytes, then its bytes. This file is run by its path, so it imports Octavo
only after setting `sys.path`.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys

_PATHS_FROM = 1  # of sys.argv: the folders of Octavo and its dependencies
_NICENESS = 10  # streams have priority over large bodies


def main() -> None:
    """Read bodies until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles ctrl-c, and waits for open answers
    os.nice(_NICENESS)
    sys.path += sys.argv[_PATHS_FROM:]
    from octavo.helper_worker import bound_memory, prefer_as_oom_victim, read_frame, write_frame

    prefer_as_oom_victim()
    from octavo.server.body_reader import read_body
    from octavo.server.large_bodies import MEMORY_MAX, ModelSizes

    sizes = ModelSizes(**json.loads(read_frame(0)))
    bound_memory(MEMORY_MAX)
    gc.freeze()
    gc.disable()  # JSON has no cycles, and searching for them takes longer than parsing
    write_frame(1, b"")
    while request := read_frame(0):
        write_frame(1, read_body(request, sizes))
        del request
        gc.collect()  # an error's traceback holds the values, in a cycle


if __name__ == "__main__":
    main()
