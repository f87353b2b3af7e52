"""What is available is the least of what the machine and the control groups around the process leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.engine.available import available_memory, default_reserve

KIB, MIB, GIB = 2**10, 2**20, 2**30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    tell(tmp_path, "proc/meminfo", "MemTotal:  4194304 kB\nMemFree:  1 kB\nMemAvailable:  2097152 kB\n")
    return tmp_path


def tell(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def limit(root: Path, group: str, most: str, used: int, file_pages: int = 0) -> None:
    folder = f"sys/fs/cgroup/{group}"
    tell(root, f"{folder}/memory.max", f"{most}\n")
    tell(root, f"{folder}/memory.current", f"{used}\n")
    tell(root, f"{folder}/memory.stat", f"anon 5\ninactive_file {file_pages}\nactive_file 0\n")


def test_without_a_group_the_machine_says_what_is_available(machine: Path) -> None:
    assert available_memory(machine) == 2 * GIB


def test_a_group_with_a_limit_counts_where_it_leaves_less(machine: Path) -> None:
    limit(machine, "", str(GIB), 700 * MIB)
    assert available_memory(machine) == 324 * MIB
    limit(machine, "", str(8 * GIB), 700 * MIB)
    assert available_memory(machine) == 2 * GIB
    limit(machine, "", "max", 700 * MIB)
    assert available_memory(machine) == 2 * GIB


def test_file_pages_of_a_group_are_to_be_had(machine: Path) -> None:
    limit(machine, "", str(GIB), GIB, file_pages=100 * MIB)
    assert available_memory(machine) == 100 * MIB


def test_every_group_around_the_process_counts(machine: Path) -> None:
    tell(machine, "proc/self/cgroup", "0::/pod/one\n")
    limit(machine, "pod/one", "max", 5)
    limit(machine, "pod", str(GIB), GIB - 10 * KIB)
    limit(machine, "", str(3 * GIB), GIB)
    assert available_memory(machine) == 10 * KIB
    limit(machine, "pod", str(GIB), 2 * GIB)  # above its limit for a moment
    assert available_memory(machine) == 0


def test_a_path_of_another_name_space_is_ignored(machine: Path) -> None:
    tell(machine, "proc/self/cgroup", "0::/../../host/one\n")
    limit(machine, "", str(GIB), 0)
    assert available_memory(machine) == GIB


def test_the_reserve_is_a_twentieth_and_at_most_512_mib(machine: Path) -> None:
    assert default_reserve(machine) == 4 * GIB // 20
    limit(machine, "", str(GIB), 0)
    assert default_reserve(machine) == GIB // 20
    limit(machine, "", "max", 0)
    tell(machine, "proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\n")
    assert default_reserve(machine) == 512 * MIB


def test_this_machine_answers() -> None:
    assert available_memory() > 0
    assert default_reserve() > 0


def test_half_of_the_address_space_that_a_limit_leaves_is_to_be_had(machine: Path) -> None:
    pages = os.sysconf("SC_PAGE_SIZE")
    tell(machine, "proc/self/statm", f"{400 * MIB // pages} 5 5 5 0 5 0\n")
    told = "Limit  Soft Limit  Hard Limit  Units\nMax cpu time  unlimited unlimited seconds\n"
    tell(machine, "proc/self/limits", told + f"Max address space         {GIB}      unlimited   bytes\n")
    assert available_memory(machine) == 312 * MIB
    tell(machine, "proc/self/limits", told + f"Max address space         {300 * MIB} {GIB}   bytes\n")
    assert available_memory(machine) == 0
    tell(machine, "proc/self/limits", told + "Max address space         unlimited  unlimited   bytes\n")
    assert available_memory(machine) == 2 * GIB
