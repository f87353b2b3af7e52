"""Writing a GGUF file in bounded memory: all headers first, then each tensor's bytes in their place.

    "GGUF" | u32 version | u64 tensors | u64 pairs | pairs ... | infos ... | padding | tensor data

What tensors there will be is said at the beginning, so nothing of them is held. The file has another name
until `finish` has brought it to the medium; a writer that is dropped leaves nothing. `gguf.py` reads it.

It is written here and not by the `gguf` package: that one holds what it is given, or needs it twice.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from octavo.errors import ConfigError
from octavo.kernels.contract import Bytes
from octavo.kernels.packed import BLOCKS
from octavo.model.files.gguf import KINDS

VERSION = 3
ALIGNMENT = 32
_CODES: Mapping[str, int] = MappingProxyType({kind.name: code for code, kind in KINDS.items()})
_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that will be written; `shape` in NumPy order."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """What its data takes."""
        block = BLOCKS[self.kind]
        return math.prod(self.shape) // block.size * block.num_bytes


@dataclass(frozen=True, slots=True)
class Pair:
    """A key and its value as the file has them: u32 type, then the value."""

    key: str
    data: bytes


def text_pair(key: str, value: str) -> Pair:
    """A string."""
    return Pair(key, struct.pack("<I", 8) + _text(value))


def u32_pair(key: str, value: int) -> Pair:
    """A whole number from 0 to 2^32 - 1."""
    return Pair(key, struct.pack("<II", 4, value))


def f32_pair(key: str, value: float) -> Pair:
    """A number, rounded to float32."""
    return Pair(key, struct.pack("<If", 6, value))


def flag_pair(key: str, value: bool) -> Pair:
    """True or false."""
    return Pair(key, struct.pack("<I?", 7, value))


class GgufWriter:
    """Every call may raise OSError; `path` is not touched before `finish`."""

    def __init__(
        self, path: Path, pairs: Sequence[Pair], tensors: Sequence[PlannedTensor], alignment: int = ALIGNMENT
    ) -> None:
        self.path = path
        self._starts: dict[str, int] = {}
        header = [b"GGUF", struct.pack("<IQQ", VERSION, len(tensors), len(pairs))]
        header += [_text(pair.key) + pair.data for pair in pairs]
        offset = 0
        for tensor in tensors:
            assert tensor.name not in self._starts, f"{tensor.name} twice"
            self._starts[tensor.name] = offset
            header.append(_text(tensor.name) + struct.pack("<I", len(tensor.shape)))
            header.append(struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape)))
            header.append(struct.pack("<IQ", _CODES[tensor.kind], offset))
            offset += _padded(tensor.num_bytes, alignment)
        text = b"".join(header)
        self._data_start = _padded(len(text), alignment)
        self.num_bytes = self._data_start + offset
        self._fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        self._part = Path(name)
        try:
            os.posix_fallocate(self._fd, 0, self.num_bytes)  # a full disk is told at once
            self._write(memoryview(text), 0)
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, data: Bytes, offset: int = 0) -> None:
        """Bytes of a tensor, from `offset` of its data on."""
        self._write(data.data, self._data_start + self._starts[name] + offset)

    def finish(self) -> None:
        """Wait for the medium, and give the file its name."""
        os.fchmod(self._fd, 0o666 & ~_umask())
        os.fsync(self._fd)
        os.replace(self._part, self.path)
        os.close(self._fd)

    def abandon(self) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _write(self, data: memoryview, at: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done : done + _PIECE], at + done)


def require_target(path: Path, *, overwrite: bool) -> None:
    """Raise ConfigError unless a file of that name may be written."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is no folder; allowed: a file in a folder that exists")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; allowed: the name of a .gguf file")
    if path.suffix != ".gguf":
        raise ConfigError(f"{path.name!r} does not end in .gguf; allowed: the name of a .gguf file")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists; allowed: another name, or --overwrite")


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
