"""Weight matrices that stay integers: GGUF's groups of 32 in panels of 16 outputs, and their product.

    Q8_0, Q4_0, Q5_0          w = d * code
    Q4_1, Q5_1                w = d * code + m
    IQ4_NL, MXFP4             w = d * table[code]
    Q3_K, Q6_K                w = d * scale * code            a scale for each 16
    Q2_K, Q4_K, Q5_K          w = d * scale * code - dmin * minimum
    IQ4_XS                    w = d * scale * table[code]

A matrix takes as many bytes as in its file, up to 6 % more if scales become whole bytes;
`csrc/kernels/kinds.hpp` draws a panel, `integer_reference.py` specifies the product. Activations are
quantised to 8 bits for each token and group of 32 inside the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from octavo import _native
from octavo.kernels.contract import Bytes, Floats, Ints, RawTensor
from octavo.kernels.packed import PANEL_WIDTH, require_matrix, weight_chunks


@dataclass(frozen=True, slots=True)
class IntegerMatrix:
    """A matrix (outputs, inputs) of a quantised kind in integer panels (ceil(outputs / 16), bytes)."""

    shape: tuple[int, int]
    kind: str
    panels: Bytes = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Resident bytes."""
        return self.panels.nbytes


def pack(raw: RawTensor, kind: str | None = None) -> IntegerMatrix:
    """The packed form of a matrix, made directly from the file's bytes.

    `kind` is the file's own by default; any other kind can be converted to Q8_0 and Q4_1, a group at a time,
    without a float32 copy. Raises UnsupportedModel or BadModelFile.
    """
    require_matrix(raw)
    kind = kind or raw.kind
    outputs, inputs = raw.shape
    count, panel_bytes = -(-outputs // PANEL_WIDTH), _native.code_panel_bytes(kind, inputs)
    panels = weight_chunks.take(count * panel_bytes).reshape(count, panel_bytes)
    _native.pack_codes(raw.data, raw.kind, outputs, inputs, kind, panels)
    return IntegerMatrix((outputs, inputs), kind, panels)


def unpack_rows(table: IntegerMatrix, rows: Ints) -> Floats:
    """(T,) -> (T, inputs), de-quantised. Raises IndexError for a row that does not exist."""
    out = np.empty((rows.size, table.shape[1]), np.float32)
    _native.embed_codes(table.panels, table.kind, table.shape[0], rows, out)
    return out


def multiply(x: Floats, weight: IntegerMatrix, bias: Floats | None) -> Floats:
    """(T, inputs) -> (T, outputs): exact integer sums in groups, one chain of fused steps over the groups."""
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    _native.linear_codes(x, weight.panels, weight.kind, bias, out)
    return out
