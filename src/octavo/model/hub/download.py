"""Downloads one file of the hub: it resumes where an earlier attempt ended, and checks the file before use.

    GET url, Range: bytes=SIZE-   ->  blobs/ETAG.incomplete grows  ->  SHA-256  ->  rename to blobs/ETAG

huggingface_hub (2.4) writes each attempt to a file of its own and removes it when that attempt fails, so an
interrupted download of 20 GB starts over; it also checks no checksum. Hence this module. The part has the
name that earlier versions of that library gave it; they resumed from it as well.

A lock on the part keeps two processes from writing to it. The fetching thread only counts; the caller's
thread reports progress once a second. An interrupted caller leaves the part on disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from octavo.errors import BadModelFile, ModelNotFound, shown
from octavo.units import format_bytes

TICK_S = 1.0
RETRY_WAITS_S = (1.0, 2.0, 4.0, 8.0, 8.0)  # after attempts without progress
_TIMEOUTS = httpx2.Timeout(20.0, connect=10.0)
_STOP_S = 2.0
_CHUNK = 1 << 20
_TRY_AGAIN = (408, 416, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (\d{1,20})-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to fetch. The hub gives its `sha256`, or else the `git_sha1` of its blob; None: unknown."""

    name: str
    url: str
    headers: Mapping[str, str]
    num_bytes: int
    sha256: str | None
    git_sha1: str | None

    @property
    def checksum(self) -> str | None:
        """The expected digest of the whole file."""
        return self.sha256 or self.git_sha1


class ChecksumCheck:
    """Compares a whole file with the hub's checksum. The running thread writes fields that others read."""

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        self.num_bytes = 0  # compared so far

    def run(self, fd: int, stop: threading.Event) -> bool:
        """False: it was stopped meanwhile. A file without a checksum is not read.

        Raises BadModelFile if it differs, OSError.
        """
        expected, size = self.file.checksum, os.fstat(fd).st_size
        if expected is None:
            return True
        digest = hashlib.sha256() if self.file.sha256 else hashlib.sha1(f"blob {size}\0".encode())
        while self.num_bytes < size and not stop.is_set():
            data = os.pread(fd, _CHUNK, self.num_bytes)
            if not data:
                break
            digest.update(data)
            self.num_bytes += len(data)
        if stop.is_set():
            return False
        if digest.hexdigest() != expected:
            raise BadModelFile(
                f"{self.file.name} has {digest.name} {digest.hexdigest()}; the hub says {expected}. What was"
                " fetched is removed; the same command fetches it again"
            )
        return True


