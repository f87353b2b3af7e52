"""Ray's side without a Ray: what is refused before anything starts, and what outlives a fault of Ray's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from octavo.cluster import ray_access
from octavo.cluster.ray_access import ClusterFailed, check_token, cluster_key
from octavo.cluster.slot_table import SlotHolder
from octavo.cluster.spec import ClusterSpec
from octavo.errors import ConfigError

grpc = pytest.importorskip("grpc", reason="Ray is not installed: make test-cluster")
ray = pytest.importorskip("ray", reason="Ray is not installed: make test-cluster")
pytestmark = pytest.mark.cluster


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets this process's token for Ray, whose store has a salt."""
    monkeypatch.setattr(ray_access, "read_value", lambda name: b"salt")
    return lambda text: monkeypatch.setattr(ray_access, "_token", lambda: text)


def test_without_a_token_there_is_no_key_unless_the_cluster_is_open(token: Callable[[str], None]) -> None:
    token("")
    with pytest.raises(
        ConfigError, match=r"no token for Ray; allowed: RAY_AUTH_MODE=token.*allow_open_cluster"
    ):
        cluster_key(is_open=False)
    of_none = cluster_key(is_open=True)
    token("secret")
    assert cluster_key(is_open=False) != of_none


@pytest.mark.parametrize("application", ["engines", "relay"])
def test_a_config_file_of_a_cluster_without_a_token_is_refused(
    application: str, token: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.cluster import ray_apps

    class Context:
        gcs_address = "127.0.0.1:1"

    monkeypatch.setattr(ray, "get_runtime_context", Context)
    token("")
    with pytest.raises(ConfigError, match="no token for Ray"):
        getattr(ray_apps, application)({"max_replicas": 1})


@pytest.mark.parametrize("is_running", [False, True])
def test_a_config_files_port_is_checked_unless_its_own_relays_have_it(
    is_running: bool, token: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from octavo.cluster import ray_apps, ray_nodes
    from octavo.server.run import bind

    monkeypatch.setattr(ray_apps, "_checked", lambda spec: spec)
    monkeypatch.setattr(ray_apps, "living_nodes", lambda: [ray_nodes.Node("id-of-one", "10.0.0.1")])
    monkeypatch.setattr(ray_apps, "relay_application", lambda spec: spec)
    monkeypatch.setattr(ray_nodes, "_run_on", lambda nodes, look, *about: {nodes[0].name: look(*about)})
    relays = SimpleNamespace(replica_states={"RUNNING": 2} if is_running else {})
    application = SimpleNamespace(deployments={"Relay": relays})
    status = SimpleNamespace(applications={"relay": application})
    monkeypatch.setattr(ray_apps.serve, "status", lambda: status)
    with bind("127.0.0.1", 0, is_shared=True) as other:
        other.listen()
        args = {"server": {"port": other.getsockname()[1]}}
        if is_running:
            assert ray_apps.relay(args).server == args["server"]
        else:
            with pytest.raises(ConfigError, match=r"node 10.0.0.1 .*--port"):
                ray_apps.relay(args)


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("OK", "requires no token"),
        ("UNAUTHENTICATED", None),
        ("PERMISSION_DENIED", None),
        ("UNAVAILABLE", "without a token, and failed: UNAVAILABLE"),
        ("DEADLINE_EXCEEDED", "without a token, and failed: DEADLINE_EXCEEDED"),
    ],
)
def test_a_ray_asks_for_a_token_only_where_it_refuses_a_client_without_one(
    code: str, raised: str | None, token: Callable[[str], None]
) -> None:
    token("secret")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((_Handler(code),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        if raised is None:
            check_token(f"127.0.0.1:{port}")
        else:
            with pytest.raises((ConfigError, ClusterFailed), match=raised):
                check_token(f"127.0.0.1:{port}")
    finally:
        server.stop(None)


@pytest.mark.parametrize("has_entry", [False, True])
def test_a_port_that_another_cluster_of_this_user_serves_is_refused_by_the_nodes_name(
    has_entry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of nodes some of which take clients: on these alone."""
    from octavo.cluster import ray_nodes
    from octavo.server.run import bind

    def ask(nodes: list[ray_nodes.Node], look: Callable[..., object], *about: object) -> object:
        return {node.name: look(*about) for node in nodes}

    monkeypatch.setattr(ray_nodes, "_run_on", ask)
    nodes = [ray_nodes.Node("id-of-one", "10.0.0.1", has_entry), ray_nodes.Node("id-of-two", "10.0.0.2")]
    with bind("127.0.0.1", 0, is_shared=True) as other:
        other.listen()
        port = other.getsockname()[1]
        spec = ClusterSpec(server={"port": port})
        with pytest.raises(ConfigError, match=f"node 10.0.0.1 .*port {port}.*--port") as raised:
            ray_nodes.check_ports(nodes, spec)
        assert ("10.0.0.2" in str(raised.value)) is not has_entry
    ray_nodes.check_ports(nodes, spec)


def test_an_error_of_rays_store_does_not_end_the_look_at_slots(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from octavo.cluster import ray_relay

    answers = iter([RuntimeError("GCS is away"), [SlotHolder("a")]])

    class Fleet:
        def on_slots(self, slots: list[SlotHolder]) -> None:
            assert [slot.holder for slot in slots] == ["a"]
            raise asyncio.CancelledError  # that is all

    def read_slots() -> list[SlotHolder]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ray_relay, "read_slots", read_slots)
    monkeypatch.setattr(ray_relay, "_SLOTS_S", 0.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ray_relay._follow_slots(Fleet()))  # type: ignore[arg-type]
    assert "the slots are not read: RuntimeError: GCS is away" in caplog.text


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """A GCS that answers every request with one code."""

    def __init__(self, code: str) -> None:
        self._code = code

    def service(self, details: object) -> object:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if self._code != "OK":
                context.abort(grpc.StatusCode[self._code], "no")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)
