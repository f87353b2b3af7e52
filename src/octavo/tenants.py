"""The tenants of a server and their bounds: reads and checks `tenants.toml`.

    [[tenant]]
    name = "alice"                      # 1 to 64 letters, digits, dots, dashes and underscores
    key_sha256 = "9f86d081..."          # `octavo tenants new-key` prints one; several, while keys rotate
    guaranteed = "512MiB"               # blocks are numbers; bytes have units
    maximum = 4096
    [tenant.defaults]
    timeout = 60.0

A key is a random token of 256 bits, never a chosen password. So storing its SHA-256 suffices: salts and slow
hashes make *guessing* expensive, and 256 random bits cannot be guessed. A key is found by its digest, and
comparing digests in constant time reveals nothing about keys.

This module knows no server and no engine. `priority` has the meaning of a request's body: lower runs earlier.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError, InvalidRequest, shown
from octavo.files import read_named_file
from octavo.memory.quota import SHARED, TenantPolicy
from octavo.params import NO_TIMEOUTS, PRIORITY_MAX, TIMEOUT_S_MAX, Timeouts
from octavo.units import parse_bytes

FILE_BYTES_MAX = 1 << 20
TENANTS_MAX = 1024
KEYS_MAX = 8  # of one tenant
BLOCKS_MAX = 2**40
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_PAGE = 4096  # a slot of an offload tier is a block in whole pages
_GIVEN_CHARS_MAX = 80


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of memory in the file: blocks, or bytes that become whole blocks once their size is known."""

    number: int
    in_bytes: bool = False

    def blocks(self, bytes_per_block: int) -> int:
        """Whole blocks, rounded down. Raises ConfigError if a block's size is not known."""
        if not self.in_bytes:
            return self.number
        if bytes_per_block < 1:
            raise ConfigError(f"{self}: the size of a block is not known; allowed: a number of blocks")
        return self.number // bytes_per_block

    def __str__(self) -> str:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
            if self.in_bytes and self.number and self.number % size == 0:
                return f"{self.number // size:,} {unit}"
        return f"{self.number:,} {'bytes' if self.in_bytes else 'blocks'}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a tenant, before the size of blocks is known. None: no bound of its own."""

    guaranteed: Amount = Amount(0)
    maximum: Amount | None = None
    request_maximum: Amount | None = None
    session_maximum: Amount | None = None
    disk: Amount | None = None
    weight: float = 1.0
    max_running: int | None = None
    max_queue: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """One entry of the file. `priority_min` is the lowest (earliest) priority that its requests may have."""

    name: str
    digests: tuple[bytes, ...] = ()  # SHA-256 of its keys
    operator: bool = False
    bounds: Bounds = Bounds()
    timeouts: Timeouts = NO_TIMEOUTS  # defaults of its requests
    priority: int = 0
    priority_min: int = 0

    def policy(self, bytes_per_block: int) -> TenantPolicy:
        """The tenant's bounds in blocks. Raises ConfigError if they contradict, or are under a block."""
        bounds = self.bounds
        found: dict[str, int | None] = {}
        for key, amount, size in (
            ("guaranteed", bounds.guaranteed, bytes_per_block),
            ("maximum", bounds.maximum, bytes_per_block),
            ("request_maximum", bounds.request_maximum, bytes_per_block),
            ("session_maximum", bounds.session_maximum, bytes_per_block),
            ("disk", bounds.disk, -(-bytes_per_block // _PAGE) * _PAGE),
        ):
            found[key] = None if amount is None else amount.blocks(size)
            if amount is not None and amount.number > 0 and found[key] == 0:
                raise ConfigError(
                    f"tenant {self.name}: {key} is {amount}; allowed: at least one block of {size:,} bytes"
                )
        _check_order(self.name, "guaranteed", found["guaranteed"], found["maximum"], "blocks")
        _check_order(self.name, "request_maximum", found["request_maximum"], found["maximum"], "blocks")
        return TenantPolicy(
            self.name,
            bounds.weight,
            found["guaranteed"] or 0,
            found["maximum"],
            found["request_maximum"],
            found["session_maximum"],
            found["disk"],
            bounds.max_running,
            bounds.max_queue,
        )


@dataclass(frozen=True, slots=True)
class Tenants:
    """All tenants of one version of the file. Immutable."""

    all: tuple[Tenant, ...]

    def of_key(self, key: str) -> Tenant | None:
        """The tenant with that key. Compares every known digest, each in constant time. O(keys)."""
        given, found = digest_of(key), None
        for tenant in self.all:
            for known in tenant.digests:
                found = tenant if hmac.compare_digest(given, known) else found
        return found

    def has(self, name: str) -> bool:
        """Whether there is a tenant of that name, `shared` included."""
        return name == SHARED or any(tenant.name == name for tenant in self.all)

    def policies(self, bytes_per_block: int) -> tuple[TenantPolicy, ...]:
        """All tenants' bounds in blocks of that size. Raises ConfigError."""
        return tuple(tenant.policy(bytes_per_block) for tenant in self.all)


def new_key() -> str:
    """A new random key: 256 bits, in letters that need no quoting."""
    return f"octavo-{secrets.token_urlsafe(32)}"


def digest_of(key: str) -> bytes:
    """The stored digest of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_tenants(path: Path) -> Tenants:
    """The tenants of a file. Raises ConfigError, which names the wrong entry, its value and what is
    allowed."""
    data = read_named_file(path, FILE_BYTES_MAX, "--tenants names another file")
    try:
        return parse_tenants(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8, which TOML is written in") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse_tenants(text: str) -> Tenants:
    """As `read_tenants`, from a text."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"not sound TOML: {error}") from None
    except ValueError:  # Python refuses a number of thousands of digits
        digits = sys.get_int_max_str_digits()
        raise ConfigError(f"not sound TOML: a number has more than {digits:,} digits") from None
    unknown = sorted(values.keys() - {"tenant"})
    if unknown:
        raise ConfigError(f"unknown key {_short(unknown[0])}; allowed: [[tenant]] entries alone")
    entries = values.get("tenant", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError("tenant is not a list of tables; allowed: each tenant begins with [[tenant]]")
    if not 1 <= len(entries) <= TENANTS_MAX:
        raise ConfigError(f"{len(entries):,} tenants; allowed: 1 to {TENANTS_MAX:,}")
    tenants = Tenants(tuple(_tenant(entry, place) for place, entry in enumerate(entries, 1)))
    _check_all_differ(tenants)
    return tenants


def _check_all_differ(tenants: Tenants) -> None:
    names: set[str] = set()
    owners: dict[bytes, str] = {}
    for tenant in tenants.all:
        if tenant.name in names:
            raise ConfigError(f"tenant {tenant.name}: the name appears twice; allowed: each name once")
        names.add(tenant.name)
        for digest in tenant.digests:
            other = owners.setdefault(digest, tenant.name)
            if other != tenant.name:
                raise ConfigError(
                    f"tenant {tenant.name}: key_sha256 has a key that is {other}'s too; allowed: each key "
                    "once (octavo tenants new-key makes another)"
                )
    if not owners:
        raise ConfigError("no tenant has a key, so no client has access; allowed: at least one key_sha256")


def _tenant(values: Mapping[str, object], place: int) -> Tenant:
    name = values.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"tenant number {place}: name is {_short(name)}; allowed: 1 to 64 letters, digits, dots, dashes "
            "and underscores"
        )
    entry = _TenantEntry(name, values)
    if name == SHARED:
        entry.refuse_unknown("name", "guaranteed", "maximum", "disk", hint=_SHARED_HINT)
        return Tenant(name, bounds=_bounds(entry))
    entry.refuse_unknown(*_KEYS)
    defaults = entry.inner("defaults")
    defaults.refuse_unknown("timeout", "queue_timeout", "ttft_timeout", "priority")
    priority = defaults.integer("priority", -PRIORITY_MAX, PRIORITY_MAX) or 0
    lowest = entry.integer("priority_min", -PRIORITY_MAX, PRIORITY_MAX)
    if lowest is not None and lowest > priority:
        raise entry.bad("priority_min", f"up to {priority}, its default priority")
    return Tenant(
        name,
        entry.digests(),
        entry.flag("operator"),
        _bounds(entry),
        defaults.timeouts(),
        priority,
        priority if lowest is None else lowest,
    )


_SHARED_HINT = f"; {SHARED} is no tenant: its entry bounds the blocks of prefixes that all tenants share"
_KEYS = (
    "name",
    "key_sha256",
    "operator",
    "guaranteed",
    "maximum",
    "request_maximum",
    "session_maximum",
    "disk",
    "weight",
    "max_running",
    "max_queue",
    "priority_min",
    "defaults",
)


def _bounds(entry: _TenantEntry) -> Bounds:
    guaranteed, maximum = entry.amount("guaranteed", low=0), entry.amount("maximum")
    request_maximum = entry.amount("request_maximum")
    for key, low in (("guaranteed", guaranteed), ("request_maximum", request_maximum)):
        if low is not None and maximum is not None and low.in_bytes == maximum.in_bytes:
            unit = "bytes" if low.in_bytes else "blocks"
            _check_order(entry.tenant, key, low.number, maximum.number, unit)
    return Bounds(
        guaranteed or Amount(0),
        maximum,
        request_maximum,
        entry.amount("session_maximum"),
        entry.disk(),
        entry.number("weight", 0.001, 1000.0, 1.0),
        entry.integer("max_running", 1, 4096),
        entry.integer("max_queue", 0, 1_000_000),
    )


def _check_order(tenant: str, key: str, low: int | None, maximum: int | None, unit: str) -> None:
    if low is not None and maximum is not None and low > maximum:
        raise ConfigError(
            f"tenant {tenant}: {key} is {low:,} {unit}; allowed: up to its maximum, {maximum:,} {unit}"
        )


@dataclass(frozen=True, slots=True)
class _TenantEntry:
    """A tenant's table, or one inside it; every error names the tenant."""

    tenant: str
    values: Mapping[str, object]
    table: str = ""  # "defaults." inside that table

    def bad(self, key: str, allowed: str) -> ConfigError:
        given = _short(self.values.get(key))
        return ConfigError(f"tenant {self.tenant}: {self.table}{key} is {given}; allowed: {allowed}")

    def refuse_unknown(self, *known: str, hint: str = "") -> None:
        unknown = sorted(self.values.keys() - set(known))
        if unknown:
            raise ConfigError(
                f"tenant {self.tenant}: unknown key {self.table}{unknown[0][:_GIVEN_CHARS_MAX]}; allowed: "
                f"{', '.join(known)}{hint}"
            )

    def inner(self, key: str) -> _TenantEntry:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.bad(key, f"a table, [tenant.{key}]")
        return _TenantEntry(self.tenant, value, f"{key}.")

    def integer(self, key: str, low: int, high: int) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(key, f"a whole number from {low:,} to {high:,}")
        return value

    def number(self, key: str, low: float, high: float, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.bad(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def amount(self, key: str, low: int = 1) -> Amount | None:
        value = self.values.get(key)
        if isinstance(value, str):
            try:
                return Amount(parse_bytes(value, key), in_bytes=True)
            except ConfigError:
                raise self.bad(key, "blocks, such as 4096, or bytes, such as 512MiB") from None
        if value is None or isinstance(value, int):
            found = self.integer(key, low, BLOCKS_MAX)
            return None if found is None else Amount(found)
        raise self.bad(key, 'blocks, such as 4096, or bytes, such as "512MiB"')

    def disk(self) -> Amount | None:
        found = self.amount("disk")
        if found is not None and not found.in_bytes:
            raise self.bad("disk", 'bytes with a unit, such as "10GiB"')
        return found

    def timeouts(self) -> Timeouts:
        total, queue, first = (self._seconds(key) for key in ("timeout", "queue_timeout", "ttft_timeout"))
        return Timeouts(total, queue, first)

    def _seconds(self, key: str) -> float | None:
        if key not in self.values:
            return None
        found = self.number(key, 0.0, TIMEOUT_S_MAX, 0.0)
        try:
            Timeouts(found)
        except InvalidRequest:
            raise self.bad(key, f"above 0, up to {TIMEOUT_S_MAX:,.0f} seconds") from None
        return found

    def digests(self) -> tuple[bytes, ...]:
        """Never echoed: the file may have the key itself here by mistake."""
        value = self.values.get("key_sha256")
        listed = value if isinstance(value, list) else [value]
        if not 1 <= len(listed) <= KEYS_MAX:
            raise ConfigError(
                f"tenant {self.tenant}: key_sha256 has {len(listed)} entries; allowed: 1 to {KEYS_MAX}"
            )
        found = []
        for text in listed:
            if not isinstance(text, str) or not _DIGEST.fullmatch(text):
                given = f"{len(text)} characters" if isinstance(text, str) else "no text"
                given = "missing" if text is None else given
                raise ConfigError(
                    f"tenant {self.tenant}: key_sha256 is {given}; allowed: 64 hexadecimal digits, or a list "
                    "of such (octavo tenants new-key prints a key and its line)"
                )
            found.append(bytes.fromhex(text))
        if digest_of("") in found:
            raise ConfigError(
                f"tenant {self.tenant}: key_sha256 is that of an empty key; allowed: a random key "
                "(octavo tenants new-key prints one and its line)"
            )
        return tuple(dict.fromkeys(found))


def _short(given: object) -> str:
    return "missing" if given is None else shown(given)
