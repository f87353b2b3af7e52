"""The request that a client of the engine makes."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.params import SamplerParams
from octavo.types import Request


def request_for(prompt: Sequence[int], params: SamplerParams, **fields: object) -> Request:
    """Of this prompt, not submitted yet; `fields` as those of `Request`."""
    return Request(prompt=tuple(prompt), params=params, **fields)  # type: ignore[arg-type]
