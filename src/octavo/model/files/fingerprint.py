"""A model's fingerprint: 32 bytes that name its weights and its shape, the root of every prefix name.

Files up to WHOLE_BYTES_MAX are hashed completely (the default model's 98 MB take 0.15 s). For larger ones,
the hash covers the size, the header and one MiB out of every STRIDE bytes. That distinguishes any two
trainings or quantisations, since they differ everywhere, but misses a manual edit elsewhere in the file.

Stamps (size and time of change) detect that too, but differ between copies of one file: they say whether
something derived from a file is still current, and are no part of a fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from octavo.errors import ModelNotFound

WHOLE_BYTES_MAX = 512 << 20
STRIDE = 32 << 20
SAMPLE = 1 << 20


def hash_files(paths: Sequence[Path], header_bytes: int, *, whole_bytes_max: int = WHOLE_BYTES_MAX) -> bytes:
    """blake2b of the files in order: whole, or sampled when together larger than `whole_bytes_max`."""
    digest = hashlib.blake2b(digest_size=32)
    try:
        whole = sum(path.stat().st_size for path in paths) <= whole_bytes_max
        for path in paths:
            _hash_file(digest, path, None if whole else header_bytes)
    except OSError as error:
        raise ModelNotFound(f"{error.filename} cannot be read: {error.strerror}") from error
    return digest.digest()


def stamps_of(paths: Sequence[Path]) -> str:
    """Bytes and time of change of each file in order. Raises ModelNotFound."""
    try:
        stats = [path.stat() for path in paths]
    except OSError as error:
        raise ModelNotFound(f"{error.filename} cannot be read: {error.strerror}") from error
    return ",".join(f"{stat.st_size}@{stat.st_mtime_ns}" for stat in stats)


def fingerprint(file_hash: bytes, description: str) -> bytes:
    """The hash of the files and of whatever else decides the logits (the settings of config.json)."""
    return hashlib.blake2b(file_hash + description.encode(), digest_size=32).digest()


def _hash_file(digest: hashlib.blake2b, path: Path, header_bytes: int | None) -> None:
    """Add one file; `header_bytes` None means all of it. One reused buffer, so nothing stays resident."""
    buffer = memoryview(bytearray(SAMPLE))
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, 2)
        digest.update(size.to_bytes(8, "little"))
        position = 0
        while position < size:
            file.seek(position)
            count = file.readinto(buffer)
            if not count:
                break
            digest.update(buffer[:count])
            sampled = header_bytes is not None and position + count >= header_bytes
            position += STRIDE if sampled else count
