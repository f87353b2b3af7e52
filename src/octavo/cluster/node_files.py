"""Digests of the files that all nodes must share: model, template, keys, tenants and TLS.

Nothing is downloaded: a node without the model is refused. Nothing here imports Ray.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from octavo.errors import ModelNotFound
from octavo.files import read_named_file
from octavo.model.hub.alias import ALIASES, DEFAULT_ALIAS
from octavo.model.hub.paths import cache_folder, resolve

_ENDS_BYTES = 1 << 16  # hashed of a large file: so many at its beginning, where its header is, and at its end
_BYTES_MAX = 1 << 22  # of a template


def model_digest(model: str | None) -> str:
    """A hash of the names, sizes, beginnings and ends of a model's files. Raises ModelError if the model is
    not on this node. O(files)."""
    name = DEFAULT_ALIAS if model is None else model
    if name in ALIASES and not (cache_folder() / name / ALIASES[name].file_name).is_file():
        raise ModelNotFound(f"{name} is not in {cache_folder()}; fetch it there: octavo models pull {name}")
    os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported
    path = resolve(model).path
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as data:
            digest.update(data.read(_ENDS_BYTES))
            data.seek(max(0, size - _ENDS_BYTES))
            digest.update(data.read(_ENDS_BYTES))
    return digest.hexdigest()


def files_digest(paths: Iterable[str]) -> str:
    """A hash of small files. Raises ConfigError for one that cannot be read."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(read_named_file(Path(path), _BYTES_MAX, "every node needs it under the same path"))
    return digest.hexdigest()
