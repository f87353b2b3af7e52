"""`octavo generate`: one prompt, streamed to standard output."""

from __future__ import annotations

import asyncio

from octavo.cli.terminal import running_engine, write
from octavo.config import StartOptions
from octavo.engine.outputs import ServedModel
from octavo.errors import RequestFailed
from octavo.params import SamplerParams
from octavo.types import FinishReason


def run(model: str | None, options: StartOptions, params: SamplerParams, prompt: str) -> None:
    """Write the continuation of `prompt` and a line break. Ctrl-c ends it early."""
    with running_engine(model, options) as llm:
        try:
            asyncio.run(stream_text(llm, prompt, params))
        except KeyboardInterrupt:
            pass
        finally:
            write("\n")


async def stream_text(model: ServedModel, prompt: str, params: SamplerParams) -> None:
    """Write deltas as they come; raises RequestFailed."""
    stream = await model.submit(await model.encode(prompt), params)
    try:
        async for delta in stream:
            write(delta.text)
            if delta.finish is FinishReason.ERROR:
                raise RequestFailed(delta.error)
    finally:
        stream.cancel()
