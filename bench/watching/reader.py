"""A reader of the live map's stream without a display: `python bench/watching/reader.py URL`.

It prints "reading" at the first frame, counts frames and bytes until its input ends, and prints the counts as
JSON.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time

import httpx2


class FrameCounter:
    """Counts frames by their length fields."""

    def __init__(self) -> None:
        self.frames = self.bytes = 0
        self._left = 0  # bytes left of the current frame
        self._head = b""

    def feed(self, data: bytes) -> None:
        """Read more bytes."""
        self.bytes += len(data)
        while data:
            if self._left:
                taken = min(self._left, len(data))
                self._left -= taken
                data = data[taken:]
                self.frames += self._left == 0
                continue
            missing = 4 - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) == 4:
                (self._left,) = struct.unpack("<I", self._head)
                self._head = b""


def main(url: str) -> None:
    """Read until standard input ends, which is checked at each frame, at least every two seconds."""
    ended, counter, started = threading.Event(), FrameCounter(), time.perf_counter()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with httpx2.stream("GET", f"{url}/v1/kv/watch", timeout=60.0) as stream:
        stream.raise_for_status()
        for data in stream.iter_raw():
            is_first = counter.frames == 0
            counter.feed(data)
            if is_first and counter.frames:
                started = time.perf_counter()
                sys.stdout.write("reading\n")
                sys.stdout.flush()
            if ended.is_set():
                break
    counted = {
        "frames": counter.frames,
        "bytes": counter.bytes,
        "seconds": time.perf_counter() - started,
    }
    sys.stdout.write(json.dumps(counted) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
