"""`octavo bench kernels`: each kernel as a share of the machine's limits, as a table or JSON lines."""

from __future__ import annotations

from octavo import _native
from octavo.bench import kernels
from octavo.bench.limits import Limits, measure_limits
from octavo.cli.terminal import print_all, print_json, probe_machine, show_progress, table, write
from octavo.engine.available import available_cores
from octavo.engine.backends import time_device_kernels
from octavo.errors import ConfigError

_COLUMNS = ("kernel", "size", "us", "GB/s", "GOP/s", "limit", "share")
_DEVICE_COLUMNS = ("kernel", "size", "us", "GB/s", "of the copy rate")
_PAGING_COLUMNS = ("attention", "scattered", "contiguous", "contiguous / scattered", "pairs")


def run(only: str, seconds: float, threads: int | None, *, as_json: bool) -> None:
    """Measure the limits, then every kernel whose name contains `only`. Raises ConfigError if none does."""
    _prepare(threads)
    cases = [case for case in kernels.all_cases() if only in case.kernel]
    if not cases:
        raise ConfigError(f"--only is {only!r}; allowed: a part of a kernel's name")
    rows = []
    with show_progress() as progress:
        progress("measuring the machine's limits ...")
        limits = measure_limits()
        print_json(limits, under="limits") if as_json else write(_describe_limits(limits))
        for index, case in enumerate(cases):
            progress(f"{case.kernel}, {case.size} ({index + 1} of {len(cases)}) ...")
            measured = kernels.run_case(case, limits, seconds)
            if as_json:
                print_json(measured)
            rows.append(cells_of(measured))
    if not as_json:
        print_all(table("octavo bench kernels", _COLUMNS, rows, num_left=2))


def run_on_device(device: str, *, as_json: bool) -> None:
    """Measure a GPU's kernels as a share of its memory's rate. Raises ConfigError if there is no GPU."""
    rows = []
    with show_progress() as progress:
        progress("making weights and KV ...")
        for measured in time_device_kernels(device):
            progress(f"{measured.kernel}, {measured.size}")
            if as_json:
                print_json(measured)
            micros, speed = f"{measured.seconds * 1e6:.0f}", f"{measured.gigabytes_per_s:.0f}"
            rows.append((measured.kernel, measured.size, micros, speed, f"{measured.share:.0%}"))
    if not as_json:
        title = f"octavo bench kernels --device {device}: medians"
        print_all(table(title, _DEVICE_COLUMNS, rows, num_left=2))


def run_paging(seconds: float, threads: int | None, *, as_json: bool) -> None:
    """Compare attention over scattered and contiguous blocks."""
    _prepare(threads)
    rows = []
    with show_progress() as progress:
        for size, shape, sequences, tokens, context in kernels.paging_cases():
            progress(f"{size} ...")
            found = kernels.run_paging(size, shape, sequences, tokens, context, seconds)
            if as_json:
                print_json(found)
            times = (f"{seconds * 1000:.2f} ms" for seconds in (found.scattered_s, found.contiguous_s))
            rows.append((found.size, *times, f"{found.ratio:.3f}", str(found.pairs)))
    if not as_json:
        print_all(table("octavo bench kernels --paging: medians of alternating pairs", _PAGING_COLUMNS, rows))


def cells_of(measured: kernels.KernelResult) -> tuple[str, ...]:
    """A row of the table; the cell of operations may be empty."""
    operations = f"{measured.gigaoperations_per_s:.1f}" if measured.gigaoperations_per_s else ""
    return (
        measured.kernel,
        measured.size,
        f"{measured.seconds * 1e6:.0f}",
        f"{measured.gigabytes_per_s:.1f}",
        operations,
        measured.bound_by,
        f"{measured.share:.0%}",
    )


def _prepare(threads: int | None) -> None:
    probe_machine()
    _native.set_num_threads(threads or available_cores())


def _describe_limits(limits: Limits) -> str:
    """The limits for people, and the meaning of the shares."""
    return (
        f"{_native.num_threads()} threads: reading {limits.read_bytes_per_s / 1e9:.1f} GB/s, "
        f"copying {limits.copy_bytes_per_s / 1e9:.1f} GB/s both ways, "
        f"float32 {limits.f32_operations_per_s / 1e9:.0f} GFLOP/s, "
        f"bfloat16 {limits.bf16_operations_per_s / 1e9:.0f} GFLOP/s, "
        f"bytes {limits.int8_operations_per_s / 1e9:.0f} GOP/s\n"
        "share: of the binding limit; above 100 % if the data are in a cache\n"
    )
