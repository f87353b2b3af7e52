"""The routes of OpenAI's newer API: /v1/responses."""

from __future__ import annotations

from typing import Final

from octavo.server.route import Route

RESPONSES_ROUTES: Final[tuple[Route, ...]] = ()
