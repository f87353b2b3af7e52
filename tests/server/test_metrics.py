"""What a scrape tells: names by Prometheus' rules, each request measured once, no label of a client's."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.engine.served import serve_tiny
from tests.server.conftest import Edge

from octavo import __version__
from octavo.engine.outputs import AgeCounts, Delta, EngineStats, Place
from octavo.server.metrics import Metrics
from octavo.server.settings import ServerSettings
from octavo.types import FinishReason, Phases, Usage

# What vLLM's example dashboards ask for, but for what Octavo has no counterpart of.
VLLM_NAMES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_swapped",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:time_per_output_token_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:request_queue_time_seconds_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_decode_time_seconds_sum",
    "vllm:request_inference_time_seconds_bucket",
    "vllm:request_prompt_tokens_bucket",
    "vllm:request_generation_tokens_bucket",
    "vllm:request_max_num_generation_tokens_sum",
    "vllm:cache_config_info",
    "vllm:lora_requests_info",
}


@pytest.fixture(scope="module")
def tiny():
    served = serve_tiny(rows=16)
    yield lambda **settings: Edge(served.llm, ServerSettings(**settings))
    served.llm.close()


def samples_of(text):
    """Every sample: (name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(text, name, **labels):
    """Of all samples of that name that have these labels."""
    wanted = labels.items()
    return sum(v for (n, pairs), v in samples_of(text).items() if n == name and wanted <= set(pairs))


def test_ages_of_blocks_are_histograms_by_tier():
    ages = AgeCounts((0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1), 100_006.0)
    text = Metrics("m").render(EngineStats(ages_at_hit={Place.DISK: ages})).decode()
    family = "octavo_block_age_at_hit_seconds"
    assert total(text, f"{family}_bucket", tier="disk", le="1.0") == 0
    assert total(text, f"{family}_bucket", tier="disk", le="5.0") == 2
    assert total(text, f"{family}_bucket", tier="disk", le="86400.0") == 2
    assert total(text, f"{family}_count", tier="disk") == 3
    assert total(text, f"{family}_sum", tier="disk") == 100_006.0
    for name in (family, "octavo_block_age_at_eviction_seconds"):
        assert total(text, f"{name}_count", tier="pool") == total(text, f"{name}_count", tier="host") == 0


def test_a_block_that_is_found_again_has_an_age_in_the_scrape(tiny):
    edge = tiny()
    for _ in range(2):
        edge.post("/v1/completions", {"prompt": "abcdefgh" * 6, "max_tokens": 1})
    text = edge.get("/metrics").text
    assert total(text, "octavo_block_age_at_hit_seconds_count", tier="pool") == 2


def test_names_keep_the_rules(make_edge):
    edge = make_edge()
    edge.chat()
    for family in text_string_to_metric_families(edge.get("/metrics").text):
        assert family.documentation, family.name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name), family.name
        assert not re.search(
            r"_(ms|milliseconds|minutes|hours|kib|mib|percent|ratio_total)(_|$)", family.name
        )
        ends = {re.search(r"(_total|_count|_sum|_bucket)?$", s.name).group() for s in family.samples}
        allowed = {"counter": {"_total"}, "histogram": {"_bucket", "_count", "_sum"}, "gauge": {""}}
        assert ends <= allowed[family.type], family.name


def test_all_that_the_engine_shows_has_the_models_name(make_edge):
    edge = make_edge()
    edge.chat()
    told = samples_of(edge.get("/metrics").text)
    without = {name for name, labels in told if ("model_name", "fake-model") not in labels}
    edges_own = ("octavo_http_requests", "octavo_build_info", "process_")
    assert [name for name in without if not name.startswith(edges_own)] == []
    assert {name for name in without if name.startswith("process_")} >= {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
        "process_max_fds",
    }
    assert ("version", __version__) in next(labels for name, labels in told if name == "octavo_build_info")


