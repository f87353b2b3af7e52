"""The settings of quantised weights in config.json, and the kind that each layout is read as.

    quantization_config  ->  Quantisation (method, bits, groups, notes)
    OUTCOMES: method, layout  ->  the resulting kind, and the loss of the conversion

Only settings are read here, no tensors. A method, a layout or a number of bits without a row in `OUTCOMES` is
refused by name. A file's settings of activations and of the KV cache are ignored: Octavo's own settings
decide both, with at least as many bits; `notes` say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octavo.errors import UnsupportedModel, shown
from octavo.fields import Fields

KEY = "quantization_config"
GROUP_MAX = 1 << 17
BLOCK_MAX = 1 << 17
_SCALES = "scales are rounded to halves where they are none (of bfloat16 only those below 0.00006)"
_MINIMA = f"{_SCALES}; zero points times scales likewise: 1/128 of a step at most"
_REQUANTISED = "requantised to 8 bits: 1/225 of the largest of 32 weights at most"
_ROUNDED = "products with their scales are rounded to bfloat16: 1/256 of a weight at most"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for a matrix: the kind of `RawTensor` that it is read as, and the loss."""

    layout: str
    kind: str
    loss: str


OUTCOMES: Mapping[str, Outcome] = MappingProxyType(
    {
        "four": Outcome("4 bits, symmetric, groups of a multiple of 32", "Q4_0", _SCALES),
        "four-zeros": Outcome("4 bits, zero points, groups of a multiple of 32", "Q4_1", _MINIMA),
        "eight": Outcome("8 bits, symmetric, groups of a multiple of 32", "Q8_0", _SCALES),
        "eight-zeros": Outcome("8 bits, zero points", "Q8_0", _REQUANTISED),
        "ordered": Outcome("groups in the order of activations, or of other sizes", "Q8_0", _REQUANTISED),
        "narrow": Outcome("rows that are no multiple of 32", "BF16", _ROUNDED),
        "mxfp4": Outcome("floats of 4 bits, a power of two for 32", "MXFP4", "nothing"),
        "fp8": Outcome("floats of 8 bits (e4m3 or e5m2), scales of any kind", "BF16", _ROUNDED),
    }
)
METHODS = ("gptq", "awq", "compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4")
_FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Weights that share a scale: a number of rows, and of inputs in each."""

    rows: int
    inputs: int


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The parsed settings. `group_size` None: a whole row; `blocks` None: by the shape of the scales."""

    method: str
    bits: int = 8  # gptq, awq
    group_size: int | None = None  # gptq, awq
    zero_offset: int = 0  # gptq: 1 if zero points are stored minus one
    symmetric: bool = False  # gptq's setting; its actual zero points decide
    ordered: bool = False  # gptq: groups follow the order of activations
    blocks: Blocks | None = None  # of fp8
    notes: tuple[str, ...] = ()


def read_quantisation(config: Fields) -> Quantisation | None:
    """From config.json; None if it has no such settings. Raises BadModelFile, UnsupportedModel."""
    if not config.has(KEY):
        return None
    settings = config.inner(KEY)
    method = settings.text("quant_method", "")
    if method == "gptq":
        return _gptq(settings)
    if method == "awq":
        return _awq(settings)
    if method == "compressed-tensors":
        return _compressed(settings)
    if method == "mxfp4":
        return Quantisation("mxfp4")
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(settings, method)
    raise UnsupportedModel(
        f"{settings.source}: quant_method is {shown(method)}; allowed: {', '.join(METHODS)}. Take the "
        "model's unquantised weights (--weights q4 quantises them), or a GGUF file of it"
    )


def _gptq(settings: Fields) -> Quantisation:
    form = settings.text("checkpoint_format", "") or settings.text("format", "gptq")
    if settings.flag("is_marlin_format", False):
        form = "marlin"
    if form not in ("gptq", "gptq_v2"):
        raise _refused(settings, "checkpoint_format", form, "gptq, gptq_v2")
    return Quantisation(
        "gptq",
        _bits(settings, "bits", (4, 8)),
        _group_size(settings, "group_size"),
        zero_offset=1 if form == "gptq" else 0,
        symmetric=settings.flag("sym", True),
        ordered=settings.flag("desc_act", False),
    )


