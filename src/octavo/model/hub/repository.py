"""A Hugging Face repository: what it has, which of it is meant, and how that gets here.

    look up (commit, names, sizes, SHA-256)  ->  pick  ->  room on the disk?  ->  fetch, check, link
        no network, or HF_HUB_OFFLINE=1  ->  pick among what the cache has, if it is whole

huggingface_hub looks things up, brings tokens, and lays the cache out; hub_download brings the bytes.
"""

from __future__ import annotations

import fnmatch
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ModelError, ModelNotFound
from octavo.fields import read_json_fields
from octavo.model.files.safetensors_file import INDEX_NAME, SINGLE_NAME
from octavo.model.hub.download import Download, RemoteFile, watch
from octavo.model.hub.snapshots import (
    PART_SUFFIX,
    Snapshot,
    note_main,
    repository_folder,
    snapshots_of,
)
from octavo.model.hub.variants import Choice, pick
from octavo.types import Notice
from octavo.units import format_age, format_bytes

# What a folder of safetensors has beside its weights: settings, tokenizers, templates.
TEXT_FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
_LOOK_UP_TIMEOUT_S = 10.0
_PLAIN_HTTP_MAX = 50 * 10**9  # larger files are only served through Xet, which huggingface_hub speaks
_ETAG = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SHA256, _GIT_SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
_RATE_OVER_S = 10.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says: the commit, and its files' sizes and SHA-256 (None where it tells none)."""

    name: str
    commit: str
    files: Mapping[str, int]
    sha256: Mapping[str, str | None]

    @property
    def snapshot(self) -> Path:
        """The folder of this commit, which need not exist yet."""
        return repository_folder(self.name) / "snapshots" / self.commit


def fetch_repository(name: str, wanted: str | None, progress: Progress) -> Path:
    """The .gguf file (of a split one, the first part) that `wanted` means, or the folder with safetensors.

    Raises ModelNotFound (whatever the reason it could not be had), BadModelFile, UnsupportedModel.
    """
    import httpx2

    progress(f"{name}: looking for it on Hugging Face")
    try:
        repository = _look_up(name)
    except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
        return _from_cache(name, wanted, error, progress)
    choice = pick(repository.files, wanted, f"repository {name}")
    try:
        return _fetch(repository, choice, progress)
    except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
        raise _in_words(name, error) from error


def _look_up(name: str) -> Repository:
    """Ask the hub."""
    from huggingface_hub import HfApi

    info = HfApi(library_name="octavo").model_info(name, files_metadata=True, timeout=_LOOK_UP_TIMEOUT_S)
    files, sha256 = dict[str, int](), dict[str, str | None]()
    for file in info.siblings or []:
        files[file.rfilename] = file.size or 0
        sha256[file.rfilename] = None if file.lfs is None else file.lfs.sha256
    if not info.sha:
        raise ValueError("the hub names no commit of it")
    return Repository(name, info.sha, files, sha256)


def _fetch(repository: Repository, choice: Choice | None, progress: Progress) -> Path:
    """Bring what was picked here, all of it or an error."""
    name, folder = repository.name, repository.snapshot
    if choice is not None:
        if choice.why:
            progress(Notice(f"{name}: {choice.chosen.names[0]} is taken, {choice.why}"))
        _bring(repository, choice.chosen.names, progress)
        found = folder / choice.chosen.names[0]
    else:
        _bring(repository, _text_files(repository.files), progress)
        _bring(repository, weight_files(folder, repository.files, f"repository {name}"), progress)
        found = folder
    note_main(name, repository.commit)
    return found


def _text_files(files: Mapping[str, int]) -> list[str]:
    """Those of the top folder, and templates wherever they are."""
    return [
        name
        for name in files
        if any(fnmatch.fnmatch(name, pattern) for pattern in TEXT_FILES)
        and ("/" not in name or name.endswith(".jinja"))
    ]