def test_every_family_is_there_before_the_first_request(make_edge):
    before, after = make_edge(), make_edge()
    after.chat()

    def names(edge):
        text = edge.get("/metrics").text
        return {name for name, _ in samples_of(text) if not name.startswith("octavo_http_requests")}

    assert names(before) == names(after)


def test_each_request_of_an_engine_is_measured_once(tiny):
    edge = tiny()
    body = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    assert edge.complete(prompt="onceupon", n=2, **(body | {"temperature": 1.0})).status_code == 200
    assert edge.complete(prompt=["once", "upon"], **body).status_code == 200
    assert edge.post("/v1/embeddings", {"input": "onceuponatime"}).status_code == 200
    text = edge.get("/metrics").text
    counts = {
        name: total(text, f"octavo_{name}_count")
        for name in (
            "time_to_first_token_seconds",
            "request_seconds",
            "request_queue_seconds",
            "request_load_seconds",
            "request_prefill_seconds",
            "request_decode_seconds",
            "request_inference_seconds",
            "request_prompt_tokens",
            "request_output_tokens",
        )
    }
    assert counts == {
        "time_to_first_token_seconds": 2,  # of requests, and an embedding has no token
        "request_seconds": 3,
        "request_queue_seconds": 4,  # of prompts
        "request_load_seconds": 0,
        "request_prefill_seconds": 4,
        "request_decode_seconds": 4,  # of choices with tokens
        "request_inference_seconds": 5,
        "request_prompt_tokens": 4,
        "request_output_tokens": 5,  # of choices
    }
    assert total(text, "octavo_request_prompt_tokens_sum") == 8 + 4 + 4 + 13
    assert total(text, "octavo_request_output_tokens_sum") == 4 * 5
    assert total(text, "octavo_choices_finished_total", finish_reason="length") == 5
    assert total(text, "octavo_choices_finished_total") == 5


def test_phases_add_up_to_what_the_client_waited_for(tiny):
    edge = tiny()
    assert edge.complete(prompt="once", max_tokens=4, temperature=0, ignore_eos=True).status_code == 200
    text = edge.get("/metrics").text
    queue, prefill, decode, first, whole = (
        total(text, f"octavo_{name}_seconds_sum")
        for name in ("request_queue", "request_prefill", "request_decode", "time_to_first_token", "request")
    )
    assert min(queue, prefill, decode) >= 0.0
    assert queue + prefill <= first + 1e-6
    assert first + decode <= whole + 1e-6


def test_nothing_that_a_client_writes_becomes_a_label(make_edge):
    edge = make_edge()
    planted = "planted-by-a-client"
    edge.get(f"/{planted}")
    edge.request(planted.upper().replace("-", ""), "/v1/models")
    headers = {
        "X-Request-Id": planted,
        "X-Octavo-Session": planted,
        "User-Agent": planted,
        "x-api-key": planted,
    }
    edge.post("/v1/chat/completions", {"model": planted, "messages": [], "user": planted}, headers=headers)
    edge.chat(user=planted, stop=[planted], headers=headers, cache_salt=planted)
    edge.get(f"/v1/sessions/{planted}")
    text = edge.get("/metrics").text
    assert planted not in text
    assert planted.upper().replace("-", "") not in text


def test_metrics_want_a_key_once_there_are_keys(make_edge):
    edge = make_edge(api_keys=("secret",))
    assert edge.get("/metrics").status_code == 401
    assert edge.get("/metrics", headers={"x-api-key": "secret"}).status_code == 200