def _awq(settings: Fields) -> Quantisation:
    version = settings.text("version", "gemm").lower()
    if version != "gemm":
        raise _refused(settings, "version", version, "gemm")
    if not settings.flag("zero_point", True):
        raise _refused(settings, "zero_point", "false", "true")
    bits, group = ("bits", "group_size") if settings.has("bits") else ("w_bit", "q_group_size")
    return Quantisation("awq", _bits(settings, bits, (4,)), _group_size(settings, group))


def _compressed(settings: Fields) -> Quantisation:
    form = settings.text("format", "")
    if form not in _FORMATS:
        raise _refused(settings, "format", form, ", ".join(_FORMATS))
    if settings.text("quantization_status", "compressed") != "compressed":
        status = settings.text("quantization_status", "")
        raise _refused(settings, "quantization_status", status, "compressed")
    if settings.inner("sparsity_config").text("format", "dense") != "dense":
        raise _refused(settings, "sparsity_config", "a sparse format", "dense")
    if settings.inner("transform_config").values.get("config_groups"):
        raise _refused(settings, "transform_config", "rotations of the model's own", "none")
    notes = _notes(settings, has_activations=False)
    blocks: Blocks | None = None
    groups = settings.inner("config_groups")
    for name in groups.values:
        group = groups.inner(name)
        weights = group.inner("weights")
        kind = weights.text("type", "int")
        if kind not in ("int", "float"):
            raise _refused(weights, "type", kind, "int, float")
        _bits(weights, "num_bits", (4, 8) if kind == "int" else (8,))
        if group.has("input_activations"):
            notes = _notes(settings, has_activations=True)
        if weights.has("block_structure"):
            found = _blocks(weights, "block_structure")
            if blocks not in (None, found):
                raise _refused(weights, "block_structure", "of several sizes", "one size")
            blocks = found
    return Quantisation("compressed-tensors", blocks=blocks, notes=notes)


def _fp8(settings: Fields, method: str) -> Quantisation:
    if settings.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn", "e5m2", "float8_e5m2"):
        raise _refused(settings, "fmt", settings.text("fmt", ""), "e4m3, e5m2")
    if settings.text("scale_fmt", "float") not in ("float", "ue8m0"):
        raise _refused(settings, "scale_fmt", settings.text("scale_fmt", ""), "float, ue8m0")
    if settings.text("expert_dtype", "fp8") != "fp8":
        raise _refused(settings, "expert_dtype", settings.text("expert_dtype", ""), "fp8")
    blocks = _blocks(settings, "weight_block_size") if settings.has("weight_block_size") else None
    return Quantisation(method, blocks=blocks, notes=_notes(settings, has_activations=True))


def _notes(settings: Fields, *, has_activations: bool) -> tuple[str, ...]:
    notes = []
    if has_activations:
        notes.append("its scales of activations are not used: activations keep more bits here")
    if settings.has("kv_cache_scheme"):
        notes.append("its scales of K and V are not used: --kv says how they are held")
    return tuple(notes)


def _bits(settings: Fields, key: str, allowed: tuple[int, ...]) -> int:
    bits = settings.integer(key, 1, 64)
    if bits not in allowed:
        raise _refused(settings, key, bits, " or ".join(map(str, allowed)))
    return bits


def _group_size(settings: Fields, key: str) -> int | None:
    size = settings.integer(key, -1, GROUP_MAX, 128)
    if size == 0:
        raise settings.bad(key, f"-1 (whole rows), or 1 to {GROUP_MAX:,}")
    return None if size < 0 else size


def _blocks(settings: Fields, key: str) -> Blocks:
    sizes = settings.values.get(key)
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise settings.bad(key, "two sizes, such as [128, 128]")
    rows, inputs = sizes
    if not all(type(size) is int and 1 <= size <= BLOCK_MAX for size in (rows, inputs)):
        raise settings.bad(key, f"two sizes from 1 to {BLOCK_MAX:,}")
    return Blocks(rows, inputs)


def _refused(settings: Fields, key: str, given: object, allowed: str) -> UnsupportedModel:
    return UnsupportedModel(f"{settings.source}: {key} is {shown(given)}; allowed: {allowed}")
