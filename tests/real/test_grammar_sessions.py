"""A session's turn that follows a grammar, after the session was suspended to disk and came back: the tokens
and logprobs that the same prompt gets without a session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.wanted import request_for

from octavo.config import StartOptions
from octavo.engine.outputs import Delta
from octavo.engine.stream import DeltaStream
from octavo.grammar import of_schema
from octavo.params import SamplerParams
from octavo.serving.start import start_engine
from octavo.types import ChatMessage

pytestmark = pytest.mark.full

SCHEMA = {
    "type": "object",
    "properties": {"city_of_residence": {"type": "string", "maxLength": 12}, "is_large": {"type": "boolean"}},
    "required": ["city_of_residence", "is_large"],
    "additionalProperties": False,
}


async def told(stream: DeltaStream) -> tuple[list[tuple[int, float | None]], str]:
    deltas: list[Delta] = [delta async for delta in stream]
    tokens = [(info.token, info.logprob) for delta in deltas for info in delta.tokens]
    return tokens, "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_turn_after_a_resume_is_the_same_as_its_prompt_alone(tmp_path: Path, logprobs: int | None) -> None:
    options = StartOptions(
        kv_memory_bytes=2**26, context_length=512, disk_cache=str(tmp_path), disk_size_bytes=2**26
    )
    llm = start_engine(None, options, lambda phase: None)
    grammar = of_schema(SCHEMA)
    params = SamplerParams(max_tokens=80, temperature=0.8, seed=3, grammar=grammar, logprobs=logprobs)

    async def run() -> None:
        said = [ChatMessage("user", "Anna lives in Rome, a large city. Where does she live? As JSON.")]
        first = await llm.sessions.turn(request_for((), params, session="new"), said)
        _, text = await told(first.stream)
        said += [ChatMessage("assistant", text), ChatMessage("user", "And Bob, who lives in Oslo? As JSON.")]
        await llm.sessions.suspend("", first.session_id)
        await llm.sessions.resume("", first.session_id)
        second = await llm.sessions.turn(request_for((), params, session=first.session_id), said)
        assert second.reused_tokens > len(first.prompt)
        resumed = await told(second.stream)
        assert resumed == await told(await llm.submit(request_for(second.prompt, params)))
        assert resumed[1].startswith('{"city_of_residence": "')

    try:
        asyncio.run(run())
    finally:
        llm.close()
