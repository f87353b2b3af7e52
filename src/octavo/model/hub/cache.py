"""The contents of the caches: every fetched model, listed and removed by the name that serves it.

    OCTAVO_CACHE/smollm2-135m/*.gguf                  an alias
    HF_HUB_CACHE/models--owner--name/snapshots/...    owner/name (safetensors), owner/name:Q4_K_M (GGUF)
                                    /blobs/*.incomplete    the part of an interrupted download

A blob is removed with the last commit that uses it. The user's own files are in neither folder, and nothing
here removes them: a link that leads out of the cache is removed, and its target stays; a folder that is such
a link is refused. (huggingface_hub's `delete_files` and `delete_revisions` follow both, and its
`scan_cache_dir` omits a repository with a broken link or with unfinished files only.)
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ModelError, ModelNotFound, shown
from octavo.fields import read_json_fields
from octavo.model.files.gguf_split import parse_part_name
from octavo.model.files.safetensors_file import INDEX_NAME, SINGLE_NAME
from octavo.model.hub.alias import ALIASES
from octavo.model.hub.paths import ModelPath, cache_folder, is_repository
from octavo.model.hub.repository import is_whole
from octavo.model.hub.snapshots import (
    Snapshot,
    hub_folder,
    repositories,
    repository_folder,
    snapshots_of,
    unfinished_parts,
)
from octavo.model.hub.variants import GgufSet, choose, gguf_sets


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in a cache, with the name that serves or removes it."""

    name: str
    kind: str  # "gguf", "safetensors", or "unfinished": the part of an interrupted download
    quant: str | None  # "Q4_K_M"; of safetensors "bfloat16", "gptq"; None: not known
    num_bytes: int
    path: Path  # the file (of a split one, the first part), or the folder
    num_files: int
    used_at: float  # seconds since the epoch
    is_whole: bool


def cached_models() -> list[CachedModel]:
    """All models in the caches, aliases first. Raises ConfigError. O(files in the caches)."""
    found = [model for name in ALIASES if (model := _cached_alias(name)) is not None]
    for name in repositories():
        found += _cached_repository(name)
    return found


def find_cached(name: str, among: Iterable[CachedModel]) -> list[CachedModel]:
    """The models that removing `name` removes: a whole repository's, or one of them, or an alias.

    Raises ModelNotFound, which lists the cached ones.
    """
    models = list(among)
    base, colon, wanted = name.partition(":")
    if colon and not wanted:
        raise ModelNotFound(f"{shown(name)} names no quantisation; allowed: {base}:Q4_K_M, or {base} for all")
    mine = [each for each in models if each.name.partition(":")[0] == base]
    if not mine:
        known = ", ".join(each.name for each in models) or "none"
        own = " It is a file or folder of your own, which only you remove." if os.path.exists(name) else ""
        raise ModelNotFound(f"{shown(name)} is not in the caches.{own} What is there: {known}")
    if not wanted:
        return mine
    if not is_repository(base):
        raise ModelNotFound(f"{shown(name)}: the alias {base} is one file; leave out {shown(':' + wanted)}")
    sets = _gguf_sets(base)
    chosen = choose(list(sets.values()), wanted, f"the cache of {base}").chosen
    return [each for each in mine if sets.get(each.name) == chosen]


def remove_cached(name: str, models: Iterable[CachedModel]) -> int:
    """Remove the models that `find_cached` found for `name`. Returns the bytes freed. Raises OSError, and
    ModelNotFound if the folder is a link out of the cache."""
    base, _, wanted = name.partition(":")
    folder = cache_folder() / base if base in ALIASES else repository_folder(base)
    _check_inside(folder, folder.parent)
    if wanted:
        sets = _gguf_sets(base)
        return sum(_remove_files(base, sets[each.name].names) for each in models if each.name in sets)
    if base in ALIASES:
        path = folder / ALIASES[base].file_name
        num_bytes = 0 if path.is_symlink() else path.stat().st_size
        path.unlink()
        return num_bytes
    num_bytes = _bytes_of(path for path in folder.rglob("*") if not path.is_symlink())
    shutil.rmtree(folder)
    locks = hub_folder() / ".locks"  # of huggingface_hub's own fetches
    if not locks.is_symlink():
        shutil.rmtree(locks / folder.name, ignore_errors=True)
    return num_bytes


def files_of(model: ModelPath) -> list[Path]:
    """The files that hold a model's weights."""
    if model.kind == "safetensors":
        return sorted(model.path.glob("*.safetensors"))
    part = parse_part_name(model.path.name)
    if part is None:
        return [model.path]
    return [model.path.with_name(part.of(number)) for number in range(1, part.count + 1)]


