"""What is shipped to run Octavo elsewhere fits the server as it is: its routes, options, metrics, and times.

Containers are not built here, and no cluster reads the manifests: these are the checks that need neither.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from tests.server.test_metrics import samples_of

import octavo.cli.main
from octavo.config import StartOptions
from octavo.engine.outputs import Delta, EngineStats
from octavo.kv_events.publisher_config import publishing_of
from octavo.server.metrics import Metrics
from octavo.server.route import Access
from octavo.server.routes import match_route
from octavo.types import FinishReason, Phases, Usage

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/octavo.rules.yml").read_text())
BOARD = json.loads((DEPLOY / "grafana/octavo.json").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
QUERIES += [note["expr"] for note in BOARD["annotations"]["list"]]
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/octavo.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "docker/compose.yaml").read_text())
ON_GPU = yaml.safe_load((DEPLOY / "kubernetes/gpu.yaml").read_text())
ROUTED = yaml.safe_load((DEPLOY / "llm-d/octavo.yaml").read_text())
DOCKERFILE = (DEPLOY / "docker/Dockerfile").read_text()
UNIT = (DEPLOY / "systemd/octavo.service").read_text()


def serve_options():
    command = typer.main.get_command(octavo.cli.main.app).commands["serve"]
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def told_names():
    """Every name that a scrape can tell, and which labels it has."""
    stats = EngineStats(
        events={"evicted": 1},
        grammar_refusals={"other": 1},
        draft_tokens={"ngram": 1},
        accepted_draft_tokens={"ngram": 1},
        device_steps={"replayed": 1},
    )
    metrics = Metrics("m")
    metrics.count_answer("/v1/models", 200)
    usage = Usage(1, 1, 0, 0, phases=Phases(0.0, admitted=0.0, first_token=0.0))
    metrics.watch({}).record(0, Delta(0, "", (), usage, FinishReason.STOP))
    found: dict[str, set[str]] = {"up": {"job", "instance"}}
    for name, labels in samples_of(metrics.render(stats).decode()):
        found.setdefault(name, {"job", "instance"}).update(label for label, _ in labels)
    return found


def container():
    [deployment] = [one for one in MANIFESTS if one["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"], deployment["spec"]["template"]["spec"]["containers"][0]


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def option(words, name):
    """The value of an option in a list of words."""
    for place, word in enumerate(words):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name:
            return words[place + 1]
    raise AssertionError(f"{name} is not there")


@pytest.mark.parametrize("query", [*QUERIES, *(rule["expr"] for rule in ALERTS)])
def test_every_query_asks_for_metrics_and_labels_that_there_are(query):
    told = told_names()
    plain = re.sub(r'"[^"]*"', '""', query)
    names = re.findall(r"\b((?:octavo|process)_\w+|up)\b", plain)
    assert names
    for name, selected in re.findall(r"\b((?:octavo|process)_\w+|up)\{([^}]*)\}", plain):
        assert name in told, name
        assert set(re.findall(r"(\w+)\s*[=!]~?", selected)) <= told[name], name
    assert set(names) <= told.keys()
    for by in re.findall(r"by \(([^)]*)\)", plain):
        assert {label.strip() for label in by.split(",")} <= set().union(*(told[name] for name in names))


def test_no_metric_of_octavos_is_left_without_a_panel_or_a_reason():
    shown = " ".join([*QUERIES, *(rule["expr"] for rule in ALERTS)])
    families = {
        re.sub(r"_(total|bucket|count|sum|created)$", "", n) for n in told_names() if n.startswith("octavo_")
    }
    left = {name for name in families if name not in shown}
    assert left == {
        "octavo_block_age_at_eviction_seconds",  # looked at when memory is sized, not watched
        "octavo_block_age_at_hit_seconds",
        "octavo_block_size_tokens",
        "octavo_blocks_below",  # a former name
        "octavo_blocks_kept_below",
        "octavo_device_steps",  # none on a processor
        "octavo_drafter_bytes",
        "octavo_grammar_bytes",
        "octavo_kv_event_gaps",  # none without routers
        "octavo_kv_events_lost",
        "octavo_engine_requests_finished",  # choices are shown
        "octavo_grammar_compile_seconds",
        "octavo_preemptions_kept",
        "octavo_preemptions_recomputed",
        "octavo_request_inference_seconds",  # prefill and decode are
        "octavo_request_load_seconds",
        "octavo_tail_slots_wasted",
    }


def test_panels_lie_side_by_side_and_their_variables_are_declared():
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    declared = {variable["name"] for variable in BOARD["templating"]["list"]}
    for query in QUERIES:
        assert set(re.findall(r"\$(\w+)", query)) <= declared | {"__rate_interval"}
    for panel in PANELS:
        assert panel["description"]
        assert panel["datasource"]["uid"] == "${datasource}"


def anchors(page):
    """Of a page's headings, as readers of Markdown make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_and_has_its_section(rule):
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in anchors(ROOT / page)


