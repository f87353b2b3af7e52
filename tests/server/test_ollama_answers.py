"""/api/chat and /api/generate: what is asked becomes what the chat path takes, its answer Ollama's shapes."""

import asyncio
import functools
import json
import re

import httpx
import pytest
from tests.server.ollama_asking import (
    FIGURES,
    HI,
    MODEL,
    chat,
    generate,
    lines,
    params,
    whole,
)
from tests.waiting import LIMIT_S, until

from octavo.errors import EngineStopped, QueueFull
from octavo.params import SamplerParams
from octavo.server.sse import EventStream


# -- shapes --------------------------------------------------------------------------------------------------
def test_a_chat_is_a_stream_of_lines_whose_last_has_the_figures(edge):
    *pieces, last = lines(chat(edge))
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hello wörld!"
    assert all(piece["message"]["role"] == "assistant" for piece in (*pieces, last))
    assert [piece["done"] for piece in pieces] == [False] * len(pieces)
    assert all(set(piece) == {"model", "created_at", "message", "done"} for piece in pieces)
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert set(last) == {"model", "created_at", "message", "done", "done_reason"} | FIGURES


def test_a_stream_joins_to_the_whole_and_says_the_same_of_its_end(edge):
    said = whole(chat(edge, stream=False))
    *pieces, last = lines(chat(edge))
    assert said["message"]["content"] == "".join(piece["message"]["content"] for piece in pieces)
    for name in ("model", "done", "done_reason", "load_duration", "prompt_eval_count", "eval_count"):
        assert said[name] == last[name]
    assert set(said) == set(last)


def test_a_prompt_is_a_chat_of_one_message_and_answers_as_response(edge):
    said = whole(generate(edge, system="Be brief.", stream=False))
    assert said["response"] == "Hello wörld!"
    assert set(said) == {"model", "created_at", "response", "done", "done_reason"} | FIGURES
    assert edge.model.encodings[-1].text == "system:Be brief.\nuser:hi\n"
    *pieces, last = lines(generate(edge))
    assert "".join(piece["response"] for piece in pieces) + last["response"] == "Hello wörld!"
    assert edge.model.encodings[-1].text == "user:hi\n"


def test_a_raw_prompt_is_given_to_the_model_as_it_is(edge):
    said = whole(generate(edge, prompt="<|im_start|>x", raw=True, stream=False))
    encoding = edge.model.encodings[-1]
    assert (encoding.text, encoding.options, encoding.add_special_tokens) == ("<|im_start|>x", None, True)
    assert (said["response"], said["prompt_eval_count"]) == ("Hello wörld!", len("<|im_start|>x"))


def test_a_model_without_a_chat_template_takes_prompts_and_no_chats(edge, monkeypatch):
    monkeypatch.setattr(type(edge.model), "has_chat_template", False)
    assert whole(generate(edge, stream=False))["response"] == "Hello wörld!"
    assert edge.model.encodings[-1].text == "hi"
    refused = chat(edge)
    assert (refused.status_code, "/api/generate" in refused.json()["error"]) == (400, True)
    assert "no chat template" in generate(edge, system="Be brief.").json()["error"]
    assert "tools" not in edge.post("/api/show", {"model": MODEL}).json()["capabilities"]


def test_figures_are_measured_and_times_are_rfc_3339(edge):
    said = whole(chat(edge, stream=False))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", said["created_at"])
    assert (said["prompt_eval_count"], said["eval_count"]) == (
        len("user:hi\n"),
        len("Hello wörld!".encode()),
    )
    assert said["load_duration"] == 0
    assert 0 < said["prompt_eval_duration"] < said["total_duration"]
    parts = said["prompt_eval_duration"] + said["eval_duration"]
    assert abs(said["total_duration"] - parts) <= 2, "nanoseconds, rounded"


def test_a_model_is_named_with_its_tag_or_without_and_the_answer_names_it_alike(edge):
    for name in (MODEL, f"{MODEL}:latest"):
        assert whole(chat(edge, model=name, stream=False))["model"] == name
    for name in ("other", f"{MODEL}:8b", f"{MODEL}:latest:latest", MODEL.upper()):
        answer = chat(edge, model=name)
        assert answer.status_code == 404
        assert answer.json()["error"].startswith(f"model '{name}' not found")


