"""All scenes, by family: a file of goldens each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.wire.anthropic_scenes import ANTHROPIC
from tests.wire.chat_scenes import CHAT
from tests.wire.completion_scenes import COMPLETIONS
from tests.wire.edge_scenes import DESCRIPTION, EDGE
from tests.wire.exchange import Scene
from tests.wire.memory_scenes import MEMORY
from tests.wire.ollama_scenes import OLLAMA
from tests.wire.responses_scenes import RESPONSES

FAMILIES: Final[Mapping[str, tuple[Scene, ...]]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "ollama": OLLAMA,
    "memory": MEMORY,
    "edge": EDGE,
    "description": DESCRIPTION,
}
