"""The shipped dashboard and alerts, asked of Debian's Prometheus that scrapes a real server under load; and
each alert, of series that must set it off and of a calm server's that must not.

    make test-operations
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import re
import shutil
import subprocess
import time

import httpx
import pytest
from tests.attack.house import free_port, serving
from tests.deploy.test_deploy_files import ALERTS, DEPLOY, PANELS, QUERIES
from tests.server.test_metrics import VLLM_NAMES

yaml = pytest.importorskip("yaml")

pytestmark = [
    pytest.mark.operations,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="prometheus and promtool are not here; on Debian: apt-get install prometheus",
    ),
]

KEY = "a-key-for-the-scrape"
LOAD_S = 25.0
RULES = DEPLOY / "prometheus/octavo.rules.yml"
# A pool of 60 blocks of 16 tokens, so that requests wait, preempt and use the disk.
SMALL = ("--kv-memory", "21MiB", "--context-length", "512", "--max-seqs", "8", "--disk-size", "64MiB")
# What there is nothing of while all is well.
EMPTY = (
    "changes(process_start_time_seconds",  # it was not started again
    "octavo_grammar_refusals_total",  # no schema was refused
)


class Prometheus:
    """One that scrapes the server every second."""

    def __init__(self, url):
        self.url = url

    def ask(self, path, **params):
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def value(self, query):
        return self.ask("query", query=query)["result"]


def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def load(url, number):
    """A client that asks until the time is over: answers of several kinds, each whole."""
    deadline = time.monotonic() + LOAD_S
    asked = 0
    with httpx.Client(base_url=url, headers={"x-api-key": KEY}, timeout=120) as client:
        while time.monotonic() < deadline:
            asked += 1
            prompt = f"{number} {asked % 5} " + "A story of a king and his three sons. " * 12
            body = {"prompt": prompt, "max_tokens": 96, "seed": asked, "stream": asked % 2 == 0}
            assert client.post("/v1/completions", json=body).status_code == 200
            schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
            body = {"messages": [{"role": "user", "content": "Yes?"}], "response_format": schema}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
    return asked


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Prometheus, after it has watched a server under load."""
    folder = tmp_path_factory.mktemp("operations")
    key = folder / "key"
    key.write_text(f"{KEY}\n")
    arguments = (*SMALL, "--api-key-file", str(key), "--disk-cache", str(folder / "kv"))
    arguments += ("--metrics-compat", "vllm")
    with serving(folder, *arguments) as house, prometheus(folder, house.url, key) as watcher:
        until(lambda: watcher.value('up{job="octavo"} == 1'))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(lambda number: load(house.url, number), range(8))) > 8
        scrape = house.ask("GET", "/metrics", headers={"x-api-key": KEY}).text
        yield house, watcher, scrape


@contextlib.contextmanager
def prometheus(folder, url, key):
    """The shipped configuration, with another target, key and pace."""
    settings = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(RULES)]
    [job] = settings["scrape_configs"]
    job["authorization"]["credentials_file"] = str(key)
    job["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    config, port = folder / "prometheus.yml", free_port()
    config.write_text(yaml.safe_dump(settings))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    log = (folder / "prometheus.log").open("w")
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log, stdout=log)
    watcher = Prometheus(f"http://127.0.0.1:{port}")
    try:
        until(lambda: is_ready(watcher.url), 30)
        yield watcher
    finally:
        process.terminate()
        process.wait(20)


def is_ready(url):
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/-/ready").status_code == 200
    return False


def filled_in(query):
    """As Grafana asks it, over all instances and models."""
    query = query.replace("$__rate_interval", "20s").replace("$job", "octavo")
    return re.sub(r"\$(instance|model_name)", ".*", query)


@pytest.mark.parametrize("query", list(dict.fromkeys(QUERIES)))
def test_every_query_of_the_dashboard_has_data_under_load(watched, query):
    found = watched[1].value(filled_in(query))
    if query.startswith(EMPTY) or any(name in query for name in EMPTY):
        return  # it was understood, and may be empty
    assert found, query
    assert all(sample["value"][1] not in ("NaN", "+Inf") for sample in found) or "quantile" in query, found


