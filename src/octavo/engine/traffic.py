"""The traffic of a server, in a file of Mooncake's form: a line for each request that generated tokens and
has ended, in the order of their ends.

    {"timestamp":27482,"input_length":1040,"output_length":52,"hash_ids":[5128850197262311,...,...]}

`timestamp` is the arrival, in milliseconds from the server's start. Each of `hash_ids` names 512 tokens of
the prompt, the last one the rest. An id is computed from the tokens of its block and of all before it, from
the tenant and its cache_salt, under a random key that never leaves this process. So equal ids mean equal
blocks after equal prefixes of one tenant in one run of the server, and nothing else.

    root      = H(key, length of tenant, tenant, salt)
    digest(i) = H(key, digest(i - 1), tokens of block i)        id(i) = its first 53 bits: exact in a double

No text, no token and no tenant's name is written. The file has mode 0600, and ends at a bound or when the
disk fails; no request fails with it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from octavo.files import new_file
from octavo.types import Request

log = logging.getLogger("octavo.traffic")

BLOCK_TOKENS = 512
BYTES_MAX = 1 << 30
LINES_MAX = 1_000_000
_DIGEST_BYTES = 16
_ID_BITS = 53


def is_traffic(request: Request) -> bool:
    """Whether it generates tokens for a client: embeddings and requests that fill a pin do not."""
    return request.params.pooling is None and not request.fills_pin


class TrafficWriter:
    """Writes the file. Only the engine's thread calls `write`, which raises nothing: if the disk fails, or
    the file is full, it ends there and the log says so. `descriptor` is closed with it."""

    def __init__(
        self, descriptor: int, path: Path, *, bytes_max: int = BYTES_MAX, lines_max: int = LINES_MAX
    ) -> None:
        self._descriptor: int | None = descriptor  # None: it has ended
        self._path = path
        self._num_bytes, self._bytes_max = 0, bytes_max
        self._lines_left = lines_max
        self._key = secrets.token_bytes(32)

    @classmethod
    def open(cls, path: Path) -> TrafficWriter:
        """Write into a file of `new_file`. Raises ConfigError."""
        return cls(new_file(path, "trace_file"), path)

    def write(self, request: Request, arrival_s: float, num_output: int) -> None:
        """Write the line of a request that came so many seconds after the start and has ended with so many
        tokens, over all its choices; nothing for one without tokens. O(prompt)."""
        if self._descriptor is None or num_output < 1:
            return
        line = {
            "timestamp": max(0, round(arrival_s * 1000)),
            "input_length": len(request.prompt),
            "output_length": num_output,
            "hash_ids": self._ids_of(request.prompt, request.tenant, request.cache_salt),
        }
        data = msgspec.json.encode(line) + b"\n"
        if self._lines_left < 1 or self._num_bytes + len(data) > self._bytes_max:
            self._end("it is full")
            return
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._end(str(error))
            return
        if written < len(data):
            self._end("the disk took a part of a line")
            return
        self._lines_left -= 1
        self._num_bytes += len(data)

    def close(self) -> None:
        """Idempotent."""
        self._end("")

    def _ids_of(self, prompt: Sequence[int], tenant: str, salt: str) -> list[int]:
        name, ids = tenant.encode(), list[int]()
        root = len(name).to_bytes(4, "little") + name + salt.encode(errors="surrogatepass")
        digest = self._digest(root)
        tokens = memoryview(array("I", prompt)).cast("B")
        step = BLOCK_TOKENS * 4
        for start in range(0, len(tokens), step):
            digest = self._digest(digest + tokens[start : start + step])
            ids.append(int.from_bytes(digest[:8], "little") >> (64 - _ID_BITS))
        return ids

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_DIGEST_BYTES, key=self._key).digest()

    def _end(self, why: str) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if why:
            log.warning("the trace in %s ends here: %s", self._path, why)
        try:
            with os.fdopen(descriptor, "wb", 0) as file:
                file.truncate(self._num_bytes)  # remove the last line if it is incomplete
        except OSError as error:
            log.warning("the trace in %s may lack its end: %s", self._path, error)
