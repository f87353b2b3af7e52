"""The manifest of replicas on Kubernetes fits what it names. It is applied nowhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from octavo.cluster.spec import ClusterSpec

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "deploy/kuberay"
SERVICE, CLIENTS = yaml.safe_load_all((FOLDER / "octavo.yaml").read_text())
CONFIG = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])


def test_both_applications_have_one_spec_that_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    engines, relay = CONFIG["applications"]
    assert engines["args"] == relay["args"]
    spec = msgspec.convert(engines["args"], ClusterSpec)
    assert spec.engine_options().kv_memory_bytes == 4 * 2**30
    keyless = msgspec.structs.replace(spec, server={**spec.server, "insecure": True})
    del keyless.server["api_key_file"]  # which only a pod has
    assert keyless.check().server_settings().port == 8000
    assert spec.private_network


def test_ray_asks_for_a_token_and_is_the_pinned_one() -> None:
    cluster = SERVICE["spec"]["rayClusterConfig"]
    pyproject = (FOLDER.parents[1] / "pyproject.toml").read_text()
    assert cluster["authOptions"] == {"mode": "token"}
    assert f'ray = ["ray[serve]=={cluster["rayVersion"]}"]' in pyproject


def test_a_pod_has_memory_for_its_replica_and_clients_reach_its_port() -> None:
    (workers,) = SERVICE["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "8Gi"  # twice the KV memory
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert CLIENTS["spec"]["selector"] == {"ray.io/group": workers["groupName"]}
    assert workers["replicas"] == CONFIG["applications"][0]["args"]["max_replicas"]


def test_the_image_has_ray_and_the_model_that_the_manifest_serves() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text()
    assert "ARG EXTRAS=ray,otel" in dockerfile
    assert f"ARG MODEL={CONFIG['applications'][0]['args']['model']}" in dockerfile
