"""The memory and the cores available to this process, according to the system.

The smallest of three bounds counts: `MemAvailable` of the machine, the unused part of each limit of a control
group around the process, and half of the unused address space under `ulimit -v`, since threads and libraries
take some too. A group's file pages count as available, as in `MemAvailable`: the kernel reclaims them before
it kills a process.
"""

from __future__ import annotations

import os
from pathlib import Path

RESERVE_PART, RESERVE_BYTES_MAX = 20, 512 * 2**20  # 5 % of the memory, or 512 MiB if that is less


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes available without swapping. `root`: the parent of proc and sys, for tests.

    Raises OSError or ValueError if the system does not report them.
    """
    available = _meminfo(root, "MemAvailable")
    return min([available, *_left_in_groups(root), *_left_of_address_space(root)])


def default_reserve(root: Path = Path("/")) -> int:
    """Default number of bytes to leave to other processes: a part of the machine, or of the smallest control
    group around the process."""
    limits = (_limit_of(group) for group in _groups(root))
    total = min([_meminfo(root, "MemTotal"), *(limit for limit in limits if limit is not None)])
    return min(total // RESERVE_PART, RESERVE_BYTES_MAX)


def _meminfo(root: Path, field: str) -> int:
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise ValueError(f"/proc/meminfo has no {field}")


def address_space_max(root: Path = Path("/")) -> int | None:
    """Bytes of address space that the process may have (`ulimit -v`); None: no limit."""
    limits = root / "proc/self/limits"
    for line in limits.read_text(encoding="ascii").splitlines() if limits.exists() else []:
        name, _, rest = line.partition("Max address space")
        if not name and rest.split()[0].isdigit():
            return int(rest.split()[0])
    return None


def _left_of_address_space(root: Path) -> list[int]:
    """Half of the unused address space, if there is a limit."""
    most = address_space_max(root)
    if most is None:
        return []
    pages = int((root / "proc/self/statm").read_text(encoding="ascii").split()[0])
    return [max(0, most - pages * os.sysconf("SC_PAGE_SIZE")) // 2]


def _left_in_groups(root: Path) -> list[int]:
    """The unused part of each group with a limit."""
    left = (_left_in_group(group) for group in _groups(root))
    return [bytes_left for bytes_left in left if bytes_left is not None]


def _groups(root: Path) -> list[Path]:
    """The folders of the groups around the process, from its own up to the root."""
    mount = root / "sys/fs/cgroup"
    groups = [Path()]
    if (root / "proc/self/cgroup").exists():
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            hierarchy, controllers, path = line.split(":", 2)
            if hierarchy == "0" and controllers == "":
                own = Path(path.lstrip("/"))
                groups += [own, *own.parents]
    # In a container the path may be the host's, which does not exist: then the mount itself is the own group.
    return [mount / group for group in dict.fromkeys(groups) if ".." not in group.parts]


def _limit_of(group: Path) -> int | None:
    """Bytes that the group may have; None: no limit of its own."""
    limit = group / "memory.max"
    given = limit.read_text(encoding="ascii").strip() if limit.exists() else "max"
    return int(given) if given.isdigit() else None


def _left_in_group(group: Path) -> int | None:
    """Bytes unused under the limit of a group; None: it has none."""
    limit, used, stat = _limit_of(group), group / "memory.current", group / "memory.stat"
    if limit is None or not used.exists():
        return None
    file_pages = 0
    if stat.exists():
        fields = (line.split() for line in stat.read_text(encoding="ascii").splitlines())
        file_pages = sum(int(value) for name, value in fields if name in {"inactive_file", "active_file"})
    return max(0, limit - int(used.read_text(encoding="ascii")) + file_pages)
