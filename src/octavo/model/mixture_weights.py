"""Reads a layer's experts, in any form that a file may have.

    apart     safetensors of Mixtral, Qwen3-MoE, OLMoE   a gate, an up and a down for each expert
    stacked   safetensors of Llama 4, gpt-oss            (X, inputs, outputs), gates and ups in one tensor
    stacked   GGUF                                       (X, outputs, inputs), gates, ups and downs

A stacked tensor is sliced, as bytes, and converted one expert at a time: of each matrix the rank's rows
(`split.py`). Alternating gates and ups are separated. This module knows tensors by role alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from octavo.kernels.contract import Expert, Floats, Linear, RawTensor
from octavo.model.families.row import MixtureFacts
from octavo.model.reader import WeightReader, slice_rows, take_rows, transpose
from octavo.model.spec import Mixture
from octavo.model.split import Split

_PARTS = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class _MixtureSizes:
    """X experts, each (inner, hidden) twice and (hidden, inner), of which a rank has some rows."""

    experts: int
    inner: int
    hidden: int
    split: Split

    def shape(self, part: str) -> tuple[int, int]:
        """(outputs, inputs) of a gate, up or down."""
        return (self.hidden, self.inner) if part == "down" else (self.inner, self.hidden)

    def own(self, part: str) -> range:
        """The rows of a part that this rank reads."""
        return self.split.rows(self.shape(part)[0])


def read_mixture(reader: WeightReader, layer: int) -> Mixture:
    """The router and all experts. Raises BadModelFile if a tensor is missing or has another shape."""
    spec, facts = reader.description.spec, reader.description.family.mixture
    assert facts is not None, "the row has a mixture"
    sizes = _MixtureSizes(spec.num_experts, spec.expert_ffn_size, spec.hidden_size, reader.split)
    router = reader.linear("router", layer, (spec.num_experts, spec.hidden_size), table=True)
    if reader.is_gguf:
        return Mixture(router, tuple(_stacked_by_part(reader, facts, sizes, layer)))
    if facts.stored == "apart":
        return Mixture(router, tuple(_apart(reader, sizes, layer)))
    return Mixture(router, tuple(_stacked_in_two(reader, facts, sizes, layer)))


def _apart(reader: WeightReader, sizes: _MixtureSizes, layer: int) -> Iterator[Expert]:
    for expert in range(sizes.experts):
        parts = {}
        for part in _PARTS:
            name = reader.name(f"expert_{part}", layer).format(expert)
            raw = reader.take(name + ".weight", sizes.shape(part))
            parts[part] = _linear(reader, raw, None, sizes.own(part))
            reader.release(raw)
        yield Expert(**parts)


def _stacked_by_part(
    reader: WeightReader, facts: MixtureFacts, sizes: _MixtureSizes, layer: int
) -> Iterator[Expert]:
    linears: dict[str, list[Linear]] = {}
    for part in _PARTS:
        name, shape = reader.name(f"experts_{part}", layer), sizes.shape(part)
        whole = reader.take(name + ".weight", (sizes.experts, *shape))
        biases = reader.floats(name + ".bias", (sizes.experts, shape[0])) if facts.biased else None
        linears[part] = [
            _linear(reader, _expert_of(whole, expert), _row_of(biases, expert), sizes.own(part))
            for expert in range(sizes.experts)
        ]
        reader.release(whole)
    for gate, up, down in zip(*(linears[part] for part in _PARTS), strict=True):
        yield Expert(gate, up, down)


def _stacked_in_two(
    reader: WeightReader, facts: MixtureFacts, sizes: _MixtureSizes, layer: int
) -> Iterator[Expert]:
    """Gates and ups in one tensor: gates before ups, or alternating."""
    order = np.arange(2 * sizes.inner).reshape(-1, 2).T.reshape(-1) if facts.alternating else None
    pairs: list[tuple[Linear, Linear]] = []
    for part in _parts_of(reader, facts, sizes, "experts_gate_up", layer):
        raw, bias = part.raw, part.bias
        if order is not None:
            raw, bias = take_rows(raw, order), None if bias is None else bias[order]
        own = sizes.own("gate")
        gate, up = (
            _linear(reader, raw, bias, range(first + own.start, first + own.stop))
            for first in (0, sizes.inner)
        )
        pairs.append((gate, up))
    downs = _parts_of(reader, facts, sizes, "experts_down", layer)
    for (gate, up), part in zip(pairs, downs, strict=True):
        yield Expert(gate, up, _linear(reader, part.raw, part.bias, sizes.own("down")))


@dataclass(frozen=True, slots=True)
class _Part:
    """One expert's part of a stacked tensor, (outputs, inputs), and of its biases."""

    raw: RawTensor
    bias: Floats | None


def _parts_of(
    reader: WeightReader, facts: MixtureFacts, sizes: _MixtureSizes, role: str, layer: int
) -> Iterator[_Part]:
    """Expert after expert. Floats are (X, inputs, outputs) and get transposed; codes (X, outputs, inputs)."""
    name = reader.name(role, layer)
    outputs, inputs = (
        (sizes.hidden, sizes.inner) if role == "experts_down" else (2 * sizes.inner, sizes.hidden)
    )
    is_coded = reader.is_coded(name)
    whole = reader.take(name, (sizes.experts, *((outputs, inputs) if is_coded else (inputs, outputs))))
    biases = reader.floats(name + "_bias", (sizes.experts, outputs)) if facts.biased else None
    for expert in range(sizes.experts):
        raw = _expert_of(whole, expert)
        yield _Part(raw if is_coded else transpose(raw), _row_of(biases, expert))
    reader.release(whole)


def _expert_of(whole: RawTensor, expert: int) -> RawTensor:
    """One expert's matrix of (X, a, b), as a view."""
    return dataclasses.replace(slice_rows(whole, expert, expert + 1), shape=whole.shape[1:])


def _row_of(biases: Floats | None, expert: int) -> Floats | None:
    return None if biases is None else biases[expert]


def _linear(reader: WeightReader, raw: RawTensor, bias: Floats | None, own: range) -> Linear:
    """The projection of these rows."""
    part = raw if len(own) == raw.shape[0] else slice_rows(raw, own.start, own.stop)
    matrix = reader.converted(part)
    if bias is None:
        return Linear(matrix)
    return Linear(matrix, reader.vector_of(np.ascontiguousarray(bias[own.start : own.stop])))
