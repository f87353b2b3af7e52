"""A file of weights, mapped read-only: tensors are views of it, and their pages can be given back one by one.

Reading a mapped tensor makes its pages resident, in addition to the backend's own copy. `release` returns
them once the tensor is converted, so a load holds its converted weights and at most one tensor of the file.

It knows no format. The file must not shrink while it is mapped (the system would raise a bus error).
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from octavo.errors import BadModelFile, ModelNotFound
from octavo.kernels.contract import Bytes


class MappedFile:
    """`data` is the whole file, (size,) uint8, read-only, paged in on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise BadModelFile(f"{path} is empty") from error
        except OSError as error:
            raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
        self.data: Bytes = np.frombuffer(self._map, np.uint8)
        self._address: int = self.data.ctypes.data

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.data)

    def release(self, view: Bytes) -> None:
        """Give back the resident pages under `view`, which stays valid (the next read pages it in again)."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return  # a platform without madvise keeps clean file pages, which it may drop by itself
        start = view.ctypes.data - self._address
        assert 0 <= start <= start + len(view) <= self.size, "the view is not of this file"
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        if len(view):
            self._map.madvise(mmap.MADV_DONTNEED, first, start + len(view) - first)
