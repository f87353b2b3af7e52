"""Names of machines in headers, read strictly: what two parsers could read in two ways is no name."""

from __future__ import annotations

import ipaddress
import re

from octavo.errors import ConfigError, shown

LOOPBACK = "127.0.0.1"
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


def split_address(given: str, source: str) -> tuple[str, int]:
    """The host and the port of ADDRESS:PORT; a port alone is one of loopback. Raises ConfigError."""
    address, colon, port = given.rpartition(":")
    is_one = ":" not in address or address.endswith("]")
    host = hostname(address) if colon else LOOPBACK
    if host is None or not is_one or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ConfigError(
            f"{source} is {shown(given)}; allowed: a port of this machine (9100), or an address and a port "
            "(0.0.0.0:9100, [::]:9100)"
        )
    return host, int(port)


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