def test_logprobs_come_with_the_tokens_that_they_are_of(edge):
    said = whole(chat(edge, logprobs=True, top_logprobs=2, stream=False))
    entries = said["logprobs"]
    assert len(entries) == said["eval_count"]
    assert (entries[0]["token"], entries[0]["logprob"]) == ("H", -0.5)
    assert [one["token"] for one in entries[0]["top_logprobs"]] == ["H", "I"]
    streamed = [entry for piece in lines(chat(edge, logprobs=True, top_logprobs=2)) for entry in
                piece.get("logprobs", [])]  # fmt: skip
    assert streamed == entries
    assert "logprobs" not in whole(chat(edge, stream=False))


# -- what is asked -------------------------------------------------------------------------------------------
def test_what_options_do_not_say_is_ollamas_own(edge):
    chat(edge)
    assert params(edge) == SamplerParams(temperature=0.8, top_k=40, top_p=0.9)
    generate(edge, raw=True, options={"temperature": 0})
    assert params(edge) == SamplerParams(temperature=0.0, top_k=40, top_p=0.9)


def test_every_option_that_is_done_is_given_to_the_engine(edge):
    options = {
        "num_ctx": 1000, "num_predict": 7, "temperature": 0.5, "top_k": 3.0, "top_p": 0.4, "min_p": 0.1,
        "seed": 12, "stop": ["a", "b"], "repeat_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": -0.2,
    }  # fmt: skip
    for ask in (chat, generate):
        ask(edge, options=options)
        assert params(edge) == SamplerParams(
            max_tokens=7, temperature=0.5, top_k=3, top_p=0.4, min_p=0.1, seed=12, stop=("a", "b"),
            repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=-0.2,
        )  # fmt: skip


@pytest.mark.parametrize("given", [-1, -2, None])
def test_an_answer_without_an_end_runs_to_the_end_of_the_context(edge, given):
    chat(edge, options={"num_predict": given})
    assert params(edge).max_tokens is None


def test_a_seed_of_minus_one_is_any(edge):
    chat(edge, options={"seed": -1})
    assert params(edge).seed is None
    chat(edge, options={"seed": 0})
    assert params(edge).seed == 0


def test_one_stop_string_may_stand_for_a_list_and_ends_the_answer(edge):
    said = whole(chat(edge, options={"stop": "wö"}, stream=False))
    assert (said["message"]["content"], said["done_reason"]) == ("Hello ", "stop")
    said = whole(chat(edge, options={"num_predict": 2}, stream=False))
    assert (said["message"]["content"], said["done_reason"]) == ("He", "length")


@pytest.mark.parametrize("given", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}])
def test_a_format_is_what_the_output_follows(edge, given):
    shaped = (
        {"type": "json_object"}
        if given == "json"
        else {"type": "json_schema", "json_schema": {"schema": given}}
    )
    edge.chat(response_format=shaped)
    grammar = params(edge).grammar
    assert grammar is not None
    for ask in (chat, generate):
        ask(edge, format=given)
        assert params(edge).grammar == grammar
    generate(edge, format=given, raw=True)
    assert params(edge).grammar == grammar
    chat(edge, format="")
    assert params(edge).grammar is None


# -- nothing is asked ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "keep_alive, reason",
    [
        (None, "load"),
        ("5m", "load"),
        (-1, "load"),
        (0, "unload"),
        ("0", "unload"),
        ("0s", "unload"),
        (0.0, "unload"),
    ],
)
def test_without_messages_or_prompt_the_model_is_there(edge, keep_alive, reason):
    for answer in (
        chat(edge, messages=[], keep_alive=keep_alive),
        edge.post("/api/chat", {"model": MODEL, "keep_alive": keep_alive}),
    ):
        said = whole(answer)
        assert (said["done"], said["done_reason"]) == (True, reason)
        assert said["message"] == {"role": "assistant", "content": ""}
    for prompt in ("", None):
        said = whole(generate(edge, prompt=prompt, keep_alive=keep_alive))
        assert (said["done"], said["done_reason"], said["response"]) == (True, reason, "")
    assert edge.model.submitted == []