def test_every_option_that_is_given_exists():
    _, pod = container()
    [command] = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    start = re.search(r"^ExecStart=(.*)$", UNIT.replace("\\\n", " "), re.MULTILINE).group(1)
    [on_gpu] = ON_GPU["spec"]["template"]["spec"]["containers"]
    for words in (
        pod["args"],
        on_gpu["args"],
        ROUTED["spec"]["template"]["spec"]["containers"][0]["args"],
        COMPOSE["services"]["octavo"]["command"],
        json.loads(command),
        shlex.split(start)[1:],
    ):
        assert words[0] == "serve"
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= serve_options()
        assert option(words, "--host") == "0.0.0.0"
        assert option(words, "--api-key-file")  # else it would not start


def test_a_gpu_changes_the_deployment_and_nothing_that_probes_and_volumes_count_on():
    _, pod = container()
    [on_gpu] = ON_GPU["spec"]["template"]["spec"]["containers"]
    assert on_gpu["name"] == pod["name"]
    assert on_gpu.keys() <= {"name", "image", "args", "env", "resources"}
    for name in ("--host", "--port", "--api-key-file", "--disk-cache", "--drain-timeout"):
        assert option(on_gpu["args"], name) == option(pod["args"], name)
    assert (
        on_gpu["resources"]["requests"]["nvidia.com/gpu"] == on_gpu["resources"]["limits"]["nvidia.com/gpu"]
    )
    [folder] = [one["value"] for one in on_gpu["env"] if one["name"] == "TRITON_CACHE_DIR"]
    assert any(folder.startswith(mount["mountPath"]) for mount in pod["volumeMounts"])
    assert "ARG EXTRAS" in DOCKERFILE
    assert "TRITON_CACHE_DIR=/var/cache/octavo/" in DOCKERFILE


def test_a_router_reads_what_the_patched_deployment_sends():
    _, pod = container()
    [routed] = ROUTED["spec"]["template"]["spec"]["containers"]
    assert routed["name"] == pod["name"]
    for name in ("--host", "--port", "--api-key-file", "--disk-cache", "--drain-timeout"):
        assert option(routed["args"], name) == option(pod["args"], name)
    told = [
        option(routed["args"], name) for name in ("--kv-events", "--kv-events-replay", "--metrics-address")
    ]
    ports = [int(address.rpartition(":")[2]) for address in told]
    assert ports == [port["containerPort"] for port in routed["ports"]]
    pytest.importorskip("zmq", reason="pyzmq is not installed")
    options = StartOptions(kv_events=told[0], kv_events_replay=told[1], kv_events_remote=True)
    assert publishing_of(options, has_tenants=False) is not None


def test_a_probe_asks_an_open_route_at_the_port_that_is_served():
    _, pod = container()
    port = int(option(pod["args"], "--port"))
    [named] = pod["ports"]
    assert (named["name"], named["containerPort"]) == ("http", port)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = pod[probe]["httpGet"]
        assert (asked["port"], match_route("GET", asked["path"]).access) == ("http", Access.OPEN)
        assert 503 in match_route("GET", asked["path"]).route.statuses
    [service] = [one for one in MANIFESTS if one["kind"] == "Service"]
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    [asked] = re.findall(r"http://127.0.0.1:(\d+)(/\w+)", DOCKERFILE)
    assert (int(asked[0]), match_route("GET", asked[1]).access) == (8000, Access.OPEN)
    assert f"EXPOSE {asked[0]}" in DOCKERFILE


def test_time_to_drain_is_left_everywhere():
    spec, pod = container()
    pause = int(pod["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] >= pause + int(option(pod["args"], "--drain-timeout")) + 15
    service = COMPOSE["services"]["octavo"]
    assert seconds(service["stop_grace_period"]) >= int(option(service["command"], "--drain-timeout")) + 15
    drain = int(re.search(r"--drain-timeout (\d+)", UNIT).group(1))
    assert int(re.search(r"TimeoutStopSec=(\d+)", UNIT).group(1)) >= drain + 15


def test_selectors_find_the_pods_and_volumes_are_declared():
    spec, pod = container()
    [deployment] = [one for one in MANIFESTS if one["kind"] == "Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    [service] = [one for one in MANIFESTS if one["kind"] == "Service"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {mount["name"] for mount in pod["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    [claim] = [one["metadata"]["name"] for one in MANIFESTS if one["kind"] == "PersistentVolumeClaim"]
    assert [
        v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"] if "persistentVolumeClaim" in v
    ] == [claim]


def test_no_one_is_root():
    spec, pod = container()
    [user] = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert user == (str(spec["securityContext"]["runAsUser"]), str(spec["securityContext"]["runAsGroup"]))
    assert "0" not in user
    assert spec["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "DynamicUser=yes" in UNIT


def test_files_that_are_copied_or_mounted_exist():
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert f"!{source}" in (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    for service in COMPOSE["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "docker" / source).exists(), source
            else:
                assert source in COMPOSE["volumes"]
    [name] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["rule_files"]
    assert (DEPLOY / "prometheus" / name).exists()
    for page in (DEPLOY / "grafana/provisioning").rglob("*.yaml"):
        assert yaml.safe_load(page.read_text())["apiVersion"] == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze reads units")
def test_systemd_reads_the_unit_without_a_complaint(tmp_path):
    unit = tmp_path / "octavo.service"
    unit.write_text(UNIT.replace("/opt/octavo/bin/octavo", "/bin/true"))
    read = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    about = [line for line in (read.stdout + read.stderr).splitlines() if "octavo" in line]
    assert (read.returncode, about) == (0, [])
