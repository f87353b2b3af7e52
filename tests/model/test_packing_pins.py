"""Panels, and the matrices that families ask for, are what they were when `PACKING_VERSION` was last raised.

A packed copy from before a change must not be taken for one from after it, and nothing but that number tells
them apart.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from tests.blocks import QUANTISED, floats_tensor, random_tensor
from tests.model.model_bench import make_model, save_model

from octavo.kernels.contract import Floats, Matrix, RawTensor, Vector
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.panels import panels_of
from octavo.model.loader import open_files
from octavo.model.packed_cache import PACKING_VERSION
from octavo.model.reader import WeightReader
from octavo.model.weights import read_weights

pytestmark = pytest.mark.full

PINNED_AT = 2
PANELS = {
    "F32": "5837f1b04482",
    "BF16": "0d3f19c3ec7e",
    "Q8_0": "95f899db5720",
    "Q4_0": "44bd5c2723ae",
    "Q4_1": "744f7d77c953",
    "Q5_0": "7a34168bbfeb",
    "Q5_1": "37a53690639c",
    "IQ4_NL": "44bd5c2723ae",
    "MXFP4": "23fc68820445",
    "Q2_K": "29309885dd94",
    "Q3_K": "9e3f24901f9c",
    "Q4_K": "6377e08055e0",
    "Q5_K": "fcc9a559d63b",
    "Q6_K": "4de43458f254",
    "IQ4_XS": "d7a725a4885b",
}
ASKED = {
    "llama": "6f4eb7a1b8e8",
    "gemma2": "8fa2f7984e37",
    "gpt2": "e2a26f53db13",
    "phi3": "f8b58f78bd6a",
    "glm4": "8721d8f718ee",
    "gpt_neox": "4606d88118e7",
    "qwen3_moe": "0895f39b5c8e",
    "gpt_oss-window-8": "c44d72b9b10c",
}
CHANGED = "changed: raise PACKING_VERSION in packed_cache.py, and pin {} here with PINNED_AT"


def short(*parts: bytes) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=6).hexdigest()


def panels_for(kind: str) -> bytes:
    """Of a matrix with rows that fill no whole panel."""
    rng = np.random.default_rng(7)
    if kind in QUANTISED:
        return panels_of(NativeOps("auto").matrix(random_tensor(kind, 40, 256, rng))).tobytes()
    values = rng.integers(-1000, 1000, (40, 256)).astype(np.float32) / 512
    return panels_of(NativeOps(kind.lower()).matrix(floats_tensor(values))).tobytes()


class Asked:
    """`WeightOps` that note which matrices are asked for, in which order, with which rows."""

    def __init__(self) -> None:
        self.notes: list[bytes] = []
        self._ops = NativeOps("f32")

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        self.notes += [repr((raw.name, raw.kind, raw.shape, table)).encode(), raw.data.tobytes()]
        return self._ops.matrix(raw, table)

    def vector(self, values: Floats) -> Vector:
        return self._ops.vector(values)


def test_the_version_is_the_one_that_was_pinned():
    assert PACKING_VERSION == PINNED_AT, "pin what panels are now, in this file"


def test_every_kind_that_is_held_is_pinned():
    assert set(PANELS) == {"F32", "BF16", *QUANTISED}


@pytest.mark.parametrize("kind", PANELS)
def test_panels_are_those_of_the_version(kind):
    digest = short(panels_for(kind))
    assert PANELS[kind] == digest, f"panels of {kind} have " + CHANGED.format(digest)


@pytest.mark.parametrize("name", ASKED)
def test_families_ask_for_the_matrices_of_the_version(name, tmp_path):
    theirs = make_model(name)
    with torch.no_grad():
        for parameter in theirs.parameters():
            count = parameter.numel()
            parameter.copy_(torch.arange(count).reshape(parameter.shape) % 8191 / 8192)
    opened, ops = open_files(save_model(theirs, tmp_path)), Asked()
    read_weights(WeightReader(opened.source, "tiny", False, opened.description, ops))
    digest = short(*ops.notes)
    assert ASKED[name] == digest, f"what {name} asks for has " + CHANGED.format(digest)
