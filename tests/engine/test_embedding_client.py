"""Lists of prompts become vectors through the client, beside whatever else it serves; nothing is left of a
list that fails or whose client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from tests.engine.served import POISON, Served, poisoned_model, serve_tiny
from tests.engine.test_client import greedy, nothing_is_left, prompt_of
from tests.tiny import CONTEXT, Answer, random_prompt, run, tiny_engine
from tests.waiting import LIMIT_S
from tests.wanted import request_for

from octavo.engine.outputs import ModelCard
from octavo.errors import InvalidRequest, QueueFull, RequestFailed, RequestTooLarge, TimedOut
from octavo.kernels.native_ops import NativeOps
from octavo.memory.quota import TenantPolicy
from octavo.params import BeamParams, Pooling, SamplerParams, Timeouts
from octavo.serving.embedding import EmbeddingOptions, embed_all, normalised, vector_of
from octavo.types import Request

SIZE = 64


def with_card(served: Served, pooling: Pooling = Pooling.LAST) -> Served:
    served.llm.card = ModelCard(hidden_size=SIZE, pooling=pooling)
    return served


@pytest.fixture
def served() -> Iterator[Served]:
    served = with_card(serve_tiny())
    yield served
    served.turnstile.open.set()
    served.llm.close()


def alone(prompt: list[int], pooling: Pooling = Pooling.LAST) -> np.ndarray:
    request = Request(1, tuple(prompt), SamplerParams(pooling=pooling), 1, 0)
    answer: Answer = run(tiny_engine(NativeOps()), [request])[1, 0]
    return vector_of(answer.embedding)


def test_a_long_list_comes_back_in_order_with_the_bits_of_each_alone(served: Served) -> None:
    rng = np.random.default_rng(1)
    prompts = [random_prompt(rng, int(rng.integers(1, 60))) for _ in range(150)]

    async def scenario() -> None:
        stream = await served.llm.submit(request_for(prompt_of(1), greedy(60)))
        found = await embed_all(served.llm, prompts, EmbeddingOptions(Pooling.MEAN))
        for prompt, one in list(zip(prompts, found, strict=True))[::10]:
            assert one.vector.tobytes() == alone(prompt, Pooling.MEAN).tobytes()
            assert one.usage.num_prompt == len(prompt)
        assert [one.usage.num_prompt for one in found] == [len(prompt) for prompt in prompts]
        stream.cancel()

    asyncio.run(scenario())
    nothing_is_left(served)


def test_pooling_is_the_order_s_and_else_the_model_s(served: Served) -> None:
    with_card(served, Pooling.MEAN)
    prompt = prompt_of(2)
    for order, pooling in (
        (EmbeddingOptions(), Pooling.MEAN),
        (EmbeddingOptions(Pooling.LAST), Pooling.LAST),
    ):
        (one,) = asyncio.run(embed_all(served.llm, [prompt], order))
        assert one.vector.tobytes() == alone(prompt, pooling).tobytes()


def test_dimensions_are_the_first_numbers_made_as_long_as_one(served: Served) -> None:
    prompt = prompt_of(3)
    order = EmbeddingOptions(dimensions=16, normalize=False)
    (raw,) = asyncio.run(embed_all(served.llm, [prompt], order))
    (short,) = asyncio.run(embed_all(served.llm, [prompt], EmbeddingOptions(dimensions=16)))
    assert raw.vector.shape == short.vector.shape == (16,)
    assert short.vector.tobytes() == normalised(raw.vector).tobytes()
    assert abs(float(np.linalg.norm(short.vector.astype(np.float64))) - 1.0) < 1e-6
    for wrong in (0, SIZE + 1):
        with pytest.raises(InvalidRequest, match="1 to 64"):
            asyncio.run(embed_all(served.llm, [prompt], EmbeddingOptions(dimensions=wrong)))


def test_one_prompt_that_fails_takes_its_list_with_it_and_nothing_else() -> None:
    served = with_card(serve_tiny(model=poisoned_model()))

    async def scenario() -> None:
        stream = await served.llm.submit(request_for([5, 6, 7], greedy(1)))
        prompts = [[5, 6, 7] for _ in range(20)]
        with pytest.raises(RequestFailed, match="not finite"):
            await embed_all(served.llm, [*prompts, [5, POISON, 7, 8], *prompts], EmbeddingOptions())
        assert [delta.finish async for delta in stream][-1] is not None

    asyncio.run(scenario())
    nothing_is_left(served)
    served.llm.close()


def test_a_prompt_that_does_not_fit_is_refused_with_its_list(served: Served) -> None:
    whole = prompt_of(4, CONTEXT)
    (one,) = asyncio.run(embed_all(served.llm, [whole], EmbeddingOptions()))
    assert one.vector.tobytes() == alone(whole).tobytes()
    with pytest.raises(RequestTooLarge, match="513 tokens; allowed: 512: this model's maximum context"):
        asyncio.run(embed_all(served.llm, [prompt_of(5), [*whole, 5]], EmbeddingOptions()))
    nothing_is_left(served)


def test_leaving_cancels_what_runs(served: Served) -> None:
    async def scenario() -> None:
        served.turnstile.open.clear()
        prompts = [prompt_of(i) for i in range(300)]
        task = asyncio.create_task(embed_all(served.llm, prompts, EmbeddingOptions()))
        await asyncio.to_thread(served.turnstile.reached.wait, LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        served.turnstile.open.set()

    asyncio.run(scenario())
    nothing_is_left(served)


@pytest.mark.parametrize("tenant", ["", "alice"])
def test_a_short_queue_holds_a_list_up_and_refuses_none_of_it(tenant: str) -> None:
    served = with_card(serve_tiny(rows=2, max_waiting=3, max_queue=1))
    if tenant:
        served.engine.scheduler.tenants.set_policies([TenantPolicy("alice", max_waiting=1)])
    prompts = [prompt_of(i, 1 + i % 30) for i in range(60)]
    found = asyncio.run(embed_all(served.llm, prompts, EmbeddingOptions(), Request(tenant=tenant)))
    assert [one.usage.num_prompt for one in found] == [len(prompt) for prompt in prompts]
    nothing_is_left(served)
    served.llm.close()


def test_a_queue_that_others_fill_refuses_a_list_at_once() -> None:
    served = with_card(serve_tiny(rows=1, max_waiting=1, max_queue=0))

    async def scenario() -> None:
        served.turnstile.open.clear()
        stream = await served.llm.submit(request_for(prompt_of(1), greedy(400)))
        with pytest.raises(QueueFull):
            await embed_all(served.llm, [prompt_of(2), prompt_of(3)], EmbeddingOptions())
        stream.cancel()
        served.turnstile.open.set()

    asyncio.run(scenario())
    nothing_is_left(served)
    served.llm.close()


def test_a_deadline_that_passes_is_reported(served: Served) -> None:
    async def scenario() -> None:
        stream = await served.llm.submit(request_for(prompt_of(1), greedy(300)))
        wanted = Request(timeouts=Timeouts(total=1e-6))
        with pytest.raises(TimedOut):
            await embed_all(served.llm, [prompt_of(2, 300)], EmbeddingOptions(), wanted)
        stream.cancel()

    asyncio.run(scenario())
    nothing_is_left(served)


def test_what_a_tenant_embeds_is_found_by_it_alone(served: Served) -> None:
    prompt = prompt_of(6, 70)
    served.engine.scheduler.tenants.set_policies([TenantPolicy("alice"), TenantPolicy("bob")])
    cached = []
    for tenant, salt in (("alice", ""), ("alice", ""), ("bob", ""), ("alice", "s")):
        (one,) = asyncio.run(
            embed_all(served.llm, [prompt], EmbeddingOptions(), Request(tenant=tenant, cache_salt=salt))
        )
        cached.append(one.usage.num_cached)
    assert cached == [0, 64, 0, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 2},
        {"logprobs": 1},
        {"prompt_logprobs": 0},
        {"stop": "a"},
        {"top_k": 5},
        {"min_tokens": 1, "max_tokens": 1},
        {"ignore_eos": True},
        {"logit_bias": {5: 1.0}},
        {"stop_token_ids": [5]},
        {"beams": BeamParams(), "temperature": 0.0},
    ],
)
def test_what_makes_no_sense_alongside_pooling_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="allowed with pooling"):
        SamplerParams(pooling=Pooling.LAST, **fields)  # type: ignore[arg-type]


def test_pooling_is_one_of_two_words_and_means_one_token() -> None:
    assert SamplerParams(pooling="mean") == SamplerParams(pooling=Pooling.MEAN, max_tokens=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="allowed: last, mean"):
        SamplerParams(pooling="cls")  # type: ignore[arg-type]


def test_two_choices_of_an_embedding_are_refused(served: Served) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidRequest, match="n is 2; allowed with pooling: 1"):
            await served.llm.submit(request_for([5, 6], SamplerParams(pooling=Pooling.LAST), n=2))

    asyncio.run(scenario())