def weight_files(folder: Path, files: Mapping[str, int], where: str) -> list[str]:
    """The safetensors that the index in `folder` names, or the single one. Raises ModelNotFound for what is
    not among `files`, BadModelFile.
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


def _bring(repository: Repository, names: Sequence[str], progress: Progress) -> None:
    """Have these files in the snapshot. Raises ModelNotFound where the disk has no room for them."""
    folder = repository.snapshot
    absent = [name for name in names if not (folder / name).exists()]
    if not absent:
        return
    sizes = repository.files
    blobs = repository_folder(repository.name) / "blobs"
    _check_room(blobs, sum(sizes[name] - _bytes_here(blobs, repository.sha256[name]) for name in absent))
    meter = _Meter(repository.name, sum(sizes[name] for name in absent), progress)
    blobs.mkdir(parents=True, exist_ok=True)
    for name in absent:
        _bring_one(repository, name, blobs, meter)
        meter.before += sizes[name]
    progress(f"{repository.name}: {format_bytes(meter.total)} are in {folder}")


def _bring_one(repository: Repository, name: str, blobs: Path, meter: _Meter) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    url = hf_hub_url(repository.name, name, revision=repository.commit)
    known = get_hf_file_metadata(url, timeout=_LOOK_UP_TIMEOUT_S)
    etag, size = str(known.etag or ""), known.size
    if size is not None and size <= _PLAIN_HTTP_MAX and _ETAG.fullmatch(etag):
        sha256 = repository.sha256[name] or (etag if _SHA256.fullmatch(etag) else None)
        git_sha1 = etag if _GIT_SHA1.fullmatch(etag) else None
        file = RemoteFile(name, url, _headers(), size, sha256, git_sha1)
        download = Download(file, blobs / f"{etag}{PART_SUFFIX}", blobs / etag)
        if not (blobs / etag).exists():
            watch(download.run, lambda: meter.tell(download))

    def link(_stop: threading.Event) -> None:
        hf_hub_download(repository.name, name, revision=repository.commit)

    watch(link, lambda: meter.tell_waiting(name))  # links the blob; fetches what only the library can


def _headers() -> dict[str, str]:
    """A person's token, if there is one. A redirection to another host loses it on the way."""
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _bytes_here(blobs: Path, sha256: str | None) -> int:
    """Of a file that is on its way already."""
    try:
        return 0 if sha256 is None else (blobs / f"{sha256}{PART_SUFFIX}").stat().st_size
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


class _Meter:
    """How far the files of one fetch are, in words, about once a second."""

    def __init__(self, name: str, total: int, progress: Progress) -> None:
        self.total = total
        self.before = 0  # bytes of the files that are complete
        self._name, self._progress = name, progress
        self._seen: deque[tuple[float, int]] = deque()

    def tell(self, download: Download) -> None:
        """Report what the download does."""
        file = download.file
        if download.doing == "checking":
            done, of = download.num_checked, file.num_bytes
            self._progress(f"{self._name}: checking {file.name}, {format_bytes(done)} of {format_bytes(of)}")
            return
        done = self.before + download.num_bytes
        words = (
            f"{self._name}: {download.doing} {file.name}, {format_bytes(done)} of {format_bytes(self.total)}"
        )
        self._progress(words + self._speed(time.monotonic(), done))

    def tell_waiting(self, name: str) -> None:
        """Report what huggingface_hub does."""
        self._progress(f"{self._name}: huggingface_hub fetches {name}")

    def _speed(self, now: float, done: int) -> str:
        """ ", 45.0 MiB/s, 2 minutes left", over the last seconds; "" before there are two looks."""
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
    """What the cache has, if it is whole; else the reason why the hub could not be asked."""
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
    """The file or folder that is meant. Raises ModelError where something of it is missing."""
    where = f"snapshot {snapshot.commit[:12]}"
    choice = pick(snapshot.files, wanted, where)
    if choice is not None:
        return snapshot.folder / choice.chosen.names[0]
    for name in ("config.json", *weight_files(snapshot.folder, snapshot.files, where)):
        if name not in snapshot.files:
            raise ModelNotFound(f"{where} has no {name}")
    return snapshot.folder


def is_whole(snapshot: Snapshot) -> bool:
    """Whether nothing is missing of a commit's safetensors."""
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
