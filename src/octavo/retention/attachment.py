"""The named points at which a feature takes part in a request that uses it: a plain one passes none."""

from __future__ import annotations

from typing import Protocol

from octavo.memory.names import NameChain
from octavo.types import Request


class Attachment(Protocol):
    """What is attached to a request when it is taken."""

    def on_last_token(self, request: Request) -> str:
        """Its last token is here, and its blocks are still held. Returns why it fails all the same, or ""."""

    def on_end(self, request: Request, num_computed: int, chain: NameChain, *, is_well: bool) -> None:
        """It has ended; of so many of its tokens, prompt and output, K and V were computed, not of those that
        came last. They have these names; its blocks are unheld now. `is_well`: by its last token, else it was
        cancelled, failed, or out of time."""
