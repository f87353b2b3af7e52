"""Measures the memory of a model's weights from headers alone: nothing is loaded, no weight is read.

    OpenedFiles -> HeaderSource -> read_weights -> MeasuringOps -> ModelWeights of matrices without bytes

The same reader applies the same rules to tensors that have kinds and shapes but no data, so whatever a load
refuses is refused here with the same message. Matrices are measured as the CPU backends hold them. Quantised
safetensors are measured by their headers; the actual bytes may need fewer bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.errors import ModelError
from octavo.kernels.contract import Floats, Matrix, RawTensor, Vector
from octavo.kernels.packed import BLOCKS, kind_held, require_matrix
from octavo.kernels.panels import panel_bytes
from octavo.model.loader import OpenedFiles, check_tables, spec_within
from octavo.model.quantised.source import DequantisedFiles
from octavo.model.reader import WeightReader, meta_tensor
from octavo.model.spec import LayerWeights, ModelSpec, ModelWeights
from octavo.model.split import Split
from octavo.model.weights import read_weights
from octavo.units import format_bytes

# The loss of 8 bits for a model in bf16: SmolLM2-135M, by `octavo bench quality` (docs/performance.md).
INT8_COST = (
    "mean KL divergence from float32 0.0041 instead of 0.0001 "
    "(SmolLM2-135M; `octavo bench quality` measures yours)"
)


@dataclass(frozen=True, slots=True)
class MeasuredMatrix:
    """A matrix without bytes: its kind and size."""

    shape: tuple[int, int]
    kind: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model that is not loaded. The matrices of `weights` have a size in bytes, and no numbers."""

    name: str
    spec: ModelSpec
    weights: ModelWeights
    table_bytes: int  # of rotary positions
    file_bytes: int  # of the tensors
    largest_tensor_bytes: int  # needed in addition while weights load: one tensor at a time

    @property
    def num_bytes(self) -> int:
        """Resident bytes without KV."""
        return self.weights.num_bytes + self.table_bytes

    @property
    def bytes_read_for_a_token(self) -> int:
        """Weights that one token uses: of a mixture its chosen experts only; the embedding only if it is the
        output as well."""
        return self.weights.output.num_bytes + sum(map(self._read_of_layer, self.weights.layers))

    def _read_of_layer(self, layer: LayerWeights) -> int:
        num_bytes = sum(linear.weight.num_bytes for linear in layer.linears)
        if layer.mixture is None or self.spec.routing is None:
            return num_bytes
        experts = num_bytes_of_experts(layer)
        share = self.spec.routing.top_k / max(1, len(layer.mixture.experts))
        return num_bytes - experts + round(experts * share)


def num_bytes_of_experts(layer: LayerWeights) -> int:
    """Bytes of the routed experts; 0 for a layer without."""
    experts = () if layer.mixture is None else layer.mixture.experts
    parts = [linear for expert in experts for linear in (expert.gate, expert.up, expert.down)]
    return sum(linear.weight.num_bytes for linear in parts)


class MeasuringOps:
    """`WeightOps` that make no arrays. `weights`: a mode of `packed.py`. An error that packing a matrix would
    raise becomes one of the `problems`."""

    def __init__(self, weights: str, problems: list[ModelError]) -> None:
        self._weights, self._problems = weights, problems

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """The matrix without bytes."""
        outputs, inputs = raw.shape
        try:
            require_matrix(raw)
        except ModelError as error:
            self._problems.append(error)
            return MeasuredMatrix((outputs, inputs), raw.kind, 0)
        kind = kind_held(raw, self._weights, table)
        return MeasuredMatrix((outputs, inputs), kind, panel_bytes(kind, (outputs, inputs)))

    def vector(self, values: Floats) -> Vector:
        """The zeros themselves."""
        return values


class HeaderSource:
    """A `TensorSource` of a model's files whose tensors have no data: the files are not read."""

    def __init__(self, opened: OpenedFiles) -> None:
        source = opened.source
        self.tensors: Mapping[str, RawTensor]
        if isinstance(source, DequantisedFiles):
            self.tensors = {
                name: _without_data(name, at.kind, at.shape) for name, at in source.stored.items()
            }
        else:
            raws = source.tensors.values()
            self.tensors = {raw.name: _without_data(raw.name, raw.kind, raw.shape) for raw in raws}
        self.num_bytes = source.num_bytes

    def release(self, _raw: RawTensor) -> None:
        """Nothing was read."""


def _without_data(name: str, kind: str, shape: tuple[int, ...]) -> RawTensor:
    # The header's reader has reported or refused an unknown kind; a known one replaces it here.
    return meta_tensor(name, kind if kind in BLOCKS else "F16", shape)


def measure_model(
    opened: OpenedFiles,
    weights: str,
    context_length: int | None = None,
    problems: list[ModelError] | None = None,
    split: Split | None = None,
) -> MeasuredModel:
    """Measure the weights in a mode of `--weights`, or a rank's part of them, with the model's own context or
    a shorter one.

    Raises BadModelFile, UnsupportedModel or ConfigError, as loading would; with a list of `problems`, what is
    wrong with tensors is added there. O(tensors).
    """
    found: list[ModelError] = []
    source, ops = HeaderSource(opened), MeasuringOps(weights, found)
    spec = spec_within(opened.description, context_length, opened.label)
    reader = WeightReader(
        source, opened.label, opened.is_gguf, opened.description, ops, problems=found, split=split
    )
    read = read_weights(reader)
    if problems is not None:
        problems += found
    elif found:
        raise found[0]
    num_ranks = 1 if split is None else split.num_ranks
    tables = check_tables(opened.path, spec, read.num_bytes * num_ranks)
    largest = max((raw.data.size for raw in source.tensors.values()), default=0)
    return MeasuredModel(opened.path.name, spec, read, tables, source.num_bytes, largest)


def int8_in_words(opened: OpenedFiles, weights: str, context_length: int | None, bytes_per_s: float) -> str:
    """The effect of `--weights int8` on files whose weights are held in bf16: bytes, speed and quality.

    "" if it saves nothing. O(tensors).
    """
    held, in_int8 = (measure_model(opened, each, context_length) for each in (weights, "int8"))
    if in_int8.num_bytes >= held.num_bytes:
        return ""
    before, after = (bytes_per_s / max(1, each.bytes_read_for_a_token) for each in (held, in_int8))
    return (
        f"--weights int8: weights {format_bytes(in_int8.weights.num_bytes)} instead of "
        f"{format_bytes(held.weights.num_bytes)}, at most {after:,.1f} tokens/s for one user instead of "
        f"{before:,.1f}; {INT8_COST}"
    )
