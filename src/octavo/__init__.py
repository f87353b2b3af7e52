"""Octavo: a language-model serving engine whose heart is paged KV memory.

Names are loaded on first use, so that `import octavo` costs milliseconds:

    from octavo import LLM, SamplerParams
    LLM("smollm2-135m").generate(["Once upon a time"], SamplerParams(max_tokens=32))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from octavo.engine.client import EngineClient
    from octavo.engine.llm import LLM
    from octavo.params import BeamParams, SamplerParams

_HOMES = {
    "LLM": "octavo.engine.llm",
    "EngineClient": "octavo.engine.client",
    "BeamParams": "octavo.params",
    "SamplerParams": "octavo.params",
}

__all__ = ["LLM", "BeamParams", "EngineClient", "SamplerParams", "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}; it has: {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
