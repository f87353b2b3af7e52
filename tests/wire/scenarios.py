"""All scenarios, by family: a file of goldens each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.wire.anthropic_scenarios import ANTHROPIC
from tests.wire.chat_scenarios import CHAT
from tests.wire.completion_scenarios import COMPLETIONS
from tests.wire.edge_scenarios import DESCRIPTION, EDGE
from tests.wire.exchange import Scenario
from tests.wire.memory_scenarios import MEMORY
from tests.wire.ollama_scenarios import OLLAMA
from tests.wire.responses_scenarios import RESPONSES

FAMILIES: Final[Mapping[str, tuple[Scenario, ...]]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "ollama": OLLAMA,
    "memory": MEMORY,
    "edge": EDGE,
    "description": DESCRIPTION,
}
