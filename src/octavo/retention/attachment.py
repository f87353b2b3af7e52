"""The points of a request's life at which a feature takes part; a plain request has no attachment."""

from __future__ import annotations

from typing import Protocol

from octavo.memory.names import NameChain
from octavo.types import Request


class Attachment(Protocol):
    """A feature attached to a request when it is accepted."""

    def on_last_token(self, request: Request) -> str:
        """The last token is here, and its blocks are still held. Returns why the request fails now, or ""."""

    def on_end(self, request: Request, num_computed: int, chain: NameChain, *, is_well: bool) -> None:
        """The request has ended and its blocks are released. K and V of its first `num_computed` tokens,
        prompt and output, were computed; `chain` has their names. `is_well`: it ended by its last token, not
        by cancellation, failure, or timeout."""
