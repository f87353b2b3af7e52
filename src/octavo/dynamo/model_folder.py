"""Writes a model's folder for Dynamo's frontend, which reads no GGUF and no other form of tokenizer.

    dynamo/NAME-DIGEST/
        tokenizer.json          the engine's tokenizer
        tokenizer_config.json   chat template, begin and end token
        generation_config.json  end tokens
        config.json             sizes

Equal contents have one folder, which their digest names. It appears atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from octavo.serving.client import EngineClient

_UNSAFE = re.compile(r"[^\w.-]+")


def model_folder(client: EngineClient, parent: Path) -> Path:
    """The folder of a served model, which is made if it is missing."""
    contents = _contents(client)
    digest = hashlib.blake2b(json.dumps(contents).encode(), digest_size=8).hexdigest()
    folder = parent / f"{_UNSAFE.sub('-', client.name)}-{digest}"
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=parent, prefix=".making-"))
    try:
        for name, text in contents.items():
            (made / name).write_text(text)
        made.chmod(0o755)
        os.rename(made, folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not folder.is_dir():  # else another worker made it first
            raise
    return folder


def _contents(client: EngineClient) -> dict[str, str]:
    tokenizer, named = client.tokenizer, client.tokenizer.info()
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": sorted(tokenizer.stop_ids)}
    length = client.context_length
    sizes = {
        "architectures": ["Octavo"],
        "model_type": "octavo",
        "vocab_size": client.vocab_size,
        "max_position_embeddings": length,
    }
    words = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template", "tokenizer_class")
    settings = {word: named[word] for word in words if named[word] is not None}
    files = {
        "config.json": sizes | ids,
        "generation_config.json": ids,
        "tokenizer_config.json": settings | {"model_max_length": length},
    }
    texts = {name: json.dumps(fields, indent=1) for name, fields in files.items()}
    return texts | {"tokenizer.json": tokenizer.to_json()}
