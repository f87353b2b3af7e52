"""Products of few rows: GB/s of weights, compared with torch.matmul (cuBLAS) in interleaved rounds; 8B's
shapes.

    python bench/cuda/products.py             with the engine's tiles
    python bench/cuda/products.py --sweep     with other tiles too

Each call uses the next of several copies of the weights, which together are larger than any cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from measuring import Probe, begin, copy_rate, medians, parser
from shapes import LLAMA_8B, QWEN3_06B, TINY, Shape, random_matrix
from torch import Tensor

from octavo.device.triton.linear import Tiling, linear, tiling_of

ROWS = (1, 2, 4, 8, 16, 32, 64)
SWEPT = (1, 16, 32, 64)
COLD = 256e6  # bytes of all copies together, at least


def bodies_of(
    x: Tensor, weights: list[Tensor], out: Tensor, tilings: dict[str, Tiling | None]
) -> dict[str, Callable[[], object]]:
    """The bodies; each uses all copies of the weights once."""

    def octavo(tiling: Tiling | None) -> Callable[[], object]:
        def body() -> None:
            for weight in weights:
                linear(out, x, weight, tiling=tiling)

        return body

    def cublas() -> None:
        for weight in weights:
            torch.mm(x, weight.T, out=out)

    return {"cublas": cublas, **{name: octavo(tiling) for name, tiling in tilings.items()}}


def swept(rows: int) -> dict[str, Tiling | None]:
    """Other tiles that may be faster."""
    made: dict[str, Tiling | None] = {}
    columns = 16 if rows <= 16 else 32 if rows <= 32 else 64
    for outputs, warps, stages, inputs in itertools.product((16, 32, 64, 128), (2, 4, 8), (4, 6), (64, 128)):
        if outputs * warps <= 512 and outputs // 16 * 2 >= warps // 2:
            tiling = Tiling(columns, outputs, True, warps, stages, inputs)
            made[name_of(tiling)] = tiling
    return made


def name_of(tiling: Tiling) -> str:
    """The name of a tiling by its sizes."""
    return f"{tiling.rows}x{tiling.outputs} w{tiling.num_warps} s{tiling.num_stages} k{tiling.block_k}"


def measure(probe: Probe, shape: Shape, name: str, rows: int, rate: float, *, sweep: bool) -> None:
    """One product at one number of rows."""
    outputs, inputs = (shape.vocab, shape.hidden) if name == "vocabulary" else shape.products[name]
    dtype = probe.dtypes[0]
    num_bytes = outputs * inputs * dtype.itemsize
    copies = 1 if probe.tiny else max(2, -(-int(COLD) // num_bytes))
    weights = [random_matrix(outputs, inputs, dtype, probe.device, seed) for seed in range(copies)]
    x = random_matrix(rows, inputs, dtype, probe.device, 99) * inputs**0.5
    out = torch.empty((rows, outputs), dtype=dtype, device=probe.device)
    tilings: dict[str, Tiling | None] = {"octavo": None}
    for label, tiling in (swept(rows) if sweep else {}).items():
        try:  # fails here for too much shared memory
            linear(out, x, weights[0], tiling=tiling)
            probe.wait()
            tilings[label] = tiling
        except Exception as error:  # noqa: BLE001 - printed
            probe.note(f"{label}: {str(error)[:80]}")
    times = medians(probe, bodies_of(x, weights, out, tilings), rounds=5 if sweep else 9)
    seconds = {label: each / copies for label, each in times.items()}
    best = min((label for label in seconds if label != "cublas"), key=lambda label: seconds[label])
    probe.emit(
        "product",
        shape=shape.name,
        product=name,
        outputs=outputs,
        inputs=inputs,
        rows=rows,
        tiles=name_of(tiling_of(x, weights[0])),
        microseconds=seconds["octavo"] * 1e6,
        cublas_microseconds=seconds["cublas"] * 1e6,
        gb_per_s=num_bytes / seconds["octavo"] / 1e9,
        of_copy_rate=num_bytes / seconds["octavo"] / rate,
        speed_over_cublas=seconds["cublas"] / seconds["octavo"],
        best=best,
        best_over_cublas=seconds["cublas"] / seconds[best],
    )


def main() -> None:
    """Measure 8B, then 0.6B; few rows first."""
    made = parser(__doc__)
    made.add_argument("--sweep", action="store_true", help="try other tiles")
    given = made.parse_args()
    probe = begin("products", given)
    rate = copy_rate(probe)
    shapes = [TINY] if probe.tiny else [LLAMA_8B, QWEN3_06B]
    for shape in shapes:
        for name in (*shape.products, "vocabulary"):
            for rows in (1, 17) if probe.tiny else SWEPT if given.sweep else ROWS:
                about = f"{shape.name} {name} {rows} rows"
                if probe.has_time(about, 20 if given.sweep else 0):
                    probe.note(about)
                    measure(probe, shape, name, rows, rate, sweep=given.sweep and not probe.tiny)
                    probe.free()


if __name__ == "__main__":
    main()
