"""`octavo generate`: one prompt, streamed to standard output."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from octavo.cli.answerer import Answerer
from octavo.cli.place import Place, answering
from octavo.cli.terminal import write
from octavo.params import SamplerParams


def run(place: Place, params: SamplerParams, prompt: str) -> None:
    """Write the continuation of `prompt` and a line break. Ctrl-c ends it early, and the command with it."""
    with answering(place, params) as answerer:
        try:
            asyncio.run(_stream_text(answerer, prompt))
        finally:
            write("\n")


async def _stream_text(answerer: Answerer, prompt: str) -> None:
    async with aclosing(answerer.complete(prompt)) as pieces:
        async for piece in pieces:
            write(piece.text)
