"""A Hugging Face repository: lists its files, picks the model, and fetches it.

    look up (commit, names, sizes, SHA-256)  ->  pick  ->  room on the disk?  ->  fetch, check, link
        no network, or HF_HUB_OFFLINE=1  ->  pick from the cache, if the model is complete there

huggingface_hub looks up repositories and finds tokens; download.py fetches the bytes. The hub's answers
become file names in the cache (look_up.py checks commits and paths, `_bring_one` ETags), so this module never
calls `hf_hub_download`, which queries again and trusts the answer.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import BadModelFile, ModelError, ModelNotFound, shown
from octavo.fields import read_json_fields
from octavo.model.files.safetensors_file import INDEX_NAME, SINGLE_NAME
from octavo.model.hub.download import ChecksumCheck, Download, RemoteFile, watch
from octavo.model.hub.look_up import LOOK_UP_TIMEOUT_S, Repository, look_up
from octavo.model.hub.snapshots import (
    PART_SUFFIX,
    Snapshot,
    link_blob,
    note_main,
    repository_folder,
    snapshots_of,
)
from octavo.model.hub.variants import VariantChoice, pick
from octavo.types import Notice
from octavo.units import format_age, format_bytes

if TYPE_CHECKING:
    from huggingface_hub.utils._xet import XetFileData

# Other files of a folder of safetensors: settings, tokenizers, templates.
TEXT_FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
_PLAIN_HTTP_MAX = 50 * 10**9  # larger files are only served through Xet, which huggingface_hub speaks
_ETAG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_SHA256, _GIT_SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_RATE_OVER_S = 10.0

Progress = Callable[[str], None]


Fetch = Callable[[Repository, VariantChoice | None, Progress], Path]


def fetch_repository(name: str, wanted: str | None, progress: Progress, fetch: Fetch | None = None) -> Path:
    """The .gguf file (of a split one, the first part) that `wanted` means, or the folder with safetensors.
    `fetch` fetches the picked files, or less; by default all.

    Raises ModelNotFound (for any reason it could not be fetched), BadModelFile, UnsupportedModel.
    """
    import httpx2

    progress(f"{name}: looking for it on Hugging Face")
    try:
        repository = look_up(name)
    except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
        return _from_cache(name, wanted, error, progress)
    choice = pick(repository.files, wanted, f"repository {name}")
    try:
        return (fetch or _fetch)(repository, choice, progress)
    except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
        raise _in_words(name, error) from error


def _fetch(repository: Repository, choice: VariantChoice | None, progress: Progress) -> Path:
    """Fetch the picked files, all of them or an error."""
    name, folder = repository.name, repository.snapshot
    if choice is not None:
        report_choice(repository, choice, progress)
        bring_files(repository, choice.chosen.names, progress)
        found = folder / choice.chosen.names[0]
    else:
        bring_files(repository, text_files(repository.files), progress)
        bring_files(repository, weight_files(folder, repository.files, f"repository {name}"), progress)
        found = folder
    note_main(name, repository.commit)
    return found


def report_choice(repository: Repository, choice: VariantChoice, progress: Progress) -> None:
    """Report the chosen file if the user named none."""
    if choice.why:
        progress(Notice(f"{repository.name}: {choice.chosen.names[0]} is taken, {choice.why}"))


def text_files(files: Mapping[str, int]) -> list[str]:
    """The text files of the top folder, and templates in any folder."""
    return [
        name
        for name in files
        if any(fnmatch.fnmatch(name, pattern) for pattern in TEXT_FILES)
        and ("/" not in name or name.endswith(".jinja"))
    ]


def weight_files(folder: Path, files: Mapping[str, int], where: str) -> list[str]:
    """The safetensors that the index in `folder` names, or the single one. Raises ModelNotFound for a name
    not in `files`, BadModelFile.
    """
    if INDEX_NAME not in files:
        return [SINGLE_NAME]
    shards = read_json_fields(folder / INDEX_NAME).inner("weight_map").values.values()
    names = sorted({name for name in shards if isinstance(name, str)})
    missing = [name for name in names if name not in files]
    if missing or not names:
        raise ModelNotFound(f"{where}: its {INDEX_NAME} names {missing[:1] or 'no file'}, which is not there")
    return names


# -- fetching ------------------------------------------------------------------------------------------


def bring_files(repository: Repository, names: Sequence[str], progress: Progress) -> None:
    """Fetch these files into the snapshot. Raises ModelNotFound if the disk has no room for them."""
    folder = repository.snapshot
    absent = [name for name in names if not (folder / name).exists()]
    if not absent:
        return
    sizes = repository.files
    blobs = repository_folder(repository.name) / "blobs"
    _check_room(blobs, sum(sizes[name] - _bytes_here(blobs, repository.sha256[name]) for name in absent))
    meter = _DownloadMeter(repository.name, sum(sizes[name] for name in absent), progress)
    blobs.mkdir(parents=True, exist_ok=True)
    for name in absent:
        _bring_one(repository, name, blobs, meter)
        meter.before += sizes[name]
    progress(f"{repository.name}: {format_bytes(meter.total)} are in {folder}")


def _bring_one(repository: Repository, name: str, blobs: Path, meter: _DownloadMeter) -> None:
    """Raises BadModelFile if the hub's ETag cannot name a blob."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(repository.name, name, revision=repository.commit)
    known = get_hf_file_metadata(url, timeout=LOOK_UP_TIMEOUT_S)
    etag, size = _checked_etag(name, known.etag), known.size or repository.files[name]
    sha256 = repository.sha256[name] or (etag if _SHA256.fullmatch(etag) else None)
    git_sha1 = repository.git_sha1[name] or (etag if _GIT_SHA1.fullmatch(etag) else None)
    file = RemoteFile(name, url, token_headers(), size, sha256, git_sha1)
    if not (blobs / etag).exists():
        part, missing = blobs / f"{etag}{PART_SUFFIX}", size - _bytes_here(blobs, etag)
        _check_room(blobs, missing)
        if size > _PLAIN_HTTP_MAX and missing and known.xet_file_data is not None:
            _bring_by_xet(file, known.xet_file_data, part, meter)
        download = Download(file, part, blobs / etag)  # checks a part that is complete already
        watch(download.run, lambda: meter.report(download))
    link_blob(repository.snapshot / name, blobs / etag)
    if file.checksum is None:
        meter.report_unchecked(name)