@pytest.mark.parametrize("name", sorted(VLLM_NAMES))
def test_a_dashboard_made_for_vllm_finds_what_it_asks_for(watched, name):
    one = f'{name}{{model_name="smollm2-135m"}}' if name != "vllm:cache_config_info" else name
    if name.endswith("_bucket"):
        query = f"histogram_quantile(0.95, sum by (le) (rate({one}[20s])))"
    elif name.endswith("_total"):
        query = f"sum(rate({one}[20s]))"
    elif name.endswith("_sum"):
        query = f"rate({one}[20s]) / rate({one.replace('_sum{', '_count{')}[20s])"
    else:
        query = one
    assert watched[1].value(query), query


def test_panels_show_what_happened(watched):
    _, watcher, _ = watched

    def now(title, place=0):
        [panel] = [one for one in PANELS if one["title"] == title]
        return {
            tuple(sorted(sample["metric"].items())): float(sample["value"][1])
            for sample in watcher.value(filled_in(panel["targets"][place]["expr"]))
        }

    assert now("Servers up") == {(): 1.0}
    assert now("Answers by status").keys() == {(("status", "200"),)}
    assert {dict(labels)["route"] for labels in now("Answers by route")} >= {"/v1/completions"}
    assert sum(now("Tokens", 0).values()) > 0
    assert 0 < now("First token, p95")[()] < 120
    assert sum(now("Prefix cache").values()) > 0
    assert 0 < now("Processor").popitem()[1] < 64


def test_every_rule_is_evaluated_and_none_fires_so_soon(watched):
    groups = watched[1].ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in ALERTS}
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_the_parts_of_an_alert_have_data(watched, rule):
    """Without its threshold it tells something, so it can fire."""
    found = watched[1].ask("query", query=rule["expr"])
    assert found["resultType"] == "vector"
    left = re.split(r" (?:>|<|==) [\d.]+\s*(?:$|and)", rule["expr"])[0].split(" < octavo")[0]
    left = left.replace("[5m]", "[20s]").replace("[15m]", "[20s]")
    if 'status=~"5.."' in left or 'status="429"' in left:
        return  # none was told yet: there is no such series before the first
    assert watched[1].value(left), left


