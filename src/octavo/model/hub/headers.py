"""Fetches only what `octavo doctor` reads of a repository: whole text files, and headers of weights by range.

    X.gguf            bytes 0 to the end of its header, and the tensors of rope's factors
    X.safetensors     eight bytes, and the header whose length they hold

The headers are written into the caller's folder as sparse files of the full size: they take no room on the
disk, and any reader of headers can read them. Weights in the cache already are read from there. A checksum
can be compared only once the whole file is local.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from octavo.errors import ModelError, ModelNotFound
from octavo.model.files.gguf import HEADER_MEMORY_MAX, read_gguf_part
from octavo.model.files.safetensors_file import HEADER_BYTES_MAX
from octavo.model.hub.look_up import Repository
from octavo.model.hub.repository import (
    Progress,
    bring_files,
    report_choice,
    text_files,
    token_headers,
    weight_files,
)
from octavo.model.hub.variants import VariantChoice
from octavo.types import Notice
from octavo.units import format_bytes

FIRST_BYTES = 4 << 20  # first request of a GGUF file; then four times as much, until its header is complete
ROPE_BYTES_MAX = 1 << 16
_TIMEOUTS = httpx2.Timeout(20.0, connect=10.0)
_ATTEMPTS = 3
_FACTORS = re.compile(r"rope_(freqs|factors_(short|long))\.weight")  # they count among a file's settings
_RANGE = re.compile(r"bytes (\d{1,20})-\d+/(\d+|\*)")


def fetch_headers(
    folder: Path, repository: Repository, choice: VariantChoice | None, progress: Progress
) -> Path:
    """The .gguf file (of a split one, the first part) or the folder, inside `folder` or in the cache.

    Raises ModelNotFound, BadModelFile (a malformed index), OSError, httpx2.HTTPError.
    """
    if choice is None:
        bring_files(repository, text_files(repository.files), progress)
        names = weight_files(repository.snapshot, repository.files, f"repository {repository.name}")
    else:
        report_choice(repository, choice, progress)
        names = list(choice.chosen.names)
    if all((repository.snapshot / name).exists() for name in names):
        return repository.snapshot if choice is None else repository.snapshot / names[0]
    target = folder / repository.name
    target.mkdir(parents=True, exist_ok=True)
    with httpx2.Client(follow_redirects=True, timeout=_TIMEOUTS) as client:
        for name in names:
            progress(f"{repository.name}: reading the header of {name}")
            remote = _Remote(client, repository, name, token_headers())
            (_write_gguf if choice is not None else _write_safetensors)(remote, target / Path(name).name)
    size = format_bytes(sum(repository.files[name] for name in names))
    progress(Notice(f"{repository.name}: only headers were read; serving it fetches {size}"))
    if choice is not None:
        return target / Path(names[0]).name
    for name in text_files(repository.files):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).symlink_to(repository.snapshot / name)
    return target


@dataclass(frozen=True, slots=True)
class _Remote:
    """One file of the repository, read by ranges."""

    client: httpx2.Client
    repository: Repository
    name: str
    headers: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        """The size that the hub gives."""
        return self.repository.files[self.name]

    def copy(self, path: Path, start: int, stop: int) -> None:
        """Write bytes [start, stop) where they belong. Raises ModelNotFound, httpx2.HTTPError, OSError."""
        trouble = ""
        for _ in range(_ATTEMPTS):
            try:
                trouble = self._attempt(path, start, stop)
            except httpx2.TransportError as error:
                trouble = str(error) or type(error).__name__
            if not trouble:
                return
        raise ModelNotFound(
            f"{self.name}: its header cannot be read ({trouble}); `octavo models pull` fetches the whole file"
        )

    def _attempt(self, path: Path, start: int, stop: int) -> str:
        """Try once; returns the failure in words, or ""."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.repository.name, self.name, revision=self.repository.commit)
        wanted = {**self.headers, "Accept-Encoding": "identity", "Range": f"bytes={start}-{stop - 1}"}
        with self.client.stream("GET", url, headers=wanted) as answer:
            if answer.status_code not in (200, 206):
                return f"HTTP {answer.status_code}"
            # A store without ranges sends the whole file; its beginning is enough.
            begins = 0 if answer.status_code == 200 else _first_byte(answer)
            if begins != start:
                return f"bytes from {begins} where {start} was asked for"
            with path.open("r+b") as file:
                file.seek(start)
                for chunk in answer.iter_raw():
                    file.write(chunk[: stop - file.tell()])
                    if file.tell() >= stop:
                        return ""
        return "an answer that ended early"


def _first_byte(answer: httpx2.Response) -> int | None:
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return None if match is None else int(match[1])


def _with_hole(remote: _Remote, path: Path) -> None:
    path.touch()
    os.truncate(path, remote.num_bytes)


def _write_gguf(remote: _Remote, path: Path) -> None:
    """Fetch until the header is complete. Bytes not fetched yet read as zeros, so a header that ends in them
    is rejected. The reader of the file reports an unsound header."""
    _with_hole(remote, path)
    here, most = 0, min(remote.num_bytes, HEADER_MEMORY_MAX)
    while here < most:
        wanted = min(most, max(FIRST_BYTES, 4 * here))
        remote.copy(path, here, wanted)
        here = wanted
        try:
            gguf = read_gguf_part(path)
        except ModelError:
            continue
        if gguf.header_bytes > here:
            continue
        for name, raw in gguf.tensors.items():
            if _FACTORS.fullmatch(name) and raw.data.size <= ROPE_BYTES_MAX:
                first = raw.data.ctypes.data - gguf.files[name].data.ctypes.data
                remote.copy(path, first, first + raw.data.size)
        return


def _write_safetensors(remote: _Remote, path: Path) -> None:
    _with_hole(remote, path)
    if remote.num_bytes < 8:
        return
    remote.copy(path, 0, 8)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if 0 < length <= min(HEADER_BYTES_MAX, remote.num_bytes - 8):
        remote.copy(path, 8, 8 + length)
