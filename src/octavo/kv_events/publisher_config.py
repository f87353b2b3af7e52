"""Whether and where KV events are published, and of which tenants: checked before a model is loaded. The only
importer of publisher.py, and so of pyzmq, when an endpoint is set."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.config import StartOptions
from octavo.errors import ConfigError, shown
from octavo.kv_events.identity import EventSource, Identity, read_key
from octavo.kv_events.stream import Stream
from octavo.kv_events.wire import Form
from octavo.memory.changes import ChangeRecord

if TYPE_CHECKING:
    from octavo.kv_events.publisher import Publisher

_TCP = re.compile(r"tcp://(\*|[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(\*|[0-9]{1,5})")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]")
_ALLOWED = "tcp://127.0.0.1:5557 and the like, or ipc://PATH"
IPC_BYTES_MAX = 107  # the system's limit for a socket address


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """The configuration of publishing. Raises ConfigError."""

    endpoint: str
    replay_endpoint: str | None
    form: Form
    identity: Identity
    tenants: tuple[str, ...]  # only these; none: all

    def new_record(self) -> ChangeRecord:
        """A record for a new ledger."""
        return ChangeRecord(self.tenants or None)

    def open(self, model: str) -> Publisher:
        """Bind, and publish under that model name. Raises ConfigError."""
        from octavo.kv_events.publisher import Publisher

        if "@" in model:
            raise ConfigError(
                f"the model is served as {shown(model)}, and kv_events is set, whose topic kv@ID@MODEL has "
                "no room for a name with @; allowed: a name without (setting served_name)"
            )
        replays = self.replay_endpoint is not None
        stream = Stream(self.identity, self.form, time.time, replays=replays)
        return Publisher(stream, self.topic_of(model), self.endpoint, self.replay_endpoint)

    def topic_of(self, model: str) -> str:
        """The topic of that model name on this machine."""
        port = self.endpoint.rpartition(":")[2]
        host = socket.gethostname().replace("@", "-") or "octavo"
        return f"kv@{host}:{port}@{model}" if self.endpoint.startswith("tcp:") else f"kv@{host}@{model}"

    def source(self, model: str) -> EventSource:
        """The entry in `GET /kv_event_sources`."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "topic": self.topic_of(model),
        }


def publishing_of(options: StartOptions, *, has_tenants: bool) -> PublisherConfig | None:
    """None: nothing is published. Raises ConfigError for conflicting options, and without the package of the
    extra `octavo[events]`."""
    endpoint = options.kv_events
    if endpoint is None:
        for name in ("kv_events_replay", "kv_events_key_file", "kv_events_tenants"):
            if getattr(options, name):
                raise ConfigError(
                    f"{name} is given, and kv_events is not; allowed: with --kv-events ENDPOINT"
                )
        return None
    _check_endpoint("kv_events", endpoint, is_remote=options.kv_events_remote)
    if options.kv_events_replay is not None:
        _check_endpoint("kv_events_replay", options.kv_events_replay, is_remote=options.kv_events_remote)
    try:
        import zmq  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"kv_events is {endpoint}, and {error.name or error} is not installed; allowed with it: "
            "pip install 'octavo[events]'"
        ) from error
    if has_tenants and options.kv_events_key_file is None:
        raise ConfigError(
            "kv_events is set, and there are tenants, whose prompts others could guess from hashes without a "
            "key; allowed with tenants: --kv-events-key-file FILE, the same on all replicas"
        )
    if not has_tenants and (options.kv_events_key_file is not None or options.kv_events_tenants):
        raise ConfigError(
            "kv_events_key_file or kv_events_tenants is given, and there are no tenants; allowed: with "
            "--tenants FILE"
        )
    key = None if options.kv_events_key_file is None else read_key(options.kv_events_key_file)
    form = Form(options.kv_events_form)
    return PublisherConfig(endpoint, options.kv_events_replay, form, Identity(key), options.kv_events_tenants)


def identity_of(publishing: PublisherConfig | None) -> Identity:
    """The names and tenants for routers, if events are published."""
    return Identity() if publishing is None else publishing.identity


def _check_endpoint(name: str, endpoint: str, *, is_remote: bool) -> None:
    given = f"{name} is {shown(endpoint)}"
    path = endpoint.removeprefix("ipc://")
    if path != endpoint and 0 < len(path.encode()) <= IPC_BYTES_MAX:
        return
    found = _TCP.fullmatch(endpoint)
    if found is None or (found[2] != "*" and int(found[2]) > 65_535):
        raise ConfigError(f"{given}; allowed: {_ALLOWED}")
    if not is_remote and not _LOOPBACK.fullmatch(found[1]):
        raise ConfigError(
            f"{given}, which other machines can reach, and events carry prompts and answers as token ids; "
            "allowed: an address of loopback; with --kv-events-remote any, in a network that you trust"
        )