def bytes_of(model: ModelPath) -> int:
    """The bytes of a model's files."""
    return _bytes_of(files_of(model))


def _cached_alias(name: str) -> CachedModel | None:
    alias = ALIASES[name]
    path = cache_folder() / name / alias.file_name
    if not path.is_file():
        return None
    size, quant = path.stat().st_size, gguf_sets({alias.file_name: 0})[0].quant
    return CachedModel(name, "gguf", quant, size, path, 1, _used_at([path]), size == alias.member_bytes)


def _cached_repository(name: str) -> list[CachedModel]:
    """The models of one repository; of several commits, the one fetched last is shown."""
    found: list[CachedModel] = []
    snapshots = snapshots_of(name)
    for label, each in _gguf_sets(name).items():
        paths = _pointers(snapshots, each.names)
        size, used, count = _bytes_of(_blobs(paths)), _used_at(paths), len(each.names)
        first = next(path for path in paths if path.name == Path(each.names[0]).name)
        found.append(CachedModel(label, "gguf", each.quant, size, first, count, used, each.is_complete))
    for snapshot in snapshots:
        if SINGLE_NAME in snapshot.files or INDEX_NAME in snapshot.files:
            found.append(_cached_safetensors(name, snapshot, snapshots))
            break
    parts = unfinished_parts(name)
    if parts:
        size, used, folder = _bytes_of(parts), _used_at(parts), repository_folder(name)
        found.append(CachedModel(name, "unfinished", None, size, folder, len(parts), used, False))
    return found


def _cached_safetensors(name: str, snapshot: Snapshot, snapshots: list[Snapshot]) -> CachedModel:
    names = [each for each in snapshot.files if not each.lower().endswith(".gguf")]
    paths = _pointers(snapshots, names)
    quant: str | None = None
    try:
        settings = read_json_fields(snapshot.folder / "config.json")
        method = settings.inner("quantization_config").text("quant_method", "")
        quant = method or settings.text("dtype", settings.text("torch_dtype", "")) or None
    except ModelError:
        pass  # a listing also shows damaged models
    size, used, whole = _bytes_of(_blobs(paths)), _used_at(paths), is_whole(snapshot)
    return CachedModel(name, "safetensors", quant, size, snapshot.folder, len(names), used, whole)


def _gguf_sets(repository: str) -> dict[str, GgufSet]:
    """The GGUF models of all local commits, by the name that serves or removes each: its quantisation if that
    is unique, else its file."""
    files: dict[str, int] = {}
    for snapshot in reversed(snapshots_of(repository)):
        files |= snapshot.files
    sets = gguf_sets(files)
    count = Counter(each.quant for each in sets)
    names = [each.quant if each.quant and count[each.quant] == 1 else each.names[0] for each in sets]
    return {f"{repository}:{name}": each for name, each in zip(names, sets, strict=True)}


def _pointers(snapshots: Iterable[Snapshot], names: Iterable[str]) -> list[Path]:
    """The paths of these files, in all commits."""
    wanted = list(names)
    return [each.folder / name for each in snapshots for name in wanted if name in each.files]


def _blobs(pointers: Iterable[Path]) -> set[Path]:
    return {Path(os.path.realpath(path)) for path in pointers}


def _check_inside(path: Path, folder: Path) -> None:
    """Raise ModelNotFound if `path`, with all links resolved, is not inside `folder`."""
    found, allowed = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not found.is_relative_to(allowed):
        raise ModelNotFound(
            f"{path} leads to {found}, which is outside of {allowed}, and nothing was removed; allowed: what "
            "lies in the cache itself; remove the link, or what it leads to, by hand"
        )


def _remove_files(repository: str, names: Iterable[str]) -> int:
    """Remove files from every commit, and their blobs that no other file of the repository uses."""
    snapshots = snapshots_of(repository)
    gone = _pointers(snapshots, names)
    for path in gone:
        _check_inside(path.parent, repository_folder(repository))
    kept = {each.folder / name for each in snapshots for name in each.files} - set(gone)
    own = Path(os.path.realpath(repository_folder(repository)))
    unused = {blob for blob in _blobs(gone) - _blobs(kept) if blob.is_relative_to(own)}
    num_bytes = _bytes_of(unused)
    for path in gone:
        path.unlink()
    for blob in unused:
        blob.unlink(missing_ok=True)
    for snapshot in snapshots:
        if not any(path.is_file() for path in snapshot.folder.rglob("*")):
            shutil.rmtree(snapshot.folder)
    return num_bytes


def _bytes_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def _used_at(paths: Iterable[Path]) -> float:
    """When one of them was last read (if the file system records that) or written."""
    times = [max(path.stat().st_atime, path.stat().st_mtime) for path in paths if path.exists()]
    return max(times, default=0.0)
