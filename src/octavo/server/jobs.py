"""The jobs of a supervisor's child processes, as JSON on their standard input.

    ["EngineJob", {"options": {...}, "settings": {...}, ...}]

The settings are already checked. A job has only the path of a tenants file: the process reads the file again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_type_hints

import msgspec

from octavo.config import StartOptions
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineJob:
    """The job of the engine's process."""

    model: str | None
    options: StartOptions
    settings: ServerSettings
    num_front_ends: int


@dataclass(frozen=True, slots=True)
class FrontEndJob:
    """The job of a front end. `listener`, `channel` and `scrapes` are descriptors of its process; `metrics`
    is the folder of the counts of all front ends."""

    index: int
    options: StartOptions
    settings: ServerSettings
    listener: int
    channel: int
    engine_pid: int
    metrics: Path
    scrapes: int | None = None  # a listener for /metrics only


def encode_job(job: EngineJob | FrontEndJob) -> bytes:
    """The job as JSON."""
    return msgspec.json.encode([type(job).__name__, _fields_of(job)], enc_hook=_encode)


def decode_job(data: bytes) -> EngineJob | FrontEndJob:
    """The job from JSON. Raises ConfigError if a tenants file can no longer be read."""
    kind, fields = msgspec.json.decode(data)
    if kind == EngineJob.__name__:
        return _decoded(EngineJob, fields)
    return _decoded(FrontEndJob, fields)


def _fields_of(value: object) -> dict[str, object]:
    """The fields by name; settings become dictionaries too."""
    assert dataclasses.is_dataclass(value)
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {
        name: _fields_of(one) if isinstance(one, StartOptions | ServerSettings) else one
        for name, one in fields.items()
    }


def _encode(value: object) -> object:
    if isinstance(value, TenantRegistry):
        return str(value.path)
    assert isinstance(value, Path), f"a setting of type {type(value).__name__} cannot be written"
    return str(value)


def _decoded(kind: type[T], fields: dict[str, object]) -> T:
    """Decode field by field, because some annotations name types that their own modules do not import."""
    hints = get_type_hints(kind, localns={"TenantRegistry": TenantRegistry})
    values = {
        name: _decoded(hints[name], value)
        if hints[name] in (StartOptions, ServerSettings) and isinstance(value, dict)
        else msgspec.convert(value, hints[name], dec_hook=_decode)
        for name, value in fields.items()
    }
    return kind(**values)


def _decode(kind: type, value: object) -> object:
    assert kind in (Path, TenantRegistry)
    return TenantRegistry(Path(str(value))) if kind is TenantRegistry else Path(str(value))
