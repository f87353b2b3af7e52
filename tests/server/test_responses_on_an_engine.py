"""What a double cannot show of responses: the same server over the tiny model, blocks and a disk."""

from __future__ import annotations

import asyncio
import threading
from unittest import mock

import httpx
import pytest
from tests.engine.chats import open_chat
from tests.engine.peek import ask, stats_of
from tests.engine.served import Turnstile
from tests.engine.test_sessions import _copy_as_killed
from tests.server.conftest import Edge
from tests.server.response_shapes import checked, events_of
from tests.waiting import until, wait_until

from octavo.conversations.record import ConversationKind
from octavo.retention.transfers import Transfers
from octavo.server.settings import ServerSettings

BLOCK = 16
LONG = "tell me of the blocks and pages that were bound in leather long ago"


class House:
    """A server over the tiny model; with a folder, what it remembers is there the next time."""

    def __init__(self, folder=None):
        self.chat = open_chat(folder, num_blocks=120)
        self.edge = Edge(self.chat.llm, ServerSettings())

    def ask(self, given, **fields):
        body = {"input": given, "max_output_tokens": 12, "seed": 7, **fields}
        answer = self.edge.post("/v1/responses", body)
        assert answer.status_code == 200, answer.text
        return answer

    def say(self, given, **fields):
        return checked(self.ask(given, **fields).json())

    def num_said(self, response_id):
        """Tokens: all but an end token."""
        return len(self.chat.llm.sessions._store.find("", response_id, ConversationKind.RESPONSE).tokens)

    def looked(self, question):
        async def work():
            return await ask(self.chat.llm, question)

        return asyncio.run(work())

    def names(self, response_id):
        """Of the full blocks that the response holds on to."""
        return self.looked(lambda s, now: list(s.session_table.get(response_id).names))

    def held(self, response_id):
        """The blocks that are held for it now."""
        return self.looked(
            lambda s, now: {b for pin in s.session_table.get(response_id).pins for b in pin.holder.blocks}
        )

    def close(self):
        self.chat.close()


@pytest.fixture
def house():
    house = House()
    yield house
    house.close()


def cached(response):
    return response["usage"]["input_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_ten_turns_that_append_compute_what_is_new_and_at_most_one_block(house, stream):
    told, said = None, 0
    for number, word in enumerate(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    ):
        fields = {"stream": stream} | ({"previous_response_id": told["id"]} if told else {})
        answer = house.ask(LONG if number == 0 else word, **fields)
        told = checked(events_of(answer)[-1]["response"] if stream else answer.json())
        usage = told["usage"]
        assert (usage["reused_tokens"], "fallback" in usage) == (said, False)
        assert cached(told) >= max(0, said - BLOCK)
        assert usage["input_tokens"] - said <= len(LONG) + 10
        said = house.num_said(told["id"])
        assert usage["total_tokens"] - said in (0, 1)
    assert said > 10 * BLOCK


def test_branches_of_a_response_hold_its_blocks_together(house):
    root = house.say(LONG)
    before = house.edge.get("/v1/kv").json()
    left = house.say("left", previous_response_id=root["id"])
    right = house.say("right", previous_response_id=root["id"])
    for branch in (left, right):
        assert branch["usage"]["reused_tokens"] == house.num_said(root["id"])
        assert cached(branch) >= house.num_said(root["id"]) - BLOCK
    num_common = len(house.names(root["id"]))
    assert num_common >= 3
    held = [house.held(one["id"]) for one in (root, left, right)]
    assert held[0] == held[1] & held[2] != set()
    assert held[1] != held[2]
    after = house.edge.get("/v1/kv").json()
    union, num_held = len(held[0] | held[1] | held[2]), sum(map(len, held))
    assert (after["counts"]["held"], after["held_by_sessions"]) == (union, num_held)
    assert num_held - union == 2 * len(held[0]), "each branch holds what is common, and it is there once"
    own = union - len(held[0])
    assert after["counts"]["held"] - before["counts"]["held"] == own


def test_without_store_the_blocks_of_the_previous_one_are_found_too(house):
    root = house.say(LONG)
    free = house.say("left", previous_response_id=root["id"], store=False)
    assert free["usage"]["reused_tokens"] == house.num_said(root["id"])
    assert cached(free) >= house.num_said(root["id"]) - BLOCK
    assert house.looked(lambda s, now: [one.session_id for one in s.session_table]) == [root["id"]]


def test_a_rewritten_history_is_reported_and_computed_again(house):
    root = house.say(LONG, instructions="be brief")
    told = house.say("more", previous_response_id=root["id"], instructions="tell all")
    assert "they differ after" in told["usage"]["fallback"]
    assert told["usage"]["reused_tokens"] == 0
    assert cached(told) < BLOCK
    again = house.say("more", previous_response_id=root["id"], instructions="be brief")
    assert "fallback" not in again["usage"]
    assert again["usage"]["reused_tokens"] == house.num_said(root["id"])


def test_an_answer_is_the_same_stored_or_not_and_as_a_chat(house):
    stored, free = house.say(LONG), house.say(LONG, store=False)
    fields = {"max_tokens": 12, "seed": 7}
    chat = house.edge.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], **fields}
    )
    texts = {one["output"][0]["content"][0]["text"] for one in (stored, free)}
    assert texts == {chat.json()["choices"][0]["message"]["content"]}