@pytest.mark.parametrize(
    ("phases", "queue", "load"),
    [
        (Phases(1.0, admitted=3.0, first_token=3.5), 2.0, None),
        (Phases(1.0, loading_begun=1.5, loaded=2.5, admitted=3.0, first_token=3.5), 2.0, 1.0),
        (Phases(1.0), 8.0, None),  # out of time in the queue: it has waited until now
        (Phases(1.0, loading_begun=2.0), 8.0, 7.0),
    ],
)
def test_waiting_is_reported_of_those_too_that_were_never_admitted(monkeypatch, phases, queue, load):
    monkeypatch.setattr("octavo.server.metrics.time.perf_counter", lambda: 9.0)
    metrics = Metrics()
    metrics.watch({}).record(0, Delta(0, "", (), Usage(3, 0, 0, 0, phases=phases), FinishReason.TIMEOUT))
    text = metrics.render(EngineStats()).decode()
    assert total(text, "octavo_request_queue_seconds_sum") == queue
    assert total(text, "octavo_request_load_seconds_count") == (0 if load is None else 1)
    assert total(text, "octavo_request_load_seconds_sum") == (load or 0.0)
    assert total(text, "octavo_choices_finished_total", finish_reason="timeout") == 1


def test_choices_whose_client_left_count_as_cancelled_once():
    metrics = Metrics()
    watch = metrics.watch({})
    watch.record(1, Delta(1, "", (), Usage(3, 0, 0, 0), FinishReason.STOP))
    watch.cancel_rest(3)
    watch.cancel_rest(3)
    text = metrics.render(EngineStats()).decode()
    assert total(text, "octavo_choices_finished_total", finish_reason="cancelled") == 2
    assert total(text, "octavo_choices_finished_total", finish_reason="stop") == 1


def test_vllms_names_show_the_same_numbers(tiny):
    edge = tiny(metrics_compat="vllm")
    edge.complete(prompt="onceupon", max_tokens=5, temperature=0, ignore_eos=True)
    text = edge.get("/metrics").text
    told = samples_of(text)
    assert {name for name, _ in told} >= VLLM_NAMES
    for theirs, ours in (
        ("vllm:request_queue_time_seconds", "octavo_request_queue_seconds"),
        ("vllm:inter_token_latency_seconds", "octavo_inter_token_seconds"),
        ("vllm:e2e_request_latency_seconds", "octavo_request_seconds"),
        ("vllm:request_generation_tokens", "octavo_request_output_tokens"),
    ):
        for end in ("_bucket", "_count", "_sum"):
            of = {labels: value for (name, labels), value in told.items() if name == ours + end}
            assert of
            for labels, value in of.items():
                assert told[theirs + end, tuple(sorted((*labels, ("engine", "0"))))] == value
    for theirs, ours in (
        ("vllm:prompt_tokens_total", "octavo_prompt_tokens_total"),
        ("vllm:generation_tokens_total", "octavo_output_tokens_total"),
        ("vllm:request_success_total", "octavo_choices_finished_total"),
    ):
        assert total(text, theirs) == total(text, ours) > 0
    assert total(text, "vllm:request_success_total", finished_reason="length", model_name="tiny") == 1
    assert 0.0 <= total(text, "vllm:kv_cache_usage_perc") <= 1.0


def test_reasons_that_are_one_to_vllm_are_added_up():
    metrics = Metrics("m", vllm_names=True)
    for index, finish in enumerate((FinishReason.CANCELLED, FinishReason.TIMEOUT, FinishReason.STOP)):
        metrics.watch({}).record(index, Delta(0, "", (), Usage(3, 0, 0, 0), finish))
    text = metrics.render(EngineStats()).decode()
    assert total(text, "vllm:request_success_total", finished_reason="abort") == 2
    assert total(text, "vllm:request_success_total", finished_reason="stop") == 1


def test_without_compat_there_is_none_of_vllms_names(make_edge):
    assert "vllm:" not in make_edge().get("/metrics").text


def test_more_requests_make_no_longer_scrape(make_edge):
    edge = make_edge()
    edge.chat()
    edge.get("/metrics")
    sizes = []
    for _ in range(2):
        for number in range(20):
            edge.chat(user=f"user-{number}", seed=number)
        sizes.append(len(edge.get("/metrics").text.splitlines()))
    assert sizes[0] == sizes[1]
