"""File layouts of quantised matrices: the tensors of a matrix, their shapes, and rows of codes.

    gptq     qweight (inputs * bits / 32, outputs)    scales, qzeros (groups, outputs), zeros in words
    awq      qweight (inputs, outputs / 8)            the same, with the eight outputs of a word interleaved
    packed   weight_packed (outputs, inputs * bits / 32)    weight_scale (outputs, groups)
    int8     weight (outputs, inputs)                       weight_scale (outputs, groups)
    fp8      weight (outputs, inputs)                       scales of the tensor, rows, groups, or blocks
    mxfp4    X_blocks (experts, outputs, groups, 16)        X_scales (experts, outputs, groups)

`find_*` check every shape from headers, before anything is read; the matrix can then be decoded, some rows at
a time. Sources: the packing code of AutoGPTQ, AutoAWQ and compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from octavo.errors import BadModelFile
from octavo.kernels.contract import Bytes, Floats, RawTensor
from octavo.kernels.packed import BLOCKS, FLOAT_KINDS, QUANT_GROUP, unpack_vector
from octavo.model.files.safetensors_file import SafetensorsFiles
from octavo.model.quantised.blocks import (
    NotAHalf,
    Zeros,
    bf16_rows,
    float8_values,
    q4_0_rows,
    q4_1_rows,
    q8_0_rows,
    requantised_rows,
    unpacked,
    values_of,
)
from octavo.model.quantised.settings import OUTCOMES, Blocks, Outcome, Quantisation

SLAB_ELEMENTS = 1 << 18  # decoded at a time: temporaries stay in the CPU's caches
WORD_BITS = 32
Number = TypeVar("Number", np.float32, np.int16)
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # code k of a word is the output of this place among eight


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """One or more matrices (outputs, inputs) with checked parts. `decode` reads them."""

    name: str  # of the weight that they encode
    shape: tuple[int, ...]
    parts: tuple[RawTensor, ...]
    expected: Outcome  # from headers alone; the actual bytes may allow a better one
    decode: Callable[[], RawTensor] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Codes:
    """Codes of integers with their scales: `rows(a, b)` are codes (b - a, inputs) of outputs [a, b)."""

    name: str
    shape: tuple[int, int]
    bits: int
    rows: Callable[[int, int], Bytes]
    scales: Floats  # (outputs, groups)
    zeros: Zeros  # (outputs, groups)
    group_of: npt.NDArray[np.intp]  # (inputs,)


class Parts:
    """The tensors of files by name; a tensor of another kind or shape than required is an error."""

    def __init__(self, files: SafetensorsFiles, label: str) -> None:
        self._files = files
        self.label = label
        self.all: Mapping[str, RawTensor] = {**files.tensors, **files.codes}

    def bad(self, name: str, words: str) -> BadModelFile:
        """The error for a tensor."""
        return BadModelFile(f"{self.label}: tensor {name!r} {words}")

    def find(self, name: str) -> RawTensor | None:
        """The tensor, if there is one."""
        return self.all.get(name)

    def take(self, name: str, kinds: frozenset[str], shape: tuple[int, ...] | None = None) -> RawTensor:
        """The tensor. Raises BadModelFile."""
        raw = self.all.get(name)
        if raw is None:
            raise BadModelFile(f"{self.label} has no tensor {name!r}, which quantised weights need")
        if raw.kind not in kinds:
            raise self.bad(name, f"is stored as {raw.kind}; allowed: {', '.join(sorted(kinds))}")
        if shape is not None and raw.shape != shape:
            raise self.bad(name, f"has shape {raw.shape}; expected {shape}")
        if not raw.shape or any(size < 1 for size in raw.shape):
            raise self.bad(name, f"has shape {raw.shape}; every size must be at least 1")
        return raw

    def matrix(self, name: str, kinds: frozenset[str]) -> tuple[int, int]:
        """The shape of a tensor that must have two dimensions."""
        shape = self.take(name, kinds).shape
        if len(shape) != 2:
            raise self.bad(name, f"has shape {shape}; two dimensions are needed")
        return shape[0], shape[1]


_INT32, _INT8, _BYTES = frozenset({"I32"}), frozenset({"I8"}), frozenset({"U8"})
_FLOAT8 = frozenset({"F8_E4M3", "F8_E5M2"})


# -- GPTQ and AWQ --------------------------------------------------------------------------------------


def find_gptq(parts: Parts, module: str, settings: Quantisation) -> QuantisedMatrix:
    """Find matrices of qweight, scales, qzeros and, if present, g_idx."""
    name, bits = f"{module}.qweight", settings.bits
    words, outputs = parts.matrix(name, _INT32)
    order = parts.find(f"{module}.g_idx")
    inputs = words * WORD_BITS // bits
    if order is not None:
        parts.take(order.name, _INT32, (inputs,))
    groups = _num_groups(parts, name, inputs, settings.group_size)
    scales = parts.take(f"{module}.scales", FLOAT_KINDS, (groups, outputs))
    if outputs * bits % WORD_BITS:
        raise parts.bad(name, f"has {outputs:,} outputs; allowed: a multiple of {WORD_BITS // bits}")
    zeros = parts.take(f"{module}.qzeros", _INT32, (groups, outputs * bits // WORD_BITS))
    weight = parts.take(name, _INT32)

    def decode() -> RawTensor:
        packed, mask = _words(weight), (1 << bits) - 1
        origin = (unpacked(_words(zeros), bits) + np.uint8(settings.zero_offset)) & np.uint8(mask)
        group_of = _regular(inputs, groups) if order is None else _order(parts, order, groups)
        return _decode(
            parts,
            _Codes(
                f"{module}.weight",
                (outputs, inputs),
                bits,
                lambda first, last: unpacked(packed[:, first:last].T, bits),
                np.ascontiguousarray(unpack_vector(scales).T),
                np.ascontiguousarray(origin.T).astype(np.int16),
                group_of,
            ),
        )

    used = (weight, scales, zeros) + (() if order is None else (order,))
    ordered = settings.ordered and order is not None
    expected = _outcome(bits, (inputs, groups), is_symmetric=settings.symmetric, is_regular=not ordered)
    return QuantisedMatrix(f"{module}.weight", (outputs, inputs), used, expected, decode)


def find_awq(parts: Parts, module: str, settings: Quantisation) -> QuantisedMatrix:
    """From qweight, scales and qzeros, in AutoAWQ's "gemm" layout."""
    name = f"{module}.qweight"
    inputs, words = parts.matrix(name, _INT32)
    outputs = words * WORD_BITS // settings.bits
    groups = _num_groups(parts, name, inputs, settings.group_size)
    scales = parts.take(f"{module}.scales", FLOAT_KINDS, (groups, outputs))
    zeros = parts.take(f"{module}.qzeros", _INT32, (groups, words))
    weight = parts.take(name, _INT32)

    def decode() -> RawTensor:
        packed = _words(weight)
        return _decode(
            parts,
            _Codes(
                f"{module}.weight",
                (outputs, inputs),
                settings.bits,
                lambda first, last: _awq_rows(packed[:, first // 8 : last // 8]),
                np.ascontiguousarray(unpack_vector(scales).T),
                _awq_rows(_words(zeros)).astype(np.int16),
                _regular(inputs, groups),
            ),
        )

    expected = _outcome(settings.bits, (inputs, groups), is_symmetric=False)
    return QuantisedMatrix(f"{module}.weight", (outputs, inputs), (weight, scales, zeros), expected, decode)


def _awq_rows(words: npt.NDArray[np.int32]) -> Bytes:
    """(N, outputs / 8) -> (outputs, N)."""
    turned = np.ascontiguousarray(words.T)
    codes = np.empty((turned.shape[0], 8, turned.shape[1]), np.uint8)
    for k, place in enumerate(_AWQ_ORDER):
        codes[:, place] = turned >> 4 * k & 15
    return codes.reshape(-1, turned.shape[1])


# -- compressed-tensors --------------------------------------------------------------------------------


def find_packed(parts: Parts, module: str) -> QuantisedMatrix:
    """From weight_packed, weight_scale, weight_shape, and zero points and an order if present."""
    name = f"{module}.weight_packed"
    outputs, words = parts.matrix(name, _INT32)
    stated = parts.take(f"{module}.weight_shape", frozenset({"I64", "I32"}), (2,))
    rows_stated, inputs = stated.data.view(np.int64 if stated.kind == "I64" else np.int32).tolist()
    bits = next((bits for bits in (4, 8) if inputs > 0 and -(-inputs * bits // WORD_BITS) == words), None)
    if rows_stated != outputs or bits is None:
        words_of = f"has shape {(outputs, words)} for a matrix {(rows_stated, inputs)}"
        raise parts.bad(name, f"{words_of}; allowed: 4 or 8 bits a weight")
    weight = parts.take(name, _INT32)
    packed = _words(weight)

    def rows(first: int, last: int) -> Bytes:
        return np.ascontiguousarray(unpacked(packed[first:last], bits)[:, :inputs])

    return _found_by_rows(parts, weight, (outputs, inputs), bits, rows)


def find_int8(parts: Parts, module: str) -> QuantisedMatrix:
    """From weight and weight_scale, and weight_zero_point if present."""
    name = f"{module}.weight"
    outputs, inputs = parts.matrix(name, _INT8)
    weight = parts.take(name, _INT8)
    stored = weight.data.reshape(outputs, inputs)
    return _found_by_rows(
        parts, weight, (outputs, inputs), 8, lambda first, last: stored[first:last] ^ np.uint8(0x80)
    )


def _found_by_rows(
    parts: Parts, weight: RawTensor, shape: tuple[int, int], bits: int, rows: Callable[[int, int], Bytes]
) -> QuantisedMatrix:
    """The common part of packed and int8: scales and zero points are stored by rows."""
    module, (outputs, inputs) = weight.name.rpartition(".")[0], shape
    scales = _scales_of(parts, f"{module}.weight_scale", shape)
    groups = scales.shape[1] if len(scales.shape) == 2 else 1
    if inputs % groups:
        raise parts.bad(
            scales.name, f"has {groups:,} groups for {inputs:,} inputs; allowed: a divisor of them"
        )
    zeros, order = parts.find(f"{module}.weight_zero_point"), parts.find(f"{module}.weight_g_idx")
    if zeros is not None and zeros.kind == "I32":
        parts.take(zeros.name, _INT32, (-(-outputs * bits // WORD_BITS), groups))
    elif zeros is not None:
        parts.take(zeros.name, _INT8, scales.shape)
    if order is not None:
        parts.take(order.name, _INT32, (inputs,))

    def decode() -> RawTensor:
        codes = _Codes(
            f"{module}.weight",
            shape,
            bits,
            rows,
            _by_output(unpack_vector(scales), outputs),
            _zeros(zeros, bits, (outputs, groups)),
            _regular(inputs, groups) if order is None else _order(parts, order, groups),
        )
        return _decode(parts, codes)

    used = (weight, scales, *(raw for raw in (zeros, order) if raw is not None))
    expected = _outcome(bits, (inputs, groups), is_symmetric=zeros is None, is_regular=order is None)
    return QuantisedMatrix(f"{module}.weight", shape, used, expected, decode)


def _zeros(raw: RawTensor | None, bits: int, shape: tuple[int, int]) -> Zeros:
    """(outputs, groups): zero points of unsigned codes; the file's are signed, plain or packed in words."""
    middle = 1 << bits - 1
    if raw is None:
        return np.full(shape, middle, np.int16)
    if raw.kind == "I32":
        return np.ascontiguousarray(unpacked(_words(raw).T, bits)[:, : shape[0]].T).astype(np.int16)
    signed = raw.data.view(np.int8).astype(np.int16).reshape(raw.shape)
    return _by_output(signed, shape[0]) + np.int16(middle)


# -- floats of 8 bits ----------------------------------------------------------------------------------


def find_float8(parts: Parts, module: str, blocks: Blocks | None) -> QuantisedMatrix:
    """From weight and weight_scale or weight_scale_inv; either one is a factor of the weights."""
    name = f"{module}.weight"
    shape = parts.matrix(name, _FLOAT8)
    weight = parts.take(name, _FLOAT8)
    inverse = parts.find(f"{module}.weight_scale_inv")
    scale_name = f"{module}.weight_scale" if inverse is None else inverse.name
    in_blocks: tuple[int, int] | None = None
    if blocks is not None:
        in_blocks = -(-shape[0] // blocks.rows), -(-shape[1] // blocks.inputs)
    scales = _scales_of(parts, scale_name, shape, in_blocks)
    is_in_blocks = blocks is not None and scales.shape == in_blocks
    if not is_in_blocks and len(scales.shape) == 2 and shape[1] % scales.shape[1]:
        groups = f"has {scales.shape[1]:,} groups for {shape[1]:,} inputs"
        raise parts.bad(scale_name, f"{groups}; allowed: a divisor of them")

    def decode() -> RawTensor:
        values, table = unpack_vector(scales), float8_values(weight.kind)
        if not is_in_blocks:
            values = _by_output(values, shape[0])
        rows_of = blocks.rows if is_in_blocks and blocks is not None else 1
        width = blocks.inputs if is_in_blocks and blocks is not None else shape[1] // values.shape[1]
        stored = weight.data.reshape(shape)

        def rows(first: int, last: int) -> Bytes:
            wide = np.repeat(values[np.arange(first, last) // rows_of], width, axis=1)[:, : shape[1]]
            wide *= table[stored[first:last]]
            return bf16_rows(wide)

        data = _in_slabs(shape, 2 * shape[1], rows)
        return RawTensor(name, "BF16", shape, data)

    return QuantisedMatrix(name, shape, (weight, scales), OUTCOMES["fp8"], decode)


# -- floats of 4 bits ----------------------------------------------------------------------------------


def find_mxfp4(parts: Parts, name: str) -> QuantisedMatrix:
    """From NAME_blocks and NAME_scales: the matrices of all experts, (experts, outputs, inputs)."""
    blocks = parts.take(f"{name}_blocks", _BYTES)
    if len(blocks.shape) != 4 or blocks.shape[-1] * 2 != QUANT_GROUP:
        raise parts.bad(blocks.name, f"has shape {blocks.shape}; expected (experts, outputs, groups, 16)")
    scales = parts.take(f"{name}_scales", _BYTES, blocks.shape[:-1])
    experts, outputs, groups = scales.shape
    shape = (experts, outputs, groups * QUANT_GROUP)

    def decode() -> RawTensor:
        stored, exponents = blocks.data.reshape(experts, -1, 16), scales.data.reshape(experts, -1)
        out = np.empty((*exponents.shape, BLOCKS["MXFP4"].num_bytes), np.uint8)
        out[..., 0] = exponents
        for expert in range(experts):  # one at a time: temporaries stay small
            out[expert, :, 1:] = _halves_together(stored[expert])
        return RawTensor(name, "MXFP4", shape, out.reshape(-1))

    return QuantisedMatrix(name, shape, (blocks, scales), OUTCOMES["mxfp4"], decode)


def _halves_together(codes: Bytes) -> Bytes:
    """(N, 16) bytes of codes 2i and 2i + 1, the lower first, to bytes of codes i and i + 16."""
    each = np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1, QUANT_GROUP)
    joined: Bytes = each[:, :16] | each[:, 16:] << 4
    return joined


# -- what they share -----------------------------------------------------------------------------------


def _decode(parts: Parts, codes: _Codes) -> RawTensor:
    """The matrix in the kind with the least loss among those with no more bits."""
    inputs, middle = codes.shape[1], 1 << codes.bits - 1
    is_symmetric = bool((codes.zeros == middle).all())
    is_regular = np.array_equal(codes.group_of, _regular(inputs, codes.scales.shape[1]))
    shape = inputs, codes.scales.shape[1]
    outcome = _outcome(codes.bits, shape, is_symmetric=is_symmetric, is_regular=is_regular)

    def rows(first: int, last: int) -> Bytes:
        found, scales, zeros = codes.rows(first, last), codes.scales[first:last], codes.zeros[first:last]
        if outcome is OUTCOMES["four"]:
            return q4_0_rows(found, scales)
        if outcome is OUTCOMES["four-zeros"]:
            return q4_1_rows(found, scales, zeros)
        if outcome is OUTCOMES["eight"]:
            return q8_0_rows(found, scales)
        values = values_of(found, scales, zeros, codes.group_of)
        return bf16_rows(values) if outcome is OUTCOMES["narrow"] else requantised_rows(values)

    block = BLOCKS[outcome.kind]
    try:
        data = _in_slabs(codes.shape, inputs // block.size * block.num_bytes, rows)
    except NotAHalf:
        raise parts.bad(codes.name, "has scales that a half cannot hold (65,504 at most)") from None
    return RawTensor(codes.name, outcome.kind, codes.shape, data)


def _in_slabs(shape: tuple[int, int], row_bytes: int, rows: Callable[[int, int], Bytes]) -> Bytes:
    """All rows, concatenated and computed in slabs."""
    outputs, inputs = shape
    step = max(1, SLAB_ELEMENTS // inputs // 8) * 8  # whole words of AWQ
    data = np.empty((outputs, row_bytes), np.uint8)
    for first in range(0, outputs, step):
        last = min(first + step, outputs)
        data[first:last] = rows(first, last).reshape(last - first, row_bytes)
    return data.reshape(-1)


def _outcome(bits: int, shape: tuple[int, int], *, is_symmetric: bool, is_regular: bool = True) -> Outcome:
    """The outcome for a matrix of that shape."""
    inputs, groups = shape
    if inputs % QUANT_GROUP:
        return OUTCOMES["narrow"]
    if not is_regular or inputs % groups or inputs // groups % QUANT_GROUP:
        return OUTCOMES["ordered"]
    name = "four" if bits == 4 else "eight"
    return OUTCOMES[name if is_symmetric else f"{name}-zeros"]


def _num_groups(parts: Parts, name: str, inputs: int, size: int | None) -> int:
    """The number of groups of a row. Only a single group may be smaller than the group size."""
    if size is None or size >= inputs:
        return 1
    if inputs % size:
        raise parts.bad(name, f"has {inputs:,} inputs in groups of {size:,}; allowed: a divisor of them")
    return inputs // size


def _regular(inputs: int, groups: int) -> npt.NDArray[np.intp]:
    """The group of each input, for contiguous groups."""
    return np.arange(inputs, dtype=np.intp) // -(-inputs // groups)


def _order(parts: Parts, raw: RawTensor, groups: int) -> npt.NDArray[np.intp]:
    """The group of each input, from the file. Raises BadModelFile for a group that does not exist."""
    order = _words(raw)
    if order.min() < 0 or order.max() >= groups:
        raise parts.bad(raw.name, f"names groups {order.min()} to {order.max()}; allowed: 0 to {groups - 1}")
    return order.astype(np.intp)


def _scales_of(
    parts: Parts, name: str, shape: tuple[int, int], in_blocks: tuple[int, int] | None = None
) -> RawTensor:
    """Scales of the tensor, of rows, of groups of each row, or of blocks."""
    raw = parts.all.get(name)
    if raw is not None and raw.shape == () and raw.kind in FLOAT_KINDS:
        return raw
    raw = parts.take(name, FLOAT_KINDS)
    if raw.shape in ((1,), (shape[0],), in_blocks):
        return raw
    if len(raw.shape) == 2 and raw.shape[0] in (1, shape[0]) and raw.shape[1] <= shape[1]:
        return raw
    allowed = f"1, {(shape[0], 1)}, {(shape[0], 'groups')}" + (f" or {in_blocks}" if in_blocks else "")
    raise parts.bad(name, f"has shape {raw.shape} for a matrix {shape}; allowed: {allowed}")


def _by_output(values: npt.NDArray[Number], outputs: int) -> npt.NDArray[Number]:
    """Broadcast values of the tensor, of rows (outputs,) or of groups to (outputs, groups)."""
    if values.ndim < 2:
        values = values.reshape(-1, 1)
    return np.ascontiguousarray(np.broadcast_to(values, (outputs, values.shape[1])))


def _words(raw: RawTensor) -> npt.NDArray[np.int32]:
    """The tensor as the integers that it is."""
    # They may be unaligned in the file; NumPy needs no alignment here.
    return raw.data.view(np.int32).reshape(raw.shape)
