"""The front doors over the tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.engine.served import LetterTokenizer, serve_tiny, started_tiny

import octavo.api.async_llm
import octavo.api.llm
from octavo import LLM, AsyncLLM


@pytest.fixture
def make_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def make(tokenizer: LetterTokenizer | None = None, seed: int | None = None, **engine: object) -> LLM:
        monkeypatch.setattr(octavo.api.llm, "build_engine", lambda *given: started_tiny(tokenizer, **engine))
        made.append(LLM(seed=seed))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture
def make_async_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AsyncLLM]]:
    made: list[AsyncLLM] = []

    def make(seed: int | None = None, **engine: object) -> AsyncLLM:
        monkeypatch.setattr(octavo.api.async_llm, "start_engine", lambda *given: serve_tiny(**engine).llm)  # type: ignore[arg-type]
        made.append(AsyncLLM(seed=seed))
        return made[-1]

    yield make
    for llm in made:
        llm.shutdown()