def test_promtool_finds_nothing_wrong(watched, tmp_path):
    tool = shutil.which("promtool")
    shutil.copy(RULES, tmp_path)
    shutil.copy(DEPLOY / "prometheus/prometheus.yml", tmp_path)
    config = tmp_path / "prometheus.yml"
    secret = tmp_path / "key"
    secret.write_text(KEY)
    config.write_text(config.read_text().replace("/run/secrets/octavo_key", str(secret)))
    for command in ([tool, "check", "rules", str(RULES)], [tool, "check", "config", str(config)]):
        checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    # Names with colons are vLLM's own, and the one thing that promtool finds wrong with them.
    told = "\n".join(line for line in watched[2].splitlines() if "vllm:" not in line) + "\n"
    checked = subprocess.run(
        [tool, "check", "metrics"], input=told, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


# What sets each alert off, as series by the minute, and what does not. Times are in minutes.
SERVER = 'job="octavo", instance="a"'
MODEL = f'{SERVER}, model_name="m"'


def histogram(name, slow):
    """All of it fast, or a tenth of it slow."""
    rate = {"0.1": 9 if slow else 10, "30": 9 if slow else 10, "+Inf": 10}
    return {f'{name}_bucket{{{MODEL}, le="{le}"}}': f"0+{step}x60" for le, step in rate.items()}


def answers(status, bad, good=100):
    other = f'octavo_http_requests_total{{{SERVER}, route="/v1/completions", status="200"}}'
    return {
        other: f"0+{good}x60",
        f'octavo_http_requests_total{{{SERVER}, route="/v1/completions", status="{status}"}}': f"0+{bad}x60",
        f'octavo_http_requests_total{{{SERVER}, route="/health", status="200"}}': "0+1000x60",
    }


def ends(reason, bad):
    return {
        f'octavo_choices_finished_total{{{MODEL}, finish_reason="stop"}}': "0+100x60",
        f'octavo_choices_finished_total{{{MODEL}, finish_reason="{reason}"}}': f"0+{bad}x60",
    }


def blocks(held, waiting):
    return {
        f'octavo_blocks{{{MODEL}, state="held"}}': f"{held}x60",
        f"octavo_pool_blocks{{{MODEL}}}": "100x60",
        f"octavo_blocks_wanted{{{MODEL}}}": "100x60",
        f"octavo_sequences_waiting{{{MODEL}}}": f"{waiting}x60",
    }


def work(steps, running=1):
    return {
        f"octavo_sequences_running{{{MODEL}}}": f"{running}x60",
        f"octavo_sequences_waiting{{{MODEL}}}": "0x60",
        f"octavo_steps_total{{{MODEL}}}": f"0+{steps}x60",
    }


CASES = {
    "OctavoDown": ({f"up{{{SERVER}}}": "0x60"}, {f"up{{{SERVER}}}": "1x60"}),
    "OctavoStalled": (work(0), work(1) | {f"up{{{SERVER}}}": "1x60"}),
    "OctavoRestarting": (
        {f"process_start_time_seconds{{{SERVER}}}": "0+10x60"},
        {f"process_start_time_seconds{{{SERVER}}}": "0x30 5x30"},
    ),
    "OctavoErrors": (answers("500", 10), answers("500", 1)),
    "OctavoRequestsFail": (ends("error", 1), ends("error", 0)),
    "OctavoRefusing": (answers("429", 10), answers("429", 2)),
    "OctavoTimeouts": (ends("timeout", 10), ends("timeout", 2)),
    "OctavoQueueSlow": tuple(histogram("octavo_request_queue_seconds", slow) for slow in (True, False)),
    "OctavoFirstTokenSlow": tuple(
        histogram("octavo_time_to_first_token_seconds", slow) for slow in (True, False)
    ),
    "OctavoTokensSlow": tuple(histogram("octavo_inter_token_seconds", slow) for slow in (True, False)),
    "OctavoMemoryFull": (blocks(98, 3), blocks(98, 0)),
    "OctavoPreempting": (
        {f"octavo_preemptions_total{{{MODEL}}}": "0+120x60"},
        {f"octavo_preemptions_total{{{MODEL}}}": "0+20x60"},
    ),
    "OctavoPoolShrunk": (
        {f"octavo_pool_blocks{{{MODEL}}}": "80x60", f"octavo_blocks_wanted{{{MODEL}}}": "100x60"},
        blocks(10, 0),
    ),
    "OctavoTransfersFail": (
        {f"octavo_transfers_failed_total{{{MODEL}}}": "0+1x60"},
        {f"octavo_transfers_failed_total{{{MODEL}}}": "7x60"},
    ),
    "OctavoDescriptorsShort": (
        {f"process_open_fds{{{SERVER}}}": "900x60", f"process_max_fds{{{SERVER}}}": "1000x60"},
        {f"process_open_fds{{{SERVER}}}": "90x60", f"process_max_fds{{{SERVER}}}": "1000x60"},
    ),
}


def test_every_alert_fires_when_it_must_and_is_silent_when_all_is_well(tmp_path):
    assert CASES.keys() == {rule["alert"] for rule in ALERTS}
    tests = []
    for name, (bad, good) in CASES.items():
        for series, count in ((bad, 1), (good, 0)):
            expected = [{"labels": "{}", "value": count}] if count else []
            tests.append(
                {
                    "interval": "1m",
                    "name": f"{name}: {'fires' if count else 'silent'}",
                    "input_series": [{"series": one, "values": values} for one, values in series.items()],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}})',
                            "eval_time": "55m",
                            "exp_samples": expected,
                        }
                    ],
                }
            )
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    tool = shutil.which("promtool")
    ran = subprocess.run([tool, "test", "rules", str(file)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_server_that_ends_is_reported(watched):
    """Last: it ends the server."""
    house, watcher, _ = watched
    house.kill()
    until(lambda: watcher.value('up{job="octavo"} == 0'))
    until(lambda: "OctavoDown" in json.dumps(watcher.ask("alerts")))