def _checked_etag(name: str, etag: str | None) -> str:
    given = etag or ""
    if _ETAG.fullmatch(given) is None or ".." in given or given.endswith(PART_SUFFIX):
        raise BadModelFile(
            f"the hub gives {shown(name)} the ETag {shown(given)}, which is no name of a file; allowed: 1 to "
            "128 letters, digits, and - . _ without two dots in a row; is HF_ENDPOINT a hub that you trust?"
        )
    return given


def _bring_by_xet(file: RemoteFile, where: XetFileData, part: Path, meter: _DownloadMeter) -> None:
    """Fetch the whole file as `part` with huggingface_hub, through a temporary file of this process."""
    from huggingface_hub.file_download import xet_get

    own = part.with_suffix(f".{os.getpid()}{PART_SUFFIX}")

    def fetch(_stop: threading.Event) -> None:
        xet_get(
            incomplete_path=own,
            xet_file_data=where,
            headers=dict(file.headers),
            expected_size=file.num_bytes,
            displayed_filename=file.name,
        )
        os.replace(own, part)

    try:
        watch(fetch, lambda: meter.report_waiting(file.name))
    finally:
        own.unlink(missing_ok=True)


def token_headers() -> dict[str, str]:
    """The user's token, if there is one. A redirection to another host drops it."""
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _bytes_here(blobs: Path, etag: str | None) -> int:
    """The size of a file's part; 0 if its ETag is not known yet."""
    try:
        return 0 if etag is None else (blobs / f"{etag}{PART_SUFFIX}").stat().st_size
    except OSError:
        return 0


def _check_room(folder: Path, num_bytes: int) -> None:
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if num_bytes > free:
        raise ModelNotFound(
            f"{folder} has {format_bytes(free)} free; {format_bytes(num_bytes)} are needed. `octavo models"
            " rm` removes models that are there, HF_HOME names another folder, and a smaller quantisation"
            " (owner/name:Q4_K_M) needs less"
        )


