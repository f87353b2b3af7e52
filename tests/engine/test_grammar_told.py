"""What a grammar costs and does is told: in the statistics, and in the view of a request."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.engine.served import Turnstile
from tests.wanted import request_for

from octavo.config import StartOptions
from octavo.errors import InvalidRequest
from octavo.grammar import of_schema
from octavo.params import SamplerParams
from octavo.serving.start import start_engine

SCHEMA = {
    "type": "object",
    "properties": {"a_long_name_of_a_property": {"type": "string", "minLength": 200, "maxLength": 400}},
    "required": ["a_long_name_of_a_property"],
    "additionalProperties": False,
}


def test_statistics_and_the_view_of_a_request_show_what_a_grammar_does() -> None:
    llm = start_engine(None, StartOptions(kv_memory_bytes=2**26, context_length=512), lambda phase: None)

    async def run() -> None:
        schema = {**SCHEMA, "$defs": {"a": {"type": "string", "format": "password"}}}
        params = SamplerParams(max_tokens=300, temperature=0.0, grammar=of_schema(schema, "response_format"))
        gate = llm.engine.executor = Turnstile(llm.engine.executor)
        gate.permits = threading.Semaphore(0)
        stream = await llm.submit(request_for(await llm.encode("As JSON:"), params))
        views = []
        for _ in range(3):
            await gate.stepping(anext(stream))
            views.append(await gate.stepping(llm.control.request(stream.request_id)))
        gate.permits.release(1000)
        async for _ in stream:
            pass
        assert views[-1] is not None
        assert views[-1].follows == "response_format (json_schema)"
        assert views[-1].not_enforced == ("format (at #/$defs/a)",)
        [sequence] = views[-1].sequences
        assert sequence.in_grammar
        assert sequence.forced_tokens >= 3  # {"a_long_name...": "
        stats = await llm.stats()
        assert stats.forced_tokens >= sequence.forced_tokens
        assert stats.mask_seconds > 0.0
        assert (stats.grammars_compiled, stats.grammar_refusals) == (1, {})
        assert stats.grammar_seconds > 0.0
        for schema in ({"not": {}}, {"zzz": 1, "not": {}}, {"$ref": "#/nowhere"}):
            with pytest.raises(InvalidRequest):
                await llm.submit(request_for([1], SamplerParams(grammar=of_schema(schema))))
        refusals = (await llm.stats()).grammar_refusals
        assert refusals["not"] >= 1
        assert set(refusals) == {"not", "$ref"}

    try:
        asyncio.run(run())
    finally:
        llm.close()
