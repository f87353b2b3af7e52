"""`octavo convert`: a model's weights in another kind, as a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from octavo import _native
from octavo.cli.terminal import phases, write
from octavo.engine.available import available_cores
from octavo.model.conversion.convert import Target, convert_gguf
from octavo.model.conversion.convert_folder import convert_folder
from octavo.model.files.gguf_writer import PlannedTensor
from octavo.model.hub.paths import resolve
from octavo.units import format_bytes


def run(model: str | None, out: Path, weights: str, *, overwrite: bool) -> None:
    """Write the file, and say what is in it. Raises ConfigError and ModelError."""
    target = Target(out, weights, overwrite)
    target.require_sound()
    _native.set_num_threads(available_cores())
    with phases() as tell:
        path = resolve(model, tell)
        convert = convert_gguf if path.kind == "gguf" else convert_folder
        written = convert(path.path, target, tell)
    write(f"{out}: {in_words(written)}\n")


def in_words(tensors: Sequence[PlannedTensor]) -> str:
    """ "92.5 MiB: Q4_1 63.3 MiB, Q8_0 29.2 MiB": the most first."""
    by_kind: dict[str, int] = {}
    for tensor in tensors:
        by_kind[tensor.kind] = by_kind.get(tensor.kind, 0) + tensor.num_bytes
    kinds = sorted(by_kind.items(), key=lambda item: -item[1])
    total = format_bytes(sum(by_kind.values()))
    return f"{total}: " + ", ".join(f"{kind} {format_bytes(size)}" for kind, size in kinds)
