"""The asynchronous front door: the answers of an engine alone, in three kinds; nothing is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import pytest
from tests.engine.peek import stats_of
from tests.engine.served import LetterTokenizer, alone, is_cancelled, poisoned_model
from tests.tiny import CONTEXT
from tests.waiting import LIMIT_S, until, wait_until

from octavo import AsyncLLM, RequestOutput, RequestOutputKind, SamplingParams
from octavo.errors import EngineStopped, InvalidRequest, OctavoError, RequestFailed

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
ABC = LetterTokenizer().encode("abc")


def run(made: Coroutine[object, object, T]) -> T:
    return asyncio.run(asyncio.wait_for(made, 30))


def greedy(max_tokens: int, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **fields)  # type: ignore[arg-type]


async def all_of(llm: AsyncLLM, params: SamplingParams, request_id: str | None = None) -> list[RequestOutput]:
    return [output async for output in llm.generate("abc", params, request_id)]


def idle(llm: AsyncLLM) -> bool:
    return llm._client.engine.idle and not llm._running and stats_of(llm._client).running == 0


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_each_kind_of_output_shows_the_whole_answer(
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
    permits = llm._client.engine.executor.permits = threading.Semaphore(5)  # type: ignore[attr-defined]

    async def leave() -> None:
        async for output in llm.generate("abc", greedy(100), "left"):
            if len(output.outputs[0].token_ids) == 2:
                break
        await until(lambda: is_cancelled(llm._client.engine))
        permits.release(100)
        await until(lambda: not llm._running)

    run(leave())
    wait_until(lambda: idle(llm))
    assert stats_of(llm._client).output_tokens < 100


def test_an_aborted_request_ends_and_says_so(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()
    permits = llm._client.engine.executor.permits = threading.Semaphore(5)  # type: ignore[attr-defined]

    async def abort() -> RequestOutput:
        async for output in llm.generate("abc", greedy(100), "gone"):
            if not output.finished:
                await llm.abort(["unknown", "gone"])
                permits.release(100)
        return output

    assert run(abort()).outputs[0].finish_reason == "abort"
    wait_until(lambda: idle(llm))


class SlowLetters(LetterTokenizer):
    """Text becomes tokens when `go` is set; `begun` says that somebody waits."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        self.begun.set()
        assert self.go.wait(LIMIT_S)
        return super().encode(text, add_bos)


async def aborted_while_it_is_read(
    llm: AsyncLLM, asked: Coroutine[object, object, T], monkeypatch: pytest.MonkeyPatch
) -> T:
    slow = SlowLetters()
    monkeypatch.setattr(llm._client, "tokenizer", slow)
    task = asyncio.create_task(asked)
    await asyncio.to_thread(slow.begun.wait, 20)
    await llm.abort("gone")
    slow.go.set()
    return await task


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_request_aborted_while_its_prompt_is_read_says_so(
    make_async_llm: Callable[..., AsyncLLM], monkeypatch: pytest.MonkeyPatch, kind: RequestOutputKind
) -> None:
    llm = make_async_llm()
    asked = all_of(llm, greedy(400, output_kind=kind), "gone")
    last = run(aborted_while_it_is_read(llm, asked, monkeypatch))[-1]
    assert last.finished
    assert last.outputs[0].finish_reason == "abort"
    wait_until(lambda: idle(llm))
    assert stats_of(llm._client).output_tokens < 400


def test_an_embedding_aborted_while_its_prompt_is_read_is_not_computed(
    make_async_llm: Callable[..., AsyncLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_async_llm()
    with pytest.raises(RequestFailed, match="the request 'gone' was aborted"):
        run(aborted_while_it_is_read(llm, llm.embed("abc", request_id="gone"), monkeypatch))
    wait_until(lambda: idle(llm))
    assert stats_of(llm._client).steps == 0


@pytest.mark.parametrize("by_abort", [True, False])
def test_an_embedding_that_is_ended_while_it_runs_frees_its_request(
    make_async_llm: Callable[..., AsyncLLM], by_abort: bool
) -> None:
    llm = make_async_llm()
    turnstile = llm._client.engine.executor
    turnstile.open.clear()  # type: ignore[attr-defined]

    async def end() -> None:
        task = asyncio.create_task(llm.embed("abc", request_id="gone"))
        await asyncio.to_thread(turnstile.reached.wait, LIMIT_S)  # type: ignore[attr-defined]
        with pytest.raises(InvalidRequest, match="request_id is 'gone', and such a request runs"):
            await llm.embed("abc", request_id="gone")
        if by_abort:
            await llm.abort(["gone"])
        else:
            task.cancel()
        with pytest.raises(RequestFailed if by_abort else asyncio.CancelledError):
            await task
        assert not llm._running
        turnstile.open.set()  # type: ignore[attr-defined]
        assert len((await llm.embed("abc", request_id="gone")).outputs.embedding) > 0

    run(end())
    wait_until(lambda: idle(llm))


def test_an_output_that_would_pass_the_context_ends_with_it(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm(num_blocks=64)
    last = run(all_of(llm, greedy(CONTEXT, output_kind=RequestOutputKind.FINAL_ONLY)))[-1]
    assert last.outputs[0].finish_reason == "length"
    assert len(last.outputs[0].token_ids) == CONTEXT - len(ABC)


UNCLOSED = """
import asyncio
from tests.engine.served import serve_tiny
import octavo.api.async_llm
from octavo import AsyncLLM, SamplingParams

octavo.api.async_llm.start_engine = lambda *given: serve_tiny().llm
llm = AsyncLLM()

async def main():
    async for output in llm.generate("abc", SamplingParams(max_tokens=2, ignore_eos=True)):
        pass
    print(len(output.outputs[0].token_ids))

asyncio.run(main())
"""


def test_a_program_that_does_not_shut_down_ends_without_a_word() -> None:
    command = [sys.executable, "-c", UNCLOSED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_a_cancelled_task_cancels_its_request(make_async_llm: Callable[..., AsyncLLM]) -> None:
    llm = make_async_llm()

    permits = llm._client.engine.executor.permits = threading.Semaphore(5)  # type: ignore[attr-defined]

    async def cancelled() -> None:
        task = asyncio.create_task(all_of(llm, greedy(100)))
        await until(lambda: stats_of(llm._client).output_tokens)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: is_cancelled(llm._client.engine))
        permits.release(100)

    run(cancelled())
    wait_until(lambda: idle(llm))
    assert stats_of(llm._client).output_tokens < 100


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
    assert stats_of(llm._client).steps == 0


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
    permits = llm._client.engine.executor.permits = threading.Semaphore(5)  # type: ignore[attr-defined]

    def let_the_step_end() -> None:
        wait_until(lambda: llm._client.submitter.host._loop._stopping)
        permits.release()

    async def shut() -> None:
        async with llm:
            async for _ in llm.generate("abc", greedy(100)):
                llm.shutdown()

    ending = threading.Thread(target=let_the_step_end)
    ending.start()
    with pytest.raises(OctavoError):
        run(shut())
    ending.join()