# -- what goes wrong -----------------------------------------------------------------------------------------
def test_an_error_in_a_stream_is_its_last_line(edge):
    edge.model.failure = "it broke"
    for answer in (chat(edge), generate(edge)):
        *pieces, last = lines(answer)
        assert last == {"error": "it broke"}
        assert pieces
        assert not any(piece["done"] for piece in pieces)
    failed = chat(edge, stream=False)
    assert (failed.status_code, failed.json()) == (500, {"error": "it broke"})


def test_an_answer_that_a_deadline_has_cut_says_so(edge):
    edge.model.times_out_after = 3
    assert lines(chat(edge))[-1]["done_reason"] == "timeout"
    assert whole(chat(edge, stream=False))["done_reason"] == "timeout"


@pytest.mark.parametrize("refusal, status", [(QueueFull("full"), 429), (EngineStopped("draining"), 503)])
def test_shortage_is_reported_in_ollamas_shape(edge, refusal, status):
    edge.model.refusal = refusal
    for ask in (chat, generate):
        answer = ask(edge)
        assert (answer.status_code, answer.json()) == (status, {"error": str(refusal)})


async def call(edge, path, body, see, leave):
    """One raw ASGI call: `see` is told what is sent, and the client is gone once `leave` is set."""
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        if not parts:
            await leave.wait()
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message):
        see(message.get("body") or b"")

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "scheme": "http", "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    await asyncio.wait_for(edge.app(scope, receive, send), LIMIT_S)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_client_that_leaves_stops_its_answer(edge, path):
    async def scenario():
        edge.model.hold = asyncio.Event()  # never set: the stream stays in its second step
        leave, sent = asyncio.Event(), []
        asked = {"messages": HI} if path == "/api/chat" else {"prompt": "hi"}
        task = asyncio.create_task(call(edge, path, {"model": MODEL, **asked}, sent.append, leave))
        await until(lambda: any(sent))
        assert not edge.model.submitted[0].cancelled
        leave.set()
        await task

    asyncio.run(scenario())
    assert edge.model.submitted[0].cancelled


def test_a_stream_on_which_nothing_comes_stays_alive_and_stays_lines_of_json(edge, monkeypatch):
    quick = functools.partial(EventStream, keep_alive_s=0.01)
    monkeypatch.setattr("octavo.server.answer_driver.EventStream", quick)

    async def scenario():
        edge.model.hold, sent = asyncio.Event(), []

        def see(data):
            sent.append(data)
            if sent.count(b" ") == 3:
                edge.model.hold.set()

        await call(edge, "/api/chat", {"model": MODEL, "messages": HI}, see, asyncio.Event())
        return b"".join(sent).decode()

    objects = [json.loads(line) for line in asyncio.run(scenario()).splitlines()]
    assert "".join(one["message"]["content"] for one in objects) == "Hello wörld!"
    assert objects[-1]["done"]


# -- sessions ------------------------------------------------------------------------------------------------
def test_a_chat_may_be_a_sessions_turn_and_a_prompt_may_not(edge):
    headers = {"X-Octavo-Session": "new"}
    answer = edge.post("/api/chat", {"model": MODEL, "messages": HI}, headers=headers)
    assert answer.headers["x-octavo-session"]
    assert answer.headers["x-octavo-request"]
    refused = edge.post("/api/generate", {"model": MODEL, "prompt": "hi"}, headers=headers)
    assert (refused.status_code, "X-Octavo-Session" in refused.json()["error"]) == (400, True)


def test_other_streams_run_on_while_requests_are_refused(edge):
    async def scenario():
        edge.model.hold = asyncio.Event()
        transport = httpx.ASGITransport(edge.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            body = {"model": MODEL, "messages": HI}
            running = asyncio.create_task(client.post("/api/chat", json=body))
            await until(lambda: edge.model.submitted)
            for wrong in ({"options": {"mirostat": 2}}, {"model": "x"}, {"messages": 3}, {"think": "a"}):
                refused = await asyncio.wait_for(client.post("/api/chat", json=body | wrong), LIMIT_S)
                assert refused.status_code in (400, 404)
            assert not running.done()
            edge.model.hold.set()
            return await running

    pieces = lines(asyncio.run(scenario()))
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hello wörld!"
