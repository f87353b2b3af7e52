"""Host names in headers, parsed strictly: what two parsers could read differently is not a name."""

from __future__ import annotations

import ipaddress
import re

from octavo.errors import ConfigError, shown

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}://(.{1,300})")


def hostname(given: str) -> str | None:
    """The name or address of a Host header, in lower case, without port, brackets and final dot.

    None for a value that is not a host: with a user before an @, a path, text after a bracket, a blank.
    """
    found = _HOST.fullmatch(given)
    if found is None:
        return None
    address, name = found.groups()
    if address is not None:
        return address.lower() if is_address(address) else None
    return str(name).lower().rstrip(".") or None


def origin_host(origin: str) -> str | None:
    """As `hostname`, for an Origin header, scheme://host:port; None if it is not an origin."""
    found = _ORIGIN.fullmatch(origin)
    return None if found is None else hostname(found.group(1))


def split_address(given: str, source: str) -> tuple[str, int]:
    """The host and the port of ADDRESS:PORT; a port alone is on loopback. Raises ConfigError."""
    address, colon, port = given.rpartition(":")
    is_bracketed = ":" not in address or address.endswith("]")
    host = hostname(address) if colon else LOOPBACK
    if host is None or not is_bracketed or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise ConfigError(
            f"{source} is {shown(given)}; allowed: a port of this machine (9100), or an address and a port "
            "(0.0.0.0:9100, [::]:9100)"
        )
    return host, int(port)


def is_address(host: str) -> bool:
    """Whether it is an IP address, to which no DNS record of another party applies."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    return is_address(host) and ipaddress.ip_address(host).is_loopback