def test_cancelling_ends_it_in_the_engine_and_it_can_be_gone_on_from(house):
    gate = house.chat.engine.executor = Turnstile(house.chat.engine.executor)

    async def scenario():
        transport = httpx.ASGITransport(house.edge.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            gate.permits = threading.Semaphore(8)
            body = {"input": LONG, "max_output_tokens": 400, "ignore_eos": True, "seed": 7}
            running = asyncio.ensure_future(client.post("/v1/responses", json=body))
            await until(lambda: len(gate.plans) >= 8)  # the ninth step waits: it has said a few tokens
            [response_id] = house.chat.llm.sessions._store._turns.values()

            async def is_in_progress():
                shown = await client.get(f"/v1/responses/{response_id}")
                return shown.json()["status"] == "in_progress"

            await until(is_in_progress)
            cancelled = await gate.stepping(client.post(f"/v1/responses/{response_id}/cancel"))
            gate.permits.release(1000)
            return cancelled, await running

    cancelled, answer = asyncio.run(asyncio.wait_for(scenario(), 30))
    assert (cancelled.status_code, answer.json()) == (200, cancelled.json())
    told = checked(cancelled.json())
    assert told["status"] == "cancelled"
    assert told["usage"]["output_tokens"] < 400
    wait_until(lambda: stats_of(house.chat.llm).running == 0)
    more = house.say("more", previous_response_id=told["id"])
    assert (more["status"] in ("completed", "incomplete"), more["usage"]["reused_tokens"]) == (True, 0)
    assert len(house.edge.get(f"/v1/responses/{more['id']}/input_items").json()["data"]) == 3


def test_branches_share_their_blocks_after_the_process_was_killed(tmp_path):
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        house = House(tmp_path / "first")
        root = house.say(LONG)
        left = house.say("left", previous_response_id=root["id"])
        said = {one["id"]: house.num_said(one["id"]) for one in (root, left)}
        store = house.chat.llm.sessions._store

        def would_be_found():
            slots = house.looked(
                lambda s, now: [
                    (s.transfers.tier.slot_of(n), n) for one in s.session_table for n in one.names
                ]
            )
            return all(slot is not None and house.chat.store.is_listed(slot, name) for slot, name in slots)

        wait_until(would_be_found)
        asyncio.run(_synced(store, left["id"]))
        _copy_as_killed(house.chat, tmp_path / "copy")
        house.close()
        again = House(tmp_path / "copy")
        try:
            assert again.edge.get(f"/v1/responses/{left['id']}").json() == left
            right = again.say("right", previous_response_id=root["id"])
            more = again.say("more", previous_response_id=left["id"])
            for told, source in ((right, root), (more, left)):
                assert told["usage"]["reused_tokens"] == said[source["id"]]
                assert cached(told) >= said[source["id"]] - BLOCK
            common = again.names(root["id"])
            assert len(common) >= 3
            assert again.names(right["id"])[: len(common)] == again.names(more["id"])[: len(common)] == common
            assert again.edge.get("/v1/sessions").json()["total"] == 0
        finally:
            again.close()


async def _synced(store, response_id):
    assert await asyncio.wrap_future(store.sync(response_id))
