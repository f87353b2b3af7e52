"""The asynchronous front door: the answers of an engine alone, in three kinds; nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest
from tests.engine.served import LetterTokenizer, alone, poisoned_model, wait_until

from octavo import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from octavo.errors import EngineStopped, InvalidRequest, OctavoError, RequestFailed

T = TypeVar("T")
ABC = LetterTokenizer().encode("abc")


def run(made: Coroutine[object, object, T]) -> T:
    return asyncio.run(asyncio.wait_for(made, 30))


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **fields)  # type: ignore[arg-type]


async def all_of(llm: AsyncLLM, params: SamplingParams, request_id: str | None = None) -> list[RequestOutput]:
    return [output async for output in llm.generate("abc", params, request_id)]


def idle(llm: AsyncLLM) -> bool:
    return llm._client.engine.idle and not llm._streams and llm.stats.running == 0


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_each_kind_of_output_tells_the_whole_answer(
    make_async_llm: Callable[..., AsyncLLM], kind: RequestOutputKind
) -> None:
    llm = make_async_llm()
    outputs = run(all_of(llm, greedy(6, output_kind=kind), "mine"))
    (wanted,) = alone(ABC, 6, ignore_eos=True)
    told = [output.outputs[0].token_ids for output in outputs]
    if kind is RequestOutputKind.DELTA:
        assert [token for tokens in told for token in tokens] == wanted.tokens
        assert all(len(tokens) <= 1 for tokens in told)
    else:
        assert told[-1] == wanted.tokens
        assert all(tokens == wanted.tokens[: len(tokens)] for tokens in told)
        assert len(told) == (1 if kind is RequestOutputKind.FINAL_ONLY else 6)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {output.request_id for output in outputs} == {"mine"}
    assert (outputs[-1].prompt, outputs[-1].prompt_token_ids) == ("abc", ABC)
    assert outputs[-1].outputs[0].finish_reason == "length"
    wait_until(lambda: idle(llm))


def test_choices_come_interleaved_and_a_request_ends_once(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm(seed=3)
    outputs = run(all_of(llm, SamplingParams(n=3, max_tokens=5, ignore_eos=True)))
    assert [len(choice.token_ids) for choice in outputs[-1].outputs] == [5, 5, 5]
    assert sum(output.finished for output in outputs) == 1
    assert len({choice.text for choice in outputs[-1].outputs}) == 3


def test_many_at_once_are_each_answered_as_alone(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    async def together() -> list[list[RequestOutput]]:
        return await asyncio.gather(*(all_of(llm, greedy(length)) for length in range(1, 9)))

    for length, outputs in enumerate(run(together()), 1):
        (wanted,) = alone(ABC, length, ignore_eos=True)
        assert outputs[-1].outputs[0].token_ids == wanted.tokens


def test_leaving_the_iteration_frees_the_request(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    async def leave() -> None:
        async for output in llm.generate("abc", greedy(100), "left"):
            if len(output.outputs[0].token_ids) == 2:
                break
        while llm._streams:
            await asyncio.sleep(0)

    run(leave())
    wait_until(lambda: idle(llm))
    assert llm.stats.output_tokens < 100


def test_an_aborted_request_ends_and_says_so(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    async def abort() -> RequestOutput:
        async for output in llm.generate("abc", greedy(100), "gone"):
            if not output.finished:
                await llm.abort(["unknown", "gone"])
        return output

    assert run(abort()).outputs[0].finish_reason == "abort"
    wait_until(lambda: idle(llm))


def test_a_cancelled_task_cancels_its_request(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    async def cancelled() -> None:
        task = asyncio.create_task(all_of(llm, greedy(100)))
        while not llm.stats.output_tokens:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancelled())
    wait_until(lambda: idle(llm))


def test_an_id_is_one_requests_while_it_runs(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    async def twice() -> None:
        async for _ in llm.generate("abc", greedy(3), "same"):
            with pytest.raises(InvalidRequest, match="request_id is 'same', and such a request runs"):
                await all_of(llm, greedy(3), "same")
        assert len(await all_of(llm, greedy(3), "same")) == 3
        with pytest.raises(InvalidRequest, match="request_id is 5; allowed: text"):
            await all_of(llm, greedy(3), 5)  # type: ignore[arg-type]

    run(twice())


@pytest.mark.parametrize(
    "prompt, params, said",
    [
        (5, None, "a prompt is 5; allowed: text"),
        ("abc", 5, "sampling_params holds 5"),
        ([900], None, "token id 900 in prompt"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(
    make_async_llm: Callable[..., AsyncLLM], prompt: object, params: object, said: str
) -> None:
    llm = make_async_llm()

    async def ask() -> None:
        async for _ in llm.generate(prompt, params):  # type: ignore[arg-type]
            pass

    with pytest.raises(InvalidRequest, match=said):
        run(ask())
    assert idle(llm)
    assert llm.stats.steps == 0


def test_a_request_that_fails_raises_and_the_next_one_is_answered(
    make_async_llm: Callable[..., AsyncLLM],
) -> None:
    from tests.engine.served import POISON

    llm = make_async_llm(model=poisoned_model())

    async def fail() -> None:
        async for _ in llm.generate([5, POISON], greedy(5)):
            pass

    with pytest.raises(RequestFailed):
        run(fail())
    wait_until(lambda: idle(llm))
    harmless = greedy(3, logit_bias={POISON: -100.0})
    assert len(run(all_of(llm, harmless))[-1].outputs[0].token_ids) == 3


def test_embeddings_are_those_of_the_engine(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()
    found = run(llm.embed("abc"))
    assert sum(number**2 for number in found.outputs.embedding) == pytest.approx(1.0, abs=1e-6)
    assert found.prompt_token_ids == ABC


def test_pins_and_views_are_there_in_the_same_words(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    async def look() -> int:
        assert await llm.control.pins() == []
        return (await llm.control.kv()).capacity

    assert run(look()) > 0
    assert llm.sessions is llm._client.sessions


def test_after_shutdown_everything_says_so(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()
    with llm as entered:
        assert entered is llm
    llm.shutdown()
    for call in (all_of(llm, greedy(3)), llm.embed("abc")):
        with pytest.raises(EngineStopped, match="this AsyncLLM was shut down"):
            run(call)


def test_shutting_down_ends_what_is_open(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    async def shut() -> None:
        async with llm:
            async for _ in llm.generate("abc", greedy(100)):
                llm.shutdown()

    with pytest.raises(OctavoError):
        run(shut())
