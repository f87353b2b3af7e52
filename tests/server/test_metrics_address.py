"""--metrics-address: /metrics alone, without a key, next to a server that wants one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace

import httpx
import pytest
from tests.doubles.fake_model import FakeModel
from tests.server.test_metrics import samples_of, total
from tests.waiting import LIMIT_S

from octavo.engine.outputs import EngineStats
from octavo.errors import ConfigError
from octavo.server.hosts import split_address
from octavo.server.metrics import Metrics
from octavo.server.run import base_url, bind, build_server, open_metrics_listener
from octavo.server.settings import ServerSettings

KEYS = ServerSettings(api_keys=("secret",), metrics_address="0", metrics_compat="vllm", drain_timeout_s=1)


@contextlib.contextmanager
def serving(model, settings=KEYS):
    """The addresses of a server and of its metrics."""
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    with open_metrics_listener(settings) as scrapes:
        server = build_server(model, settings, lambda _: ready.set(), scrapes=scrapes)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            assert ready.wait(LIMIT_S)
            yield base_url(listener), base_url(scrapes)
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def urls():
    with serving(FakeModel()) as found:
        yield found


def test_metrics_are_reported_there_without_a_key(urls):
    url, scrapes = urls
    assert httpx.get(f"{url}/metrics").status_code == 401
    answer = httpx.get(f"{scrapes}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert total(answer.text, "octavo_pool_blocks") == total(answer.text, "octavo_blocks") == 10
    assert total(answer.text, "vllm:kv_cache_usage_perc") == 0.3
    assert httpx.head(f"{scrapes}/metrics").text == ""


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/"),
        ("GET", "/health"),
        ("GET", "/ui"),
        ("GET", "/v1/models"),
        ("GET", "/metrics/"),
        ("POST", "/metrics"),
        ("POST", "/v1/completions"),
        ("PATCH", "/v1/kv"),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"x-api-key": "secret"}])
def test_nothing_else_is_there_whatever_key_comes(urls, method, path, headers):
    answer = httpx.request(method, f"{urls[1]}{path}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}])
def test_pages_of_others_read_nothing(urls, headers):
    answer = httpx.get(f"{urls[1]}/metrics", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_host")


def test_a_name_that_the_operator_gives_is_taken():
    with serving(FakeModel(), replace(KEYS, allowed_hosts=("octavo.local",))) as (_, scrapes):
        assert httpx.get(f"{scrapes}/metrics", headers={"Host": "octavo.local"}).status_code == 200


def test_the_server_ends_while_a_router_keeps_its_connection():
    with httpx.Client() as router, serving(FakeModel()) as (_, scrapes):
        assert router.get(f"{scrapes}/metrics").status_code == 200


def test_a_router_waits_for_no_step():
    model, timeouts = FakeModel(), []

    async def stats(timeout_s):
        timeouts.append(timeout_s)
        return EngineStats()

    model.stats = stats
    with serving(model) as (_, scrapes):
        httpx.get(f"{scrapes}/metrics")
    assert max(timeouts) < 0.05


@pytest.mark.parametrize(
    "vllm_names, current", [(False, "octavo_sequences_running"), (True, "vllm:num_requests_running")]
)
def test_what_routers_read_is_of_now_and_all_else_may_be_older(vllm_names, current):
    metrics = Metrics("m", vllm_names=vllm_names)
    metrics.render(EngineStats())
    metrics.count_answer("/v1/models", 200)
    text = metrics.render(EngineStats(running=3), age_s=1e6).decode()
    assert total(text, current) == 3
    assert not vllm_names or total(text, "octavo_sequences_running") == 0
    assert total(text, "octavo_http_requests_total") == 0
    text = metrics.render(EngineStats(running=2)).decode()
    assert total(text, "octavo_http_requests_total") == 1
    assert total(text, "octavo_sequences_running") == 2


def test_adapters_are_reported_as_none_under_vllms_name():
    told = samples_of(Metrics("m", vllm_names=True).render(EngineStats()).decode())
    [(labels, value)] = [
        (dict(key[1]), value) for key, value in told.items() if key[0].startswith("vllm:lora")
    ]
    assert labels == {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert value > 1e9, "seconds of the epoch: the newest of several is taken"


@pytest.mark.parametrize(
    "given, found",
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9100", ("::1", 9100)),
    ],
)
def test_an_address_is_a_port_of_loopback_or_names_its_host(given, found):
    assert split_address(given, "--metrics-address") == found


@pytest.mark.parametrize(
    "given",
    ["", ":9100", "::1:9100", "a:80:9100", "[::1]:80:9100", "9100x", "65536", "0.0.0.0", "a b:1", "-1"],
)
def test_what_is_no_address_is_refused(given):
    with pytest.raises(ConfigError, match=r"--metrics-address is .*allowed: a port"):
        ServerSettings(metrics_address=given)


def test_an_address_that_is_taken_is_reported_by_its_setting():
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        settings = ServerSettings(metrics_address=str(taken.getsockname()[1]))
        with pytest.raises(ConfigError, match="with --metrics-address"), open_metrics_listener(settings):
            pass
