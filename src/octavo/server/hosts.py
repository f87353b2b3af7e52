"""Names of machines in headers, read strictly: what two parsers could read in two ways is no name."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://(.{1,300})")


def hostname(given: str) -> str | None:
    """The name or address of a Host header, without port, brackets, case and final dot.

    None for what is no such header: a user before an @, a path, text behind a bracket, a blank.
    """
    found = _HOST.fullmatch(given)
    if found is None:
        return None
    address, name = found.groups()
    if address is not None:
        return address.lower() if is_address(address) else None
    return str(name).lower().rstrip(".") or None


def origin_host(origin: str) -> str | None:
    """The same of an Origin header, scheme://host:port; None where it is none."""
    found = _ORIGIN.fullmatch(origin)
    return None if found is None else hostname(found.group(1))


def is_address(host: str) -> bool:
    """Whether it is an IP address, which nobody else can let a name point at."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach that address."""
    if host.lower() == "localhost":
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback
