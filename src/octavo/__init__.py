"""Octavo: a language-model serving engine, centred on paged KV memory.

Names are loaded on first use, so that `import octavo` costs milliseconds:

    from octavo import LLM, SamplingParams
    LLM("smollm2-135m").generate(["Once upon a time"], SamplingParams(max_tokens=32))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from octavo.api.async_llm import AsyncLLM
    from octavo.api.llm import LLM
    from octavo.api.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        Logprob,
        RequestMetrics,
        RequestOutput,
    )
    from octavo.api.params import (
        BeamSearchParams,
        PoolingParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )
    from octavo.api.prompts import TextPrompt, TokensPrompt
    from octavo.api.settings import AsyncEngineArgs, EngineArgs
    from octavo.config import StartOptions
    from octavo.params import BeamParams

_MODULES = {
    "AsyncEngineArgs": "octavo.api.settings",
    "AsyncLLM": "octavo.api.async_llm",
    "BeamParams": "octavo.params",
    "BeamSearchOutput": "octavo.api.outputs",
    "BeamSearchParams": "octavo.api.params",
    "BeamSearchSequence": "octavo.api.outputs",
    "CompletionOutput": "octavo.api.outputs",
    "EmbeddingOutput": "octavo.api.outputs",
    "EmbeddingRequestOutput": "octavo.api.outputs",
    "EngineArgs": "octavo.api.settings",
    "LLM": "octavo.api.llm",
    "Logprob": "octavo.api.outputs",
    "PoolingParams": "octavo.api.params",
    "RequestMetrics": "octavo.api.outputs",
    "RequestOutput": "octavo.api.outputs",
    "RequestOutputKind": "octavo.api.params",
    "SamplingParams": "octavo.api.params",
    "StartOptions": "octavo.config",
    "StructuredOutputsParams": "octavo.api.params",
    "TextPrompt": "octavo.api.prompts",
    "TokensPrompt": "octavo.api.prompts",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "BeamParams",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "Logprob",
    "PoolingParams",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StartOptions",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}; it has: {', '.join(__all__)}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