class _DownloadMeter:
    """Reports the progress of one fetch, in words, about once a second."""

    def __init__(self, name: str, total: int, progress: Progress) -> None:
        self.total = total
        self.before = 0  # bytes of the files that are complete
        self._name, self._progress = name, progress
        self._seen: deque[tuple[float, int]] = deque()

    def report(self, download: Download) -> None:
        """Report the progress of a download."""
        file = download.file
        if download.doing == "checking":
            self.report_checking(download.checking)
            return
        done = self.before + download.num_bytes
        words = (
            f"{self._name}: {download.doing} {file.name}, {format_bytes(done)} of {format_bytes(self.total)}"
        )
        self._progress(words + self._speed(time.monotonic(), done))

    def report_checking(self, checking: ChecksumCheck) -> None:
        """Report the progress of a checksum comparison."""
        done, of = format_bytes(checking.num_bytes), format_bytes(checking.file.num_bytes)
        self._progress(f"{self._name}: checking {checking.file.name}, {done} of {of}")

    def report_unchecked(self, name: str) -> None:
        """Report a file that has no checksum."""
        self._progress(Notice(f"{self._name}: {name} is not checked: the hub tells no checksum of it"))

    def report_waiting(self, name: str) -> None:
        """Report that huggingface_hub fetches a file."""
        self._progress(f"{self._name}: huggingface_hub fetches {name}")

    def _speed(self, now: float, done: int) -> str:
        """ ", 45.0 MiB/s, 2 minutes left", over the last seconds; "" before there are two samples."""
        self._seen.append((now, done))
        while now - self._seen[0][0] > _RATE_OVER_S:
            self._seen.popleft()
        seconds, num_bytes = now - self._seen[0][0], done - self._seen[0][1]
        if seconds <= 0 or num_bytes <= 0:
            return ""
        left = format_age((self.total - done) * seconds / num_bytes)
        return f", {format_bytes(num_bytes / seconds)}/s, {left} left"


# -- without the hub -----------------------------------------------------------------------------------


def _from_cache(name: str, wanted: str | None, error: Exception, progress: Progress) -> Path:
    """The cached model, if it is complete; else raises the error of the hub."""
    why = _in_words(name, error)
    refused: ModelError = why
    for snapshot in snapshots_of(name):
        try:
            found = _whole(snapshot, wanted)
        except ModelError as missing:
            refused = ModelNotFound(f"{why}; and of what is in the cache: {missing}")
            continue
        age = format_age(time.time() - snapshot.folder.stat().st_mtime)
        why_cached = f"Hugging Face cannot be asked ({_first_line(error)})"
        progress(Notice(f"{name}: {why_cached}; the copy of {age} ago in the cache is used"))
        return found
    raise refused from error


def _whole(snapshot: Snapshot, wanted: str | None) -> Path:
    """The file or folder that is meant. Raises ModelError if a file is missing."""
    where = f"snapshot {snapshot.commit[:12]}"
    choice = pick(snapshot.files, wanted, where)
    if choice is not None:
        return snapshot.folder / choice.chosen.names[0]
    for name in ("config.json", *weight_files(snapshot.folder, snapshot.files, where)):
        if name not in snapshot.files:
            raise ModelNotFound(f"{where} has no {name}")
    return snapshot.folder


def is_whole(snapshot: Snapshot) -> bool:
    """Whether a commit's safetensors are complete."""
    try:
        return _whole(snapshot, None) == snapshot.folder
    except ModelError:
        return False


def _in_words(name: str, error: Exception) -> ModelNotFound:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        reason = "its owner wants you to accept terms and log in first (`hf auth login`)"
        return ModelNotFound(f"repository {name}: {reason}")
    if isinstance(error, RepositoryNotFoundError):
        reason = "Hugging Face has no such repository, or it is private (`hf auth login`)"
        return ModelNotFound(f"repository {name}: {reason}, and there is no folder of that name here")
    return ModelNotFound(
        f"repository {name} could not be fetched ({_first_line(error)}). Check the network and the name, or"
        " download it elsewhere and name the folder; the default model needs only the package index"
    )


def _first_line(error: Exception) -> str:
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0][:300] if words else ''}"
