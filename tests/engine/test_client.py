"""The asynchronous client keeps its promises: one end for every choice, refusals before the queue, nobody
left waiting."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest
from tests.engine.peek import stats_of
from tests.engine.served import POISON, Served, alone, is_cancelled, poisoned_model, read, sent, serve_tiny
from tests.tiny import CONTEXT, EOS, VOCAB, random_prompt
from tests.waiting import turns, until, wait_until
from tests.wanted import request_for

from octavo.engine.port import Resize
from octavo.errors import EngineStopped, InvalidRequest, QueueFull, RequestTooLarge
from octavo.params import SamplerParams
from octavo.types import ChatMessage, FinishReason

LONG = 400  # tokens; more than any test waits for


@pytest.fixture
def served() -> Iterator[Served]:
    served = serve_tiny()
    yield served
    served.turnstile.open.set()
    served.llm.close()


def prompt_of(seed: int, length: int = 40) -> list[int]:
    return random_prompt(np.random.default_rng(seed), length)


def greedy(max_tokens: int, **fields: object) -> SamplerParams:
    fields = {"temperature": 0.0, "logprobs": 3, "ignore_eos": True, **fields}
    return SamplerParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def nothing_is_left(served: Served) -> None:
    """No holder, no sequence, and a sound ledger."""
    wait_until(lambda: stats_of(served.llm).blocks_held == 0 and served.engine.idle)
    assert stats_of(served.llm).running == stats_of(served.llm).waiting == 0
    served.engine.scheduler.check()


def test_a_stream_shows_what_the_engine_made_bit_for_bit(served: Served) -> None:
    async def scenario() -> None:
        streams = [await served.llm.submit(request_for(prompt_of(i), greedy(10 + i))) for i in range(6)]
        told = await asyncio.gather(*(read(stream) for stream in streams))
        for i, (one,) in enumerate(told):
            (wanted,) = alone(prompt_of(i), 10 + i, ignore_eos=True)
            assert one.answer.essence == wanted.essence
            assert one.text == "".join(chr(ord("a") + t % 26) for t in wanted.tokens if t != EOS)
            assert one.finishes == [FinishReason.LENGTH]

    asyncio.run(scenario())
    nothing_is_left(served)


def test_cancelling_ends_one_stream_and_touches_no_other(served: Served) -> None:
    async def scenario() -> None:
        permits = served.turnstile.permits = threading.Semaphore(9)
        doomed = await served.llm.submit(request_for(prompt_of(1), greedy(LONG)))
        taken = await sent(served, request_for(prompt_of(2), greedy(30)))
        first = await anext(doomed)
        assert first.finish is None
        for _ in range(3):
            doomed.cancel()
        permits.release(LONG)
        assert (await read(doomed))[0].finishes == [FinishReason.CANCELLED]
        (told,) = await read(await taken)
        assert told.answer.essence == alone(prompt_of(2), 30, ignore_eos=True)[0].essence
        doomed.cancel()  # long ended

    asyncio.run(scenario())
    nothing_is_left(served)


def test_a_cancelled_request_frees_its_blocks_within_two_steps(served: Served) -> None:
    async def scenario() -> None:
        plans, permits = served.turnstile.plans, threading.Semaphore(0)
        served.turnstile.permits = permits
        doomed = await served.llm.submit(request_for(prompt_of(1, 100), greedy(LONG)))
        taken = await sent(served, request_for(prompt_of(2), greedy(LONG)))
        permits.release(9)
        await anext(doomed)
        other = await taken
        await anext(other)
        await until(lambda: len(plans) == 10)
        assert len(plans[9].chunks) == 2, "a step is on its way, with both"
        doomed.cancel()
        permits.release(2 * LONG)
        await read(doomed)
        held = [plan for plan in plans[10:] if len(plan.chunks) == 2]
        assert not held, "the step after a cancel still computed the request"
        other.cancel()

    asyncio.run(scenario())
    nothing_is_left(served)


def test_stop_strings_end_choices_one_by_one(served: Served) -> None:
    prompt, seed, n, length = prompt_of(7), 11, 4, 60
    params = {"temperature": 1.0, "seed": seed, "ignore_eos": True}
    served.turnstile.permits = threading.Semaphore(0)

    async def texts(stops: tuple[str, ...]) -> list[tuple[str, FinishReason, str | int | None]]:
        asked = greedy(length, **params, stop=stops)
        stream = await served.llm.submit(request_for(prompt, asked, n=n))
        told = await served.turnstile.stepping(read(stream, n))  # so the engine cannot run far ahead
        return [(one.text, one.finishes[0], one.stop) for one in told]

    whole = [text for text, _, _ in asyncio.run(texts(()))]
    # Two letters that end some choices early, late or not at all.
    stops = tuple(dict.fromkeys([whole[1][4:6], whole[2][20:22]]))
    wanted = []
    for text in whole:
        ends = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
        wanted.append(
            (text[: min(ends)[0] - len(min(ends)[1])], FinishReason.STOP, min(ends)[1])
            if ends
            else (text, FinishReason.LENGTH, None)
        )
    assert len({len(text) for text, _, _ in wanted}) > 2, "the case shows nothing"
    nothing_is_left(served)
    before = stats_of(served.llm).output_tokens
    assert asyncio.run(texts(stops)) == wanted
    served.turnstile.permits.release(100)
    nothing_is_left(served)
    computed = stats_of(served.llm).output_tokens - before
    assert computed < n * length, "a choice that had ended went on"
    assert computed >= sum(len(text) for text, _, _ in wanted)


def test_the_queue_is_bounded_and_opens_again() -> None:
    served = serve_tiny(max_queue=1, rows=2)

    async def scenario() -> None:
        served.turnstile.open.clear()
        # 2 rows, 1 waits
        streams = [await sent(served, request_for(prompt_of(i), greedy(4))) for i in range(3)]
        with pytest.raises(QueueFull, match="max_queue"):
            await served.llm.submit(request_for(prompt_of(9), greedy(4)))
        served.turnstile.open.set()
        for stream in streams:
            await read(await stream)
        assert (await read(await served.llm.submit(request_for(prompt_of(9), greedy(4)))))[0].finishes

    asyncio.run(scenario())
    nothing_is_left(served)
    served.llm.close()


@pytest.mark.parametrize(
    "prompt, fields, error",
    [
        ([], {}, InvalidRequest),
        ([97], {}, InvalidRequest),
        ([-1], {}, InvalidRequest),
        ([5] * CONTEXT, {}, RequestTooLarge),
        ([5], {"stop_token_ids": (97,)}, InvalidRequest),
        ([5], {"logit_bias": ((97, 1.0),)}, InvalidRequest),
    ],
)
def test_a_wrong_request_is_refused_before_the_queue(
    served: Served, prompt: list[int], fields: dict[str, object], error: type[Exception]
) -> None:
    async def scenario() -> None:
        with pytest.raises(error):
            await served.llm.submit(request_for(prompt, SamplerParams(**fields)))  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert stats_of(served.llm).steps == 0
    assert asyncio.run(served.llm.drain(0.0)), "something was queued"


def test_more_choices_than_rows_are_refused(served: Served) -> None:
    with pytest.raises(InvalidRequest, match="max_seqs"):
        asyncio.run(served.llm.submit(request_for([5], greedy(4), n=17)))


def test_text_longer_than_any_context_is_refused_before_it_is_tokenised(served: Served) -> None:
    with pytest.raises(RequestTooLarge):
        asyncio.run(served.llm.encode("a" * 10**6))
    with pytest.raises(InvalidRequest, match="template"):
        asyncio.run(served.llm.encode_chat([ChatMessage("user", "hi")]))
    assert asyncio.run(served.llm.encode("abc")) == [26, 27, 28]


def test_several_prompts_are_encoded_up_to_the_first_that_is_too_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    plain = served.llm.tokenizer.encode
    monkeypatch.setattr(
        served.llm.tokenizer, "encode", lambda text, bos=True: (encoded.append(text), plain(text))[1]
    )
    assert asyncio.run(served.llm.encode_all(["a", "bc"], tenant="t")) == [[26], [27, 28]]
    encoded.clear()
    with pytest.raises(RequestTooLarge, match="maximum context length"):  # as text: none is encoded
        asyncio.run(served.llm.encode_all(["a", "b", "c" * 10**6]))
    assert encoded == []
    with pytest.raises(RequestTooLarge, match="maximum context length"):  # as tokens: none behind it
        asyncio.run(served.llm.encode_all(["a", "b" * CONTEXT, "c"]))
    assert encoded == ["a", "b" * CONTEXT]


def test_draining_lets_running_answers_end_and_takes_no_more(served: Served) -> None:
    async def scenario() -> None:
        served.turnstile.open.clear()
        stream = await served.llm.submit(request_for(prompt_of(1), greedy(20)))
        draining = asyncio.create_task(served.llm.drain(20))
        await until(lambda: served.llm.submitter._closed)
        with pytest.raises(EngineStopped, match="shutting down"):
            await served.llm.submit(request_for(prompt_of(2), greedy(4)))
        served.turnstile.open.set()
        assert await draining
        assert (await read(stream))[0].finishes == [FinishReason.LENGTH]

    asyncio.run(scenario())
    nothing_is_left(served)


def test_draining_cancels_what_does_not_end_in_time(served: Served) -> None:
    async def scenario() -> None:
        served.turnstile.open.clear()
        stream = await served.llm.submit(request_for(prompt_of(1), greedy(LONG), n=2))
        draining = asyncio.create_task(served.llm.drain(0.05))
        await until(lambda: is_cancelled(served.engine))
        served.turnstile.open.set()
        assert not await draining
        assert [one.finishes for one in await read(stream, 2)] == [[FinishReason.CANCELLED]] * 2

    asyncio.run(scenario())
    nothing_is_left(served)


def test_closing_ends_open_streams_with_an_error(served: Served) -> None:
    async def scenario() -> None:
        permits = served.turnstile.permits = threading.Semaphore(3)
        running = await served.llm.submit(request_for(prompt_of(1), greedy(LONG), n=2))
        await anext(running)
        await until(lambda: len(served.turnstile.plans) == 4)
        unread = await sent(served, request_for(prompt_of(2), greedy(4)))
        closing = asyncio.create_task(asyncio.to_thread(served.llm.close))
        await until(lambda: served.llm.submitter.host._loop._stopping)
        permits.release()
        for one in await read(running, 2):
            assert one.finishes == [FinishReason.ERROR]
            assert "stopped" in one.error
        with pytest.raises(EngineStopped):
            await unread
        await closing
        with pytest.raises(EngineStopped):
            await served.llm.submit(request_for(prompt_of(3), greedy(4)))
        with pytest.raises(EngineStopped):
            await served.llm.encode("abc")

    asyncio.run(scenario())


def test_many_event_loops_in_many_threads_share_one_engine(served: Served) -> None:
    wrong: list[str] = []

    async def ask(thread: int) -> None:
        streams = {
            i: await served.llm.submit(request_for(prompt_of(i), greedy(16)))
            for i in range(thread, thread + 5)
        }
        for i, stream in streams.items():
            if (await read(stream))[0].answer.essence != wanted[i].essence:
                wrong.append(f"thread {thread}, prompt {i}")

    wanted = {i: alone(prompt_of(i), 16, ignore_eos=True)[0] for i in range(12)}
    threads = [threading.Thread(target=lambda i=i: asyncio.run(ask(i))) for i in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert stats_of(served.llm).requests_finished == 40
    nothing_is_left(served)


def test_a_request_whose_event_loop_was_closed_is_cancelled(served: Served) -> None:
    async def submit_and_leave() -> None:
        served.turnstile.open.clear()
        await served.llm.submit(request_for(prompt_of(1), greedy(LONG)))
        await asyncio.to_thread(served.turnstile.reached.wait)

    asyncio.run(submit_and_leave())  # the loop is closed now, and the first token not made yet
    served.turnstile.open.set()
    nothing_is_left(served)
    assert stats_of(served.llm).output_tokens <= 2
    stream_of_another_loop = served.llm.submit(request_for(prompt_of(2), greedy(4)))

    async def again() -> None:
        assert (await read(await stream_of_another_loop))[0].finishes == [FinishReason.LENGTH]

    asyncio.run(again())


@pytest.mark.parametrize("depth", [0, 1])
def test_a_poisoned_request_fails_alone_and_its_blocks_are_not_found_again(depth: int) -> None:
    model = poisoned_model()
    never = {"logit_bias": ((POISON, -100.0),)}  # whoever answers with the token is poisoned by it
    served = serve_tiny(model=model, depth=depth, step_tokens=32)
    sound = [[token % POISON for token in prompt_of(i, 20 + 9 * i)] for i in range(9)]
    poisoned = [*sound[8], POISON, *sound[0]]  # several blocks are published before the poison
    neighbours = sound[1:7]

    async def scenario() -> None:
        streams = [
            await served.llm.submit(request_for(prompt, greedy(24, **never))) for prompt in neighbours[:3]
        ]
        sick = await served.llm.submit(request_for(poisoned, greedy(24, **never), n=2))
        streams += [
            await served.llm.submit(request_for(prompt, greedy(24, **never))) for prompt in neighbours[3:]
        ]
        for one in await read(sick, 2):
            assert one.finishes == [FinishReason.ERROR]
            assert one.error
            assert not one.answer.tokens
        for prompt, stream in zip(neighbours, streams, strict=True):
            (told,) = await read(stream)
            assert told.answer.essence == alone(prompt, 24, ignore_eos=True, **never)[0].essence
        # The sound beginning of the poisoned prompt is computed again, not taken from the cache.
        (again,) = await read(await served.llm.submit(request_for(sound[8], greedy(8, **never))))
        assert again.answer.cached == 0
        assert again.answer.essence == alone(sound[8], 8, ignore_eos=True, **never)[0].essence

    asyncio.run(scenario())
    nothing_is_left(served)
    served.llm.close()


@pytest.mark.parametrize("num_turns", range(5))  # of the event loop, between the answer and the cancellation
def test_a_cancellation_that_meets_the_answer_is_not_swallowed(
    num_turns: int, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        reply: Future[bool] = Future()
        monkeypatch.setattr(served.engine.inbox, "send", lambda command: reply)
        asking = asyncio.create_task(served.llm.submitter.send(Resize(100)))
        await turns()
        reply.set_result(True)
        await turns(num_turns)
        was_asking = asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled() == was_asking

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"allowed_token_ids": (VOCAB,)}, "token id 97 in allowed_token_ids; allowed: 0 to 96"),
        ({"banned_sequences": ((3, -1),)}, "token id -1 in banned_sequences; allowed: 0 to 96"),
        ({"allowed_token_ids": (7, 7), "banned_sequences": ((7,),)}, "allowed: at least one other"),
        (
            {"allowed_token_ids": (EOS, 5), "stop_token_ids": (5,), "min_tokens": 1, "ignore_eos": False},
            "allowed: at least one other",
        ),
    ],
)
def test_masks_that_leave_no_first_token_are_refused_before_the_queue(
    served: Served, fields: dict[str, object], said: str
) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidRequest, match=said):
            await served.llm.submit(request_for(prompt_of(1), greedy(5, **fields)))

    asyncio.run(scenario())
    nothing_is_left(served)


def test_masks_that_could_forbid_every_token_are_refused_before_anything_is_sent(served: Served) -> None:
    async def scenario() -> None:
        masks = {"allowed_token_ids": (7,), "banned_sequences": ((7, 7, 7),)}
        with pytest.raises(InvalidRequest, match="each of them ends one of banned_sequences") as refused:
            await served.llm.submit(request_for(prompt_of(1), greedy(5, **masks)))
        assert refused.value.param == "allowed_token_ids"
        masks["allowed_token_ids"] = (7, 8)
        (told,) = await read(await served.llm.submit(request_for(prompt_of(1), greedy(5, **masks))))
        assert told.finishes == [FinishReason.LENGTH]

    asyncio.run(scenario())
    nothing_is_left(served)


def test_a_cache_salt_parts_requests_and_is_bounded(served: Served) -> None:
    async def scenario() -> None:
        for salt, cached in (("a", 0), ("b", 0), ("", 0), ("a", 32), ("", 32)):
            (told,) = await read(
                await served.llm.submit(request_for(prompt_of(1), greedy(5), cache_salt=salt))
            )
            assert told.answer.cached == cached, salt
        with pytest.raises(InvalidRequest, match="length of cache_salt is 257; allowed: 0 to 256") as refused:
            await served.llm.submit(request_for(prompt_of(1), greedy(5), cache_salt="x" * 257))
        assert refused.value.param == "cache_salt"

    asyncio.run(scenario())
    nothing_is_left(served)


def test_statistics_of_an_engine_that_has_stopped_are_its_last_and_no_error_is_lost(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await read(await served.llm.submit(request_for(prompt_of(1), greedy(3))))
        before = await served.llm.stats()
        served.llm.close()
        assert before.requests_finished == 1
        assert await served.llm.stats() == before
        gc.collect()  # an exception that nobody has read is logged when its future goes

    asyncio.run(scenario())
    gc.collect()
    assert "never retrieved" not in caplog.text
