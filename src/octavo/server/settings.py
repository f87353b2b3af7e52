"""The settings of the HTTP edge, checked together: listening, access, logs and monitoring.

A field with `setting(...)` is a flag of `octavo serve`, an environment variable and a key under [server]
(`octavo/setting.py`). The other fields are bounds that operators cannot set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import ConfigError
from octavo.server.hosts import LOOPBACK, hostname, is_loopback, origin_host, split_address
from octavo.server.keys import KEYS_MAX, KeyFile, check_key, read_key_file
from octavo.server.logs import FORMATS, LEVELS
from octavo.server.replica import ReplicaIdentity
from octavo.server.traces import traces_url
from octavo.setting import check, setting

if TYPE_CHECKING:
    from octavo.server.tenant_registry import TenantRegistry

DEFAULT_HOST = LOOPBACK
SOCKET_PATH_BYTES_MAX = 107  # the kernel's limit, less the final zero byte


def _read_tenants(text: str, source: str) -> TenantRegistry:
    """The tenants of a file. Raises ConfigError, which names the file itself."""
    from octavo.server.tenant_registry import TenantRegistry  # imports asyncio, which --help avoids

    return TenantRegistry(Path(text))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Raises ConfigError for wrong values, for settings that exclude each other, and for an open server that
    is not marked `insecure`.

    `host` is the address to bind, and a valid name in Host headers. `allowed_hosts` are further names;
    `allowed_origins` are the web pages from which browsers may send requests, such as https://app.example, or
    "*" with keys. `tls_cert` and `tls_key` are PEM files, read at start and at SIGHUP.
    """

    host: str = setting(
        DEFAULT_HOST,
        "Address to listen on.",
        more="; one that others can reach needs keys, or `--insecure`",
        metavar="ADDRESS",
        allowed="a name or an address",
        group="Server",
    )
    port: int = setting(8000, "Port to listen on; 0 takes a free one.", bounds=(0, 65_535))
    unix_socket: Path | None = setting(
        None,
        "Socket file to listen on, instead of address and port.",
        more="; its owner and group may connect ([operating](operating.md#listening))",
        metavar="PATH",
        allowed="a path of up to 107 bytes",
    )
    tls_cert: Path | None = setting(
        None, "File with the server's TLS certificate (chain), in PEM; SIGHUP reads it again."
    )
    tls_key: Path | None = setting(None, "File with its key, in PEM, without a passphrase.")
    http_processes: int | None = setting(
        None,
        "Processes for HTTP in addition to the engine's; 0: the engine's process serves HTTP.",
        more=" ([operating](operating.md#front-ends))",
        bounds=(0, 64),
        unset="0; with a GPU one for each 4 cores, up to 4",
    )
    drain_timeout_s: float = setting(
        30.0, "Seconds that running requests have to end after SIGTERM.", bounds=(0, 3600)
    )
    log_level: str = setting("info", "How much is logged.", choices=LEVELS)
    log_format: str = setting("text", "Lines for people, or a JSON object a line.", choices=FORMATS)

    api_keys: tuple[str, ...] = setting(
        (),
        "A key that clients must send; repeatable.",
        more=". They send it as `Authorization: Bearer` or `x-api-key`. The variable keeps it out of the "
        "list of processes",
        name="api_key",
        metavar="KEY",
        allowed="1 to 512 printable ASCII characters without blanks",
        secret=True,
        read=check_key,
        group="Access",
    )
    key_file: KeyFile | None = setting(
        None, "File of such keys, one a line.", name="api_key_file", metavar="FILE", read=read_key_file
    )
    roster: TenantRegistry | None = setting(
        None,
        "File with the tenants, their keys and limits; SIGHUP reads it again.",
        more=". Not together with keys ([tenants](tenants.md))",
        name="tenants",
        metavar="FILE",
        read=_read_tenants,
    )
    insecure: bool = setting(False, "Serve without keys on an address that others can reach.")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Another name of this server, for Host headers, such as octavo; repeatable.",
        more=". Checked only without keys",
        name="allowed_host",
        metavar="NAME",
        allowed="a name or an address",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "A web page that may send requests, such as https://app.example (CORS); repeatable.",
        name="allowed_origin",
        metavar="ORIGIN",
        allowed="scheme and host; `*` only with keys",
    )

    metrics_compat: str = setting(
        "none",
        "vllm: /metrics also has vLLM's names of metrics.",
        choices=("none", "vllm"),
        group="Monitoring",
    )
    metrics_address: str | None = setting(
        None,
        "Address for GET /metrics alone, without keys: a port of this machine, or ADDRESS:PORT.",
        more=" ([operating](operating.md#behind-a-router))",
        metavar="ADDRESS",
        allowed="a port, or address and port; an IPv6 address in brackets",
    )
    otel_endpoint: str | None = setting(
        None,
        "Collector for OpenTelemetry traces, OTLP over HTTP, such as http://127.0.0.1:4318.",
        more="; needs `octavo[otel]` ([operating](operating.md#traces))",
        metavar="URL",
        allowed="an address",
    )

    trace_file: Path | None = setting(
        None,
        "File for the arrival time and lengths of each request, without text; `octavo bench serve --trace` "
        "replays it.",
        more=" ([operating](operating.md#a-trace-of-the-traffic)). An existing file becomes `FILE.1`",
    )

    replica: ReplicaIdentity | None = (
        None  # set by `octavo.cli.replica`: the server is a replica of a cluster
    )
    body_bytes_max: int = 8 * 2**20
    headers_timeout_s: float = 15.0  # from accept until a request's headers are complete
    connections_max: int | None = None  # None: as descriptors allow, up to 4,096

    def __post_init__(self) -> None:
        check(self)
        for place, key in enumerate(self.api_keys, 1):
            check_key(key, f"API key number {place}")
        if len(self.keys) > KEYS_MAX:
            raise ConfigError(
                f"{len(self.keys):,} API keys; allowed: up to {KEYS_MAX:,} (--tenants distinguishes users)"
            )
        if self.keys and self.roster is not None:
            raise ConfigError(
                "--api-key (or OCTAVO_API_KEY) and --tenants are both given; allowed: one of them (a tenant "
                "with operator = true may do what a key without tenants may)"
            )
        if not (self.has_keys or self.insecure or is_loopback(self.host)):
            raise ConfigError(
                f"--host is {self.host or 'every address'}, which others can reach, and there are no keys; "
                "allowed: keys (--api-key, --api-key-file, --tenants), an address of this machine alone "
                "(127.0.0.1), or --insecure to serve without keys"
            )
        for name in self.allowed_hosts:
            if hostname(name) is None:
                raise ConfigError(
                    f"--allowed-host is {name[:80]!r}; allowed: a name or an address, such as octavo"
                )
        for origin in self.allowed_origins:
            self._check_origin(origin)

        self._check_listener()
        if self.metrics_address is not None:
            split_address(self.metrics_address, "--metrics-address")
        if self.otel_endpoint is not None:
            traces_url(self.otel_endpoint)

    def _check_listener(self) -> None:
        if self.replica is not None:
            self._check_replica()
        if self.unix_socket is None:
            return
        if self.host != DEFAULT_HOST:
            raise ConfigError(
                f"--unix-socket and --host {self.host[:80]} are both given; allowed: one of them (a socket "
                "file replaces address and port)"
            )
        size = len(bytes(self.unix_socket.absolute()))
        if size > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"--unix-socket is a path of {size} bytes; allowed: up to {SOCKET_PATH_BYTES_MAX}, counted "
                "from the root"
            )

    def _check_replica(self) -> None:
        """A replica has no TLS, which is the relay's, and no listener without the cluster's key."""
        given = {
            "--tls-cert": self.tls_cert,
            "--unix-socket": self.unix_socket,
            "--metrics-address": self.metrics_address,
        }
        for flag, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"{flag} is {value}, and this is a replica of a cluster; allowed: without it"
                )

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
    def keys(self) -> tuple[str, ...]:
        """The distinct keys of --api-key and --api-key-file; tenants' keys are in `roster`."""
        of_file = () if self.key_file is None else self.key_file.keys
        return tuple(dict.fromkeys((*self.api_keys, *of_file)))

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self.keys) or self.roster is not None
