"""What kernels become on devices that are not here: instructions, registers, shared memory.

Triton interprets in this process, so others compile, one for each kind of device, both at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.device.triton.compile_all import LITTLE_SHARED_BYTES, SHARED_BYTES_MAX
from tests.device.triton.compiling import Compiled

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
# Attention's largest tiles fill the registers. ptxas then keeps some addresses in local memory, also where
# that makes room for one more program. On 8.0 walks over codes, and careful ones, keep more there.
SPILLED_BYTES_MAX = {80: 1536, 90: 512}
SPILLED_BYTES_OF_CUTS = 128  # some numbers of a row, which are used once for each look at it


@pytest.fixture(scope="module")
def kernels() -> list[Compiled]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.device.triton.compile_all", str(capability)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for capability in SHARED_BYTES_MAX
    ]
    said = [program.communicate()[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0]
    return [Compiled(**result) for answer in said for result in json.loads(answer)]


def test_products_run_on_tensor_cores(kernels: list[Compiled]) -> None:
    for kernel in kernels:
        has_products = kernel.label.endswith("product") and kernel.kernel != "find_largest_of_rows"
        assert (kernel.mma_sync + kernel.wgmma > 0) == has_products, kernel


def test_tiles_of_many_rows_use_the_larger_instruction(kernels: list[Compiled]) -> None:
    labels = {kernel.label for kernel in kernels if kernel.capability == 90 and kernel.wgmma}
    assert "attention prefill 128 product" in labels
    assert not any(kernel.wgmma for kernel in kernels if kernel.capability == 80)


def test_products_use_the_larger_instruction_whatever_the_number_of_rows(kernels: list[Compiled]) -> None:
    products = [kernel for kernel in kernels if kernel.label.startswith("linear")]
    assert {kernel.capability for kernel in products} == set(SHARED_BYTES_MAX)
    assert all((kernel.wgmma > 0) == (kernel.capability == 90) for kernel in products), products


def test_nothing_reads_a_product_before_it_is_there(kernels: list[Compiled]) -> None:
    """Triton 3.6 forgets to wait where an `if` at the end of a loop reads a product of the same round."""
    assert [kernel for kernel in kernels if kernel.is_serialized] == []


def test_products_of_attention_take_positions_and_dimensions_in_one_order(kernels: list[Compiled]) -> None:
    """Of operands that were loaded as single bytes Triton has `mma.sync` take them in another order, but not
    `wgmma`: decoding would differ from prompts in the last bit."""
    assert {w for each in kernels if each.label.startswith("attention") for w in each.operand_widths} == {2}


def test_a_merge_reads_what_other_programs_have_written(kernels: list[Compiled]) -> None:
    splits = [kernel for kernel in kernels if kernel.kernel == "split_partitions"]
    assert splits
    assert all(kernel.is_released for kernel in splits), splits


def test_three_programs_that_decode_codes_fit_a_multiprocessor(kernels: list[Compiled]) -> None:
    kinds = ("attention decode int8 product", "attention decode fp8 product")
    found = [each for each in kernels if each.label in kinds and each.kernel == "split_partitions"]
    assert found
    assert all(3 * 128 * kernel.registers <= 65536 for kernel in found), found


def test_no_product_and_sum_are_fused(kernels: list[Compiled]) -> None:
    """But in erf, which is the math library's: it spells its own order, whatever the launch. Attention says
    itself which are."""
    others = [kernel for kernel in kernels if not kernel.label.startswith("attention")]
    assert {kernel.label for kernel in others if kernel.fused_multiply_adds} == {"erf"}


def test_registers_and_shared_memory_suffice(kernels: list[Compiled]) -> None:
    for kernel in kernels:
        limit = SPILLED_BYTES_MAX[kernel.capability] if kernel.label.startswith("attention") else 0
        limit = SPILLED_BYTES_OF_CUTS if kernel.label == "cuts" else limit
        assert kernel.spilled_bytes <= limit, kernel
        is_little = "little" in kernel.label
        most = LITTLE_SHARED_BYTES if is_little else SHARED_BYTES_MAX[kernel.capability]
        assert kernel.shared_bytes <= most, kernel
