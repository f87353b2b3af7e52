"""What the HTTP edge is told at start, checked as a whole: who may come in, by which names, how many."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.server.hosts import hostname, is_loopback, origin_host
from octavo.server.keys import check_key
from octavo.server.tenant_registry import TenantRegistry


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Raises ConfigError where more would be let in than was meant, or keys belong to nobody.

    `host` is the address that the server is bound to, which names it in Host headers. `allowed_hosts` are
    further names of it; `allowed_origins` are the web pages from which browsers may send requests, such as
    https://app.example, or "*" beside keys.
    """

    host: str = "127.0.0.1"
    api_keys: tuple[str, ...] = ()
    roster: TenantRegistry | None = None  # the tenants; None: there are none
    insecure: bool = False  # strangers from beyond this machine are welcome
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    body_bytes_max: int = 8 * 2**20
    drain_timeout_s: float = 30.0
    headers_timeout_s: float = 15.0  # from a connection's first moment until a request's headers are whole
    connections_max: int | None = None  # None: as many as descriptors allow, up to 4,096

    def __post_init__(self) -> None:
        for place, key in enumerate(self.api_keys, 1):
            check_key(key, f"API key number {place}")
        if self.api_keys and self.roster is not None:
            raise ConfigError(
                "--api-key (or OCTAVO_API_KEY) and --tenants are both given; allowed: one of them (a tenant "
                "with operator = true may do what a key without tenants may)"
            )
        if not (self.has_keys or self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"--host is {self.host or 'every address'}, which others can reach, and there are no keys; "
                "allowed: keys (--api-key, --api-key-file, --tenants), an address of this machine alone "
                "(127.0.0.1), or --insecure to let everybody in"
            )
        for name in self.allowed_hosts:
            if hostname(name) is None:
                raise ConfigError(
                    f"--allowed-host is {name[:80]!r}; allowed: a name or an address, such as octavo"
                )
        for origin in self.allowed_origins:
            self._check_origin(origin)

    def _check_origin(self, origin: str) -> None:
        if origin == "*":
            if not self.has_keys:
                raise ConfigError("--allowed-origin is '*'; allowed without keys: pages by name, one each")
        elif origin_host(origin) is None or origin != origin.lower():
            raise ConfigError(
                f"--allowed-origin is {origin[:80]!r}; allowed: scheme and host in lower case, no path, "
                "such as https://app.example"
            )

    @property
    def has_keys(self) -> bool:
        """Whether a request must bring a key."""
        return bool(self.api_keys) or self.roster is not None
