"""The routes of Anthropic's API: /v1/messages."""

from __future__ import annotations

from typing import Final

from octavo.server.route import Route

ANTHROPIC_ROUTES: Final[tuple[Route, ...]] = ()
