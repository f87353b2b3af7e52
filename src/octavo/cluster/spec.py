"""A cluster's specification, as JSON: the model, the number of replicas, and the settings of `octavo serve`.

    octavo cluster serve MODEL --max-seqs 8     settings_table(origins)   {"max_seqs": 8}
    a Serve config's `args:`                    read_spec(args)           the same tables as octavo.toml has
         |
    ClusterSpec --+-- server_settings()         the relays': host, port, TLS, keys, tenants
                  +-- engine_options()          for checks, and what relays render with
                  +-- child_arguments()         the command line of each replica's `octavo serve`

Every node gets it and Ray stores it, so it holds no secret: keys are in files, of which it has the paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import msgspec

from octavo.config import StartOptions
from octavo.errors import ConfigError, shown
from octavo.server.settings import ServerSettings
from octavo.setting import Setting, settings_of, suggestions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Plain: TypeAlias = str | int | float | bool
Table: TypeAlias = dict[str, Plain | list[Plain]]
Options = TypeVar("Options", bound="DataclassInstance")

REPLICAS_MAX = 1000
# Settings that replicas of one node cannot share (a file, a port), or that a relay and its replicas divide.
NOT_OF_ENGINES = (
    *("record", "record_tenants", "kv_events", "kv_events_replay", "kv_events_remote"),
    *("kv_events_form", "kv_events_key_file", "kv_events_tenants"),
)
NOT_OF_RELAYS = ("unix_socket", "http_processes", "metrics_address", "trace_file")
# Settings that a relay reads at its start, so that an update of the engines cannot change them.
_READ_BY_RELAYS = ("context_length", "chat_template", "tool_parser", "reasoning_parser", "served_name")
_FILES = ("api_key_file", "tenants", "tls_cert", "tls_key")
# Settings of the relay alone: replicas have a private port.
_RELAY_ONLY = {"host", "port", "tls_cert", "tls_key", "allowed_host", "allowed_origin", "insecure"}


class ClusterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raises ConfigError from `check`. `revision` counts updates. `replicas_per_node` None: `max_replicas`
    divided by the nodes, rounded up."""

    model: str | None = None
    min_replicas: int = 1
    max_replicas: int = 1
    requests_per_replica: int = 8
    replicas_per_node: int | None = None
    relays_per_node: int = 2
    private_network: bool = False
    allow_open_cluster: bool = False
    revision: int = 1
    template_digest: str | None = None  # of the file of --chat-template at the cluster's start
    engine: Table = {}
    server: Table = {}

    def check(self) -> ClusterSpec:
        """Validate the spec and return it. Raises ConfigError."""
        for name, value, low in (
            ("--min-replicas", self.min_replicas, 1),
            ("--max-replicas", self.max_replicas, self.min_replicas),
            ("--requests-per-replica", self.requests_per_replica, 1),
            ("--replicas-per-node", 1 if self.replicas_per_node is None else self.replicas_per_node, 1),
            ("--relays-per-node", self.relays_per_node, 1),
        ):
            if not low <= value <= REPLICAS_MAX:
                raise ConfigError(f"{name} is {value:,}; allowed: {low:,} to {REPLICAS_MAX:,}")
        for table, names in ((self.engine, NOT_OF_ENGINES), (self.server, (*NOT_OF_RELAYS, "api_key"))):
            if wrong := sorted(set(names) & table.keys()):
                raise ConfigError(
                    f"{wrong[0]} is given, which the replicas of a cluster cannot share; allowed: what "
                    "octavo cluster serve --help lists (keys in a file: api_key_file)"
                )
        self.engine_options()
        if self.server_settings().port == 0:
            raise ConfigError("--port is 0; allowed for a cluster, whose relays share one: 1 to 65,535")
        return self

    def check_update(self, changed: ClusterSpec) -> None:
        """Raises ConfigError for a change that needs new relays."""
        for name in _READ_BY_RELAYS:
            if changed.engine.get(name) != (now := self.engine.get(name)):
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(
                    f"{flag} is {shown(changed.engine.get(name))}, and relays, which read it at their start, "
                    f"have {'the default' if now is None else shown(now)}; allowed: octavo cluster stop, "
                    f"then octavo cluster serve {flag}"
                )
        if self.template_digest not in (None, changed.template_digest):
            raise ConfigError(
                f"the file {shown(self.engine['chat_template'])} has changed since relays read it; allowed: "
                "the earlier file, or octavo cluster stop, then octavo cluster serve"
            )

    def check_template(self) -> None:
        """Raises ConfigError if the template's file has changed since relays read it."""
        self.check_update(self.with_template_digest())

    def with_template_digest(self) -> ClusterSpec:
        """This spec with the current digest of the template's file. Raises ConfigError."""
        from octavo.cluster.node_files import files_digest  # --help does without it

        templates = self._template_files()
        return msgspec.structs.replace(self, template_digest=files_digest(templates) if templates else None)

    @property
    def is_autoscaled(self) -> bool:
        """Whether Ray may start and stop replicas by load."""
        return self.min_replicas < self.max_replicas

    def engine_options(self) -> StartOptions:
        """Raises ConfigError."""
        return _from_table(StartOptions, self.engine, "engine")

    def server_settings(self) -> ServerSettings:
        """The relays' settings. Raises ConfigError, also for a file of keys or tenants that is not on this
        node."""
        return _from_table(ServerSettings, self.server, "server")

    def files(self) -> list[str]:
        """The paths of files that every node needs, with equal contents."""
        return [*self._template_files(), *(str(self.server[name]) for name in _FILES if name in self.server)]

    def _template_files(self) -> list[str]:
        template = self.engine.get("chat_template")
        return [template] if isinstance(template, str) and _is_file(template) else []

    def child_arguments(self, threads: int, kv_memory: int | None) -> list[str]:
        """A replica's model and flags for `octavo serve`. `threads` and `kv_memory` (bytes; None: the
        engine's default) apply where the settings have no value."""
        engine = {name: value for name, value in self.engine.items() if name != "disk_cache"}
        engine.setdefault("threads", threads)
        if kv_memory is not None:
            engine.setdefault("kv_memory", kv_memory)
        server = {name: value for name, value in self.server.items() if name not in _RELAY_ONLY}
        model = [] if self.model is None else [self.model]
        return [*model, *_flags(StartOptions, engine), *_flags(ServerSettings, server)]


