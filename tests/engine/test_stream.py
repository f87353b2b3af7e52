"""A reader who is behind is told all the same, in fewer deltas: what waits for it is bounded."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from octavo.engine.assemble import Assembler, Vocabulary
from octavo.engine.outputs import Delta
from octavo.engine.stream import WAITING_MAX, DeltaStream, joined
from octavo.params import SamplerParams
from octavo.types import FinishReason, SampledToken, Update, Usage


def stream_of(n: int = 1) -> DeltaStream:
    vocabulary = Vocabulary(lambda token: f"{token};".encode(), frozenset())
    request = SimpleNamespace(params=SamplerParams(), n=n)
    assembler = Assembler(request, vocabulary)  # type: ignore[arg-type]
    return DeltaStream(1, asyncio.get_running_loop(), assembler, lambda *_: None)


def update(choice: int, *tokens: int, finish: FinishReason | None = None) -> Update:
    sampled = tuple(SampledToken(token, 0.0) for token in tokens)
    return Update(1, choice, sampled, Usage(3, 0, 0, 0), finish)


async def read(stream: DeltaStream) -> list[Delta]:
    return [delta async for delta in stream]


@pytest.mark.parametrize("n", [1, 3, 300])
def test_a_reader_who_is_behind_gets_the_same_in_a_bounded_number_of_deltas(n: int) -> None:
    async def work() -> None:
        stream, most, generator = stream_of(n), max(WAITING_MAX, 4 * n), random.Random(7)
        said: list[list[int]] = [[] for _ in range(n)]
        for number in range(20 * most):
            choice = generator.randrange(n)
            said[choice].append(number)
            stream.feed([update(choice, number)])
            assert len(stream._waiting) <= most
        stream.feed([update(choice, finish=FinishReason.LENGTH) for choice in range(n)])
        told = await read(stream)
        assert len(told) <= most + n
        for choice, tokens in enumerate(said):
            own = [delta for delta in told if delta.choice == choice]
            assert [info.token for delta in own for info in delta.tokens] == tokens
            assert "".join(delta.text for delta in own) == "".join(f"{token};" for token in tokens)
            assert [delta.finish for delta in own] == [None] * (len(own) - 1) + [FinishReason.LENGTH]
            assert own[-1].usage.num_output == len(tokens)

    asyncio.run(work())


def test_a_reader_who_keeps_up_gets_each_delta_as_it_came() -> None:
    async def work() -> None:
        stream = stream_of()
        for number in range(3 * WAITING_MAX):
            coming = asyncio.ensure_future(anext(stream))
            asyncio.get_running_loop().call_soon(stream.feed, [update(0, number)])  # it waits by then
            assert [info.token for info in (await coming).tokens] == [number]
        stream.feed([update(0, finish=FinishReason.LENGTH)])
        assert [delta.finish for delta in await read(stream)] == [FinishReason.LENGTH]
        assert await read(stream) == [], "it stays ended"

    asyncio.run(work())


def test_what_only_one_of_two_deltas_says_is_kept() -> None:
    one, two = Usage(1, 1, 0, 0), Usage(1, 2, 0, 0)
    first = Delta(0, "a", (), one, prompt_logprobs=("x",), embedding=b"e")  # type: ignore[arg-type]
    other = Delta(1, "!", (), one)
    last = Delta(0, "b", (), two, FinishReason.STOP, "b", "why", ("y",))  # type: ignore[arg-type]
    assert joined([first, other, last]) == [
        Delta(0, "ab", (), two, FinishReason.STOP, "b", "why", ("x", "y"), b"e"),  # type: ignore[arg-type]
        other,
    ]
