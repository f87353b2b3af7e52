"""The path of a token: the files and functions of the package that one greedy, streamed chat enters in steady
state, over all threads.

    python bench/way_of_a_token.py [MODEL]        default: the embedded model

A server runs in this process, and a plain HTTP client in another thread reads the stream. A profile hook
(`threading.setprofile`) records every Python function of the package that is entered while tokens SETTLED to
SETTLED + COUNTED arrive. Submission and end of the request are not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

SETTLED, COUNTED = 32, 64  # tokens

entered: Counter[tuple[str, str]] = Counter()
is_recording = False


def hook(frame: FrameType, event: str, argument: object) -> None:
    """Record a call of a function of the package."""
    if is_recording and event == "call" and "/octavo/" in frame.f_code.co_filename:
        entered[frame.f_code.co_filename, frame.f_code.co_qualname] += 1


def read_stream(port: int, name: str) -> None:
    """Read one greedy chat, token by token."""
    global is_recording
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    for _ in range(300):  # until the server listens
        with contextlib.suppress(ConnectionRefusedError):
            connection.connect()
            break
        time.sleep(0.1)
    body = {
        "model": name,
        "messages": [{"role": "user", "content": "Tell a long story about a printer and his paper."}],
        "temperature": 0,
        "max_tokens": SETTLED + COUNTED + 32,
        "ignore_eos": True,
        "stream": True,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response, count = connection.getresponse(), 0
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: {"):
            count += 1
            is_recording = SETTLED <= count < SETTLED + COUNTED


def main() -> None:
    threading.setprofile(hook)
    from octavo.config import StartOptions
    from octavo.server.run import bind, build_server
    from octavo.server.settings import ServerSettings
    from octavo.serving.start import start_engine

    model = sys.argv[1] if len(sys.argv) > 1 else None
    llm = start_engine(model, StartOptions(kv_memory_bytes=2**28), lambda *_: None)
    listener = bind("127.0.0.1", 0)
    server = build_server(llm, ServerSettings())
    threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True).start()
    client = threading.Thread(target=read_stream, args=(listener.getsockname()[1], llm.name))
    client.start()
    client.join()
    files = sorted({file for file, _ in entered})
    per_file = Counter[str]()
    for (file, _), count in entered.items():
        per_file[file] += count
    total = 0
    for file in files:
        lines = len(Path(file).read_text().splitlines())
        total += lines
        names = sorted(name for f, name in entered if f == file)
        short = file.split("/octavo/", 1)[1]
        print(
            f"{short:34} {lines:5} lines  {per_file[file] / COUNTED:6.1f} calls a token: {', '.join(names)}"
        )
    print(
        f"{len(files)} files of {total:,} lines, {len(entered)} functions, "
        f"{sum(entered.values()) / COUNTED:.0f} calls a token"
    )


if __name__ == "__main__":
    main()