def read_spec(args: Mapping[str, object]) -> ClusterSpec:
    """The spec in the `args` of a Serve config. Raises ConfigError."""
    try:
        return msgspec.convert(args, ClusterSpec).check()
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the cluster's args: {str(error)[:200]}; allowed: {', '.join(ClusterSpec.__struct_fields__)} "
            "(docs/cluster.md)"
        ) from None


def settings_table(values: Iterable[tuple[Setting, object]]) -> Table:
    """Settings and values as a table of a TOML file. A file is given as its path."""
    return {setting.name: _plain(_as_path(setting.name, value)) for setting, value in values}


def _as_path(name: str, value: object) -> object:
    """A `Path` if the setting is one."""
    is_path = name == "disk_cache" or (name == "chat_template" and _is_file(str(value)))
    return Path(str(value)) if is_path else value


def _is_file(template: str) -> bool:
    from octavo.text.named_templates import is_file_name  # --help does without it

    return is_file_name(template)


def _plain(value: object) -> Plain | list[Plain]:
    if isinstance(value, tuple):
        return [cast(Plain, _plain(each)) for each in value]
    value = getattr(value, "path", value)  # of a file of keys or tenants
    return str(value.expanduser().absolute()) if isinstance(value, Path) else cast(Plain, value)


def _from_table(cls: type[Options], table: Table, name: str) -> Options:
    known = {each.name: each for each in settings_of(cls)}
    values = {}
    for key, given in table.items():
        if key not in known:
            hint = suggestions(key, known)
            raise ConfigError(f"{name}: there is no setting {shown(key)}{hint}; docs/settings.md lists all")
        setting, source = known[key], f"{name}.{key}"
        value = setting.parse(setting.take(given, source), source)
        setting.check(value, source)
        values[setting.field] = value
    return cls(**values)


def _flags(cls: type[DataclassInstance], table: Table) -> list[str]:
    known = {each.name: each for each in settings_of(cls)}
    words: list[str] = []
    for name, value in table.items():
        setting = known[name]
        if isinstance(value, bool):
            words.append(setting.flag if value else setting.off)
        else:
            for each in value if isinstance(value, list) else [value]:
                words.append(f"{setting.flag}={each}")
    return words