class Download:
    """The download of one file. The running thread writes fields that others read."""

    def __init__(self, file: RemoteFile, part: Path, blob: Path) -> None:
        self.file = file
        self.num_bytes = 0  # of the part
        self.checking = ChecksumCheck(file)
        self.doing = "fetching"
        self._part, self._blob = part, blob

    def run(self, stop: threading.Event) -> None:
        """Fetch, check, and rename into place; at once if another process has done it meanwhile.

        Raises ModelNotFound (it could not be fetched; the part stays), BadModelFile (it is not what the hub
        says; the part is removed), OSError (the disk). Set `stop` to end it early, without an error.
        """
        fd = self._lock(stop)
        try:
            if self._blob.exists() or stop.is_set():
                return
            self._fetch(fd, stop)
            if not stop.is_set() and self._check(fd, stop):
                os.fsync(fd)
                os.replace(self._part, self._blob)
        finally:
            os.close(fd)

    def _lock(self, stop: threading.Event) -> int:
        """The part, opened and locked: the file that has the name now, not one that was renamed meanwhile."""
        while True:
            fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            while not stop.is_set():
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self.doing, self.num_bytes = "another process fetches", os.fstat(fd).st_size
                    stop.wait(0.2)
            self.doing = "fetching"
            if stop.is_set() or _is_named(fd, self._part):
                return fd
            if self._blob.exists():
                return fd
            os.close(fd)

    def _fetch(self, fd: int, stop: threading.Event) -> None:
        """Fetch until the part has its whole length."""
        failed, before = 0, -1
        self.num_bytes = os.fstat(fd).st_size
        with httpx2.Client(follow_redirects=True, timeout=_TIMEOUTS) as client:
            while self.num_bytes != self.file.num_bytes and not stop.is_set():
                failed = failed + 1 if self.num_bytes <= before else 0
                before = self.num_bytes
                trouble = self._attempt(client, fd, stop)
                if trouble is None or self.num_bytes == self.file.num_bytes:
                    continue
                if failed >= len(RETRY_WAITS_S):
                    raise ModelNotFound(
                        f"{self.file.name} could not be fetched beyond {format_bytes(self.num_bytes)} of"
                        f" {format_bytes(self.file.num_bytes)}: {trouble}. What is here stays; the same"
                        " command goes on from there"
                    )
                self.doing = f"trying again after {trouble}, fetching"
                stop.wait(RETRY_WAITS_S[failed])

    def _attempt(self, client: httpx2.Client, fd: int, stop: threading.Event) -> str | None:
        """One request for the missing bytes. Returns what went wrong, if another attempt may succeed."""
        start = self.num_bytes
        if start > self.file.num_bytes:
            start = self._restart(fd)
        headers = {**self.file.headers, "Accept-Encoding": "identity", "Range": f"bytes={start}-"}
        try:
            with client.stream("GET", self.file.url, headers=headers) as answer:
                if answer.status_code in _TRY_AGAIN:
                    if answer.status_code == 416:
                        self._restart(fd)
                    return f"HTTP {answer.status_code}"
                if answer.status_code not in (200, 206):
                    raise ModelNotFound(f"{self.file.name} cannot be fetched: HTTP {answer.status_code}")
                coding = answer.headers.get("Content-Encoding", "identity")
                if coding != "identity":
                    raise ModelNotFound(
                        f"{self.file.name} cannot be fetched: it comes as {shown(coding)}, where the plain "
                        "bytes were asked for"
                    )
                if answer.status_code == 200 or not self._goes_on(answer, start):
                    start = self._restart(fd)
                    if answer.status_code == 206:
                        return "a range that was not asked for"
                self._write(answer, fd, start, stop)
        except httpx2.UnsupportedProtocol as error:  # a redirection to no web server: a retry cannot help
            raise ModelNotFound(f"{self.file.name} cannot be fetched: {error}") from error
        except httpx2.TransportError as error:
            return str(error) or type(error).__name__
        return "an answer that ended early"

    def _goes_on(self, answer: httpx2.Response, start: int) -> bool:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        return match is not None and int(match[1]) == start

    def _restart(self, fd: int) -> int:
        os.ftruncate(fd, 0)
        self.num_bytes = 0
        return 0

    def _write(self, answer: httpx2.Response, fd: int, start: int, stop: threading.Event) -> None:
        for chunk in answer.iter_raw():
            if stop.is_set():
                return
            if start + len(chunk) > self.file.num_bytes:
                raise BadModelFile(
                    f"{self.file.name} is longer than the {self.file.num_bytes:,} bytes that the hub gives"
                )
            self.doing = "fetching"
            view = memoryview(chunk)
            while view:
                written = os.pwrite(fd, view, start)
                view, start = view[written:], start + written
            self.num_bytes = start

    def _check(self, fd: int, stop: threading.Event) -> bool:
        """Compare the whole file with the hub's checksum; False: it was stopped meanwhile."""
        self.doing = "checking"
        try:
            return self.checking.run(fd, stop)
        except BadModelFile:
            self._part.unlink(missing_ok=True)
            raise


def watch(work: Callable[[threading.Event], None], tick: Callable[[], None]) -> None:
    """Run `work` in a thread and `tick` about once a second in this one. Raises what either raises. If this
    thread is interrupted, the event that `work` got is set, and `work` is joined.
    """
    stop, failed = threading.Event(), list[Exception]()

    def body() -> None:
        try:
            work(stop)
        except Exception as error:  # noqa: BLE001  (it is raised again by the thread that waits)
            failed.append(error)

    thread = threading.Thread(target=body, name="octavo-download", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(TICK_S)
            tick()
    except BaseException:
        stop.set()
        thread.join(_STOP_S)
        raise
    if failed:
        raise failed[0]


def _is_named(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
