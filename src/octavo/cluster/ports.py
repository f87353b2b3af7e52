"""The TCP ports that a process and its descendants listen on, from /proc.

pid -> /proc/PID/fd -> socket:[inode] -> /proc/net/tcp, tcp6 -> address and port
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"  # a state of /proc/net/tcp
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True, order=True)
class ListeningPort:
    """One listening socket. `program`: the process's name, at most 15 characters."""

    program: str
    address: str
    port: int

    @property
    def is_on_all_interfaces(self) -> bool:
        """Whether it is bound to the unspecified address."""
        return ipaddress.ip_address(self.address).is_unspecified


def listening_ports(pid: int) -> list[ListeningPort]:
    """The ports of a process and its descendants, in order. O(processes and their descriptors)."""
    sockets = dict(_listening_sockets())
    found = set()
    for each in descendants(pid):
        program = _read(f"/proc/{each}/comm").strip()
        with suppress(OSError):
            for descriptor in Path(f"/proc/{each}/fd").iterdir():
                with suppress(OSError):
                    match = _SOCKET.fullmatch(os.readlink(descriptor))
                    if match and match[1] in sockets:
                        found.add(ListeningPort(program, *sockets[match[1]]))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """The process itself and all its descendants."""
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal() and (stat := _read(f"{each}/stat")):
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(each.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def _listening_sockets() -> Iterator[tuple[str, tuple[str, int]]]:
    """Pairs of inode, and address and port."""
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/net/{table}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                address, _, port = fields[1].partition(":")
                yield fields[9], (_address(address), int(port, 16))


def _address(text: str) -> str:
    """An address from hexadecimal digits: little-endian words of four bytes."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def _read(path: str) -> str:
    """The text of a file of /proc; "" if its process has ended."""
    with suppress(OSError):
        return Path(path).read_text()
    return ""
