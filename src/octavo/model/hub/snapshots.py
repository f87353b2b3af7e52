"""Hugging Face's cache on this machine: where a repository's files are, and which commits are cached.

    HF_HUB_CACHE/models--owner--name/
        refs/main                          the commit fetched last, 40 letters
        blobs/ETAG                         a file's bytes, named by the hub's ETag
        blobs/ETAG.incomplete              the first bytes of one; the next attempt appends to them
        snapshots/COMMIT/PATH  ->  blobs/ETAG

The layout is huggingface_hub's, so transformers, llama.cpp and others find the models that Octavo fetched,
and vice versa. This module knows no network.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PART_SUFFIX = ".incomplete"
_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cached files of one commit: path inside the repository to bytes."""

    folder: Path
    files: dict[str, int]

    @property
    def commit(self) -> str:
        """The name of the commit."""
        return self.folder.name


def hub_folder() -> Path:
    """HF_HUB_CACHE, as huggingface_hub has it; it need not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def repository_folder(name: str) -> Path:
    """The folder of a repository's files, existing or not."""
    return hub_folder() / (_PREFIX + name.replace("/", "--"))


def repositories() -> list[str]:
    """The names of all model repositories with cached files."""
    try:
        folders = sorted(entry.name for entry in os.scandir(hub_folder()) if entry.is_dir())
    except OSError:
        return []
    names = [name.removeprefix(_PREFIX).split("--", 1) for name in folders if name.startswith(_PREFIX)]
    return ["/".join(parts) for parts in names if len(parts) == 2]


def snapshots_of(name: str) -> list[Snapshot]:
    """The cached commits of a repository: the one fetched last first, then by age, the newest first."""
    folder = repository_folder(name)
    try:
        main = (folder / "refs" / "main").read_text()[:64].strip()
    except (OSError, ValueError):
        main = ""
    try:
        found = [Path(entry.path) for entry in os.scandir(folder / "snapshots") if entry.is_dir()]
    except OSError:
        return []
    found.sort(key=lambda each: (each.name == main, each.stat().st_mtime), reverse=True)
    return [Snapshot(each, dict(_files_of(each))) for each in found]


def unfinished_parts(name: str) -> list[Path]:
    """Files that were fetched only in part."""
    try:
        return sorted((repository_folder(name) / "blobs").glob(f"*{PART_SUFFIX}"))
    except OSError:
        return []


def link_blob(pointer: Path, blob: Path) -> None:
    """Link the file of a commit to that blob, by an atomic rename; on a file system without links, move the
    blob there. Raises OSError."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    made = pointer.with_name(f".{os.getpid()}-{threading.get_ident()}.link")
    made.unlink(missing_ok=True)
    try:
        made.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        made = blob
    os.replace(made, pointer)


def note_main(name: str, commit: str) -> None:
    """Record that this commit was fetched last, by an atomic rename. Raises OSError."""
    ref = repository_folder(name) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    written = ref.with_name(f".main-{os.getpid()}")
    written.write_text(commit)
    os.replace(written, ref)


def _files_of(folder: Path) -> Iterator[tuple[str, int]]:
    """Path and bytes of readable files; a dangling link is no file."""
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.stat().st_size
        except OSError:
            continue
