"""The hub's description of a repository, checked before any of it names a file on the disk.

    GET /api/models/OWNER/NAME  ->  the commit; of each file its path, its bytes, its SHA-256 or git's SHA-1

HF_ENDPOINT names the hub, which is not trusted: a commit that is no hash, a path that leaves the repository,
or a size that is no number is an error, and nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import shown
from octavo.model.hub.snapshots import repository_folder

LOOK_UP_TIMEOUT_S = 10.0
FILE_BYTES_MAX = 1 << 50
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PATH_CHARS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Repository:
    """The hub's answer: the commit, and its files' sizes, SHA-256 and git's SHA-1 (None: not given)."""

    name: str
    commit: str
    files: Mapping[str, int]
    sha256: Mapping[str, str | None]
    git_sha1: Mapping[str, str | None]

    @property
    def snapshot(self) -> Path:
        """The folder of this commit, which need not exist yet."""
        return repository_folder(self.name) / "snapshots" / self.commit


def look_up(name: str) -> Repository:
    """Query the hub. Raises OSError, RuntimeError, httpx2.HTTPError, and ValueError for a bad answer."""
    from huggingface_hub import HfApi, constants

    # Otherwise the library first fetches a list of programs from the hub, to identify itself, without a
    # limit: a malicious hub could send gigabytes.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        info = HfApi(library_name="octavo").model_info(name, files_metadata=True, timeout=LOOK_UP_TIMEOUT_S)
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"the hub's answer does not describe a repository: {error!s:.200}") from error
    commit: object = info.sha
    if not isinstance(commit, str) or _COMMIT.fullmatch(commit) is None:
        raise ValueError(f"the hub names the commit {shown(commit)}; allowed: 40 hexadecimal digits")
    files, sha256, git_sha1 = dict[str, int](), dict[str, str | None](), dict[str, str | None]()
    for file in info.siblings or []:
        path = _checked_path(file.rfilename)
        files[path] = _checked_size(path, file.size)
        sha256[path] = None if file.lfs is None else _text_or_none(file.lfs.sha256)
        # For a large file it is the SHA-1 of its pointer text.
        git_sha1[path] = _text_or_none(file.blob_id) if file.lfs is None else None
    return Repository(name, commit, files, sha256, git_sha1)


def _checked_path(path: object) -> str:
    """Raise ValueError for a path outside of the repository."""
    if isinstance(path, str) and len(path) <= _PATH_CHARS_MAX and _stays_inside(path):
        return path
    raise ValueError(
        f"the hub lists the file {shown(path)}; allowed: up to {_PATH_CHARS_MAX:,} characters, and a path "
        "inside the repository"
    )


def _stays_inside(path: str) -> bool:
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def _checked_size(path: str, size: object) -> int:
    given = 0 if size is None else size
    if type(given) is not int or not 0 <= given <= FILE_BYTES_MAX:
        raise ValueError(
            f"the hub says that {shown(path)} has {shown(size)} bytes; allowed: 0 to {FILE_BYTES_MAX:,}"
        )
    return given


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
