"""`octavo doctor MODEL -tp N`: the memory of each rank, the missing devices, and the bytes a step gathers.

It reads only headers, so it works on a machine without the devices.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from octavo.cli.doctor_headers import print_lines, settings_json
from octavo.cli.flags import SettingOrigin
from octavo.cli.terminal import show_progress, write
from octavo.config import StartOptions
from octavo.engine.backends import find_missing_devices
from octavo.executor.runner import kv_shape_of
from octavo.kernels.contract import KvShape
from octavo.model.hub.headers import fetch_headers
from octavo.model.hub.paths import resolve
from octavo.model.model_check import check_model
from octavo.model.spec import ModelSpec
from octavo.model.split import Split, check_ranks
from octavo.model.weight_sizes import MeasuredModel, measure_model
from octavo.units import format_bytes

POSITIONS = (1, 32, 512)  # of a step: one user, many users, a prompt's chunk
_FLOAT_BYTES = 4
# Latency and rate of a gather between two devices: assumed, not measured here.
LINKS = {"NVLink": (6e-6, 300e9), "PCIe": (20e-6, 20e9)}


@dataclass(frozen=True, slots=True)
class Gathers:
    """The gathers in which a rank receives data of the others in a step."""

    count: int
    num_bytes: int

    def seconds(self, link: str) -> float:
        """The time over a link with that name in `LINKS`."""
        start_s, bytes_per_s = LINKS[link]
        return self.count * start_s + self.num_bytes / bytes_per_s


def diagnose_ranks(
    model: str | None, options: StartOptions, origins: Sequence[SettingOrigin] = (), *, as_json: bool = False
) -> bool:
    """Print the diagnosis; returns whether the model runs and no device is missing. Raises ModelNotFound, and
    ConfigError if the model cannot be split into so many ranks."""
    num_ranks = options.tensor_parallel_size
    with show_progress() as report, tempfile.TemporaryDirectory(prefix="octavo-headers-") as folder:
        path = resolve(model, report, partial(fetch_headers, Path(folder)))
        report("reading headers")
        checked = check_model(path, options.weights, options.context_length)
        if checked.problems or checked.opened is None or checked.measured is None:
            problems = [(problem.part, problem.text) for problem in checked.problems]
            print_lines([("runs", "no"), *problems], [])
            return False
        spec = checked.measured.spec
        check_ranks(num_ranks, spec.num_heads, spec.num_kv_heads)
        parts = [
            measure_model(
                checked.opened, options.weights, options.context_length, split=Split(rank, num_ranks)
            )
            for rank in range(num_ranks)
        ]
    missing = find_missing_devices(options)
    number_bytes = _FLOAT_BYTES if options.weights == "f32" or options.device == "cpu" else 2
    lines = [
        ("ranks", f"{num_ranks}, with bitwise the same answers as one device"),
        ("devices", "none is missing" if not missing else f"missing: {'; '.join(missing)}"),
        *_rank_lines(parts, options),
        *_gather_lines(spec, num_ranks, number_bytes),
    ]
    if as_json:
        found = [{"name": name, "text": text} for name, text in lines]
        write(json.dumps({"ranks": found, "given": settings_json(origins)}, indent=2) + "\n")
    else:
        print_lines(lines, [])
    return not missing


def _rank_lines(parts: Sequence[MeasuredModel], options: StartOptions) -> list[tuple[str, str]]:
    """A line with weights, blocks and peak of each rank."""
    lines, num_ranks = [], len(parts)
    for rank, part in enumerate(parts):
        weights, largest = bytes_on_device(part, options)
        share = share_of_block(part.spec, Split(rank, num_ranks), options)
        text = f"weights {format_bytes(weights)}, {format_bytes(share)} of a block"
        if options.kv_memory_bytes is not None:
            count = options.kv_memory_bytes // (share * num_ranks)
            text += f", {count:,} blocks ({format_bytes(count * share)})"
            weights += count * share
        lines.append((f"rank {rank}", f"{text}, peak {format_bytes(weights + largest)}"))
    return lines


def bytes_on_device(part: MeasuredModel, options: StartOptions) -> tuple[int, int]:
    """Bytes of a rank's weights with its tables, and of the largest slice of a tensor while it loads."""
    matrices = [part.weights.embedding, part.weights.output]
    matrices += [linear.weight for layer in part.weights.layers for linear in layer.linears]
    largest = _FLOAT_BYTES * max(math.prod(matrix.shape) for matrix in matrices)
    if options.device == "cpu":
        return part.num_bytes, largest
    each = _FLOAT_BYTES if options.weights == "f32" else 2  # a GPU holds de-quantised weights
    return part.weights.num_parameters * each + part.table_bytes, largest


def share_of_block(spec: ModelSpec, split: Split, options: StartOptions) -> int:
    """Bytes of a rank's part of a block, in whole pages."""
    whole = kv_shape_of(spec, options.block_size, options.kv)
    heads = len(split.kv_heads(whole.num_kv_heads))
    return -(-_kv_bytes(whole, heads) // 4096) * 4096


def _kv_bytes(shape: KvShape, heads: int) -> int:
    per_number = {"f32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}[shape.kind]
    scale = 4 if per_number == 1 else 0
    return 2 * shape.num_layers * heads * shape.block_size * (shape.head_size * per_number + scale)


def gathers_of(spec: ModelSpec, num_ranks: int, positions: int, number_bytes: int) -> Gathers:
    """The gathers of a step over so many positions: all are sampled, or the last one of a prompt's chunk."""
    sampled = 1 if positions > 32 else positions
    inner = spec.ffn_size
    if spec.routing is not None:
        inner = spec.routing.top_k * spec.expert_ffn_size
    widths = spec.num_layers * (spec.num_heads * spec.head_size + 2 * spec.hidden_size + inner)
    columns = positions * widths * number_bytes + sampled * spec.vocab_size * _FLOAT_BYTES
    others = columns * (num_ranks - 1) // num_ranks
    embedding = positions * spec.hidden_size * number_bytes * (num_ranks - 1)
    hidden = sampled * spec.hidden_size * number_bytes
    inner_gathers = 1
    if spec.routing is not None:  # one per chosen expert
        inner_gathers = min(spec.num_experts, positions * spec.routing.top_k)
    return Gathers(spec.num_layers * (3 + inner_gathers) + 4, others + embedding + hidden)


def _gather_lines(spec: ModelSpec, num_ranks: int, number_bytes: int) -> list[tuple[str, str]]:
    lines = []
    for positions in POSITIONS:
        gathers = gathers_of(spec, num_ranks, positions, number_bytes)
        times = ", ".join(f"{1000 * gathers.seconds(link):,.2f} ms over {link}" for link in LINKS)
        what = "1 position" if positions == 1 else f"{positions:,} positions"
        lines.append(
            (what, f"{format_bytes(gathers.num_bytes)} in {gathers.count:,} gathers to each rank; {times}")
        )
    lines.append(("", "times are predicted from typical rates of these links, not measured"))
    return lines
