"""What the ledger tells and takes over HTTP, and how a timeout reaches a client."""

import pytest

from octavo.errors import PinRefused


def test_the_pool_its_map_and_its_requests_are_reported(edge):
    kv = edge.get("/v1/kv").json()
    assert kv["counts"] == {"total": 10, "held": 3, "cached": 2, "free": 5}
    drawn = edge.get("/v1/kv/map").json()
    assert len(drawn["states"]) == len(drawn["owner"]) == 10
    assert drawn["owners"][drawn["owner"][0]] == "request 0, choice 0"


def test_the_pool_is_resized_in_blocks_or_bytes(edge):
    assert edge.request("PATCH", "/v1/kv", json={"blocks": 12}).json()["counts"]["total"] == 12
    assert edge.request("PATCH", "/v1/kv", json={"bytes": 5 * 368_640}).json()["counts"]["total"] == 5
    refused = edge.request("PATCH", "/v1/kv", json={"blocks": 2})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "resize_refused")
    for body in ({}, {"blocks": 5, "bytes": 5}, {"blocks": 0}, {"blocks": 10**30}, {"blocks": "5"}):
        assert edge.request("PATCH", "/v1/kv", json=body).status_code == 400


def test_a_live_request_is_reported_with_its_table_and_listed_without(edge, model):
    assert edge.complete().headers["x-octavo-request"] == "0"
    model.submitted[0].ended = False
    listed = edge.get("/v1/requests").json()["data"]
    assert [view["request_id"] for view in listed] == [0]
    assert listed[0]["sequences"][0]["table"] == []
    one = edge.get("/v1/requests/0").json()
    assert one["sequences"][0]["table"] == [{"block": 4, "holders": 2, "published": True}]


@pytest.mark.parametrize("given", ["99", "abc", "-1", "1" * 30, "%C2%B2"])
def test_an_unknown_request_is_a_404_that_says_where_to_look(edge, given):
    answer = edge.get(f"/v1/requests/{given}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_request"
    assert "/v1/requests lists" in answer.json()["error"]["message"]


def test_a_pin_is_made_listed_renewed_and_deleted(edge, model):
    made = edge.post("/v1/kv/pins", {"name": "greeting", "prompt": "x" * 40, "ttl": 60.0})
    assert made.status_code == 201
    assert (made.json()["num_blocks"], made.json()["num_tokens"]) == (2, 40)
    assert [pin["name"] for pin in edge.get("/v1/kv/pins").json()["data"]] == ["greeting"]
    renewed = edge.request("PATCH", "/v1/kv/pins/greeting", json={"ttl": 500.0})
    assert renewed.json()["seconds_left"] == 500.0
    assert edge.request("DELETE", "/v1/kv/pins/greeting").status_code == 200
    assert edge.get("/v1/kv/pins").json()["data"] == []
    gone = edge.request("DELETE", "/v1/kv/pins/greeting")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_pin")


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": "ab"}, (97, 98)),
        ({"tokens": [1, 2, 3]}, (1, 2, 3)),
        ({"messages": [{"role": "user", "content": "x"}]}, tuple(b"user:x\n")),
    ],
)
def test_a_pin_takes_its_prompt_in_three_ways(edge, model, fields, tokens):
    assert edge.post("/v1/kv/pins", {"name": "a", **fields}).status_code == 201
    assert model.control.orders[0].tokens == tokens


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "x"}, "name: Field required"),
        ({"name": "a"}, "given: none of them; allowed: exactly one of"),
        ({"name": "a", "prompt": "x", "tokens": [1]}, "given: prompt, tokens; allowed: exactly one of"),
        ({"name": "a/b", "prompt": "x"}, "name is 'a/b'; allowed: 1 to 64 letters"),
        ({"name": "a", "prompt": "x", "ttl": 0.0}, "ttl is 0.0; allowed: 1.0 to"),
        ({"name": "a", "prompt": "x", "strength": "cold"}, "strength is 'cold'; allowed: hot, warm"),
        ({"name": "a", "prompt": ["x", "y"]}, "allowed: one prompt"),
        ({"name": "a", "tokens": "x"}, "allowed: one prompt"),
        ({"name": "a", "tokens": [9999]}, "token id 9999"),
        ({"name": "a", "prompt": "x", "extra": 1}, "extra: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_pin_is_refused_in_words(edge, body, message):
    answer = edge.post("/v1/kv/pins", body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_a_pin_beyond_the_budget_is_a_conflict_that_says_what_is_missing(edge, model):
    model.refusal = PinRefused("pin a needs 5 blocks and 3 are missing")
    answer = edge.post("/v1/kv/pins", {"name": "a", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pin_refused")
    assert "3 are missing" in answer.json()["error"]["message"]


def test_timeouts_reach_the_engine(edge, model):
    edge.complete(timeout=5.0, queue_timeout=1.5, ttft_timeout=2)
    timeouts = model.submitted[0].timeouts
    assert (timeouts.total, timeouts.queue, timeouts.first_token) == (5.0, 1.5, 2.0)
    answer = edge.chat(timeout=-1.0)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "timeout is -1.0; allowed: above 0, up to 86,400 seconds"


def test_what_was_made_before_the_timeout_is_given_with_its_reason(edge, model):
    model.times_out_after = 3
    answer = edge.complete().json()
    assert answer["choices"][0]["text"] == "Hel"
    assert answer["choices"][0]["finish_reason"] == "timeout"


def test_a_timeout_with_nothing_made_is_a_408_that_says_why(edge, model):
    model.times_out_after = 0
    answer = edge.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "timeout")
    assert "passed after" in answer.json()["error"]["message"]
    assert "timeout passed after" in edge.chat(stream=True).text


def test_usage_shows_what_the_answer_cost_in_memory(edge):
    usage = edge.chat().json()["usage"]
    assert {"cached_tokens", "preemptions", "blocks_peak", "block_seconds"} <= usage.keys()


def test_events_and_pins_are_metrics(edge):
    text = edge.get("/metrics").text
    assert 'octavo_blocks_pinned{model_name="fake-model"} 0.0' in text
    assert 'octavo_evictions_total{model_name="fake-model"} 0.0' in text
