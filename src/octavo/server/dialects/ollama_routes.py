"""The routes of Ollama's API: /api."""

from __future__ import annotations

from typing import Final

from octavo.server.route import Route

OLLAMA_ROUTES: Final[tuple[Route, ...]] = ()
