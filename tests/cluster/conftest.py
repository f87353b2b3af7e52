"""Real replicas of the tiny model."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.fakes import FakeReplica, new_renderer
from tests.cluster.tiny_folder import write_tiny_folder

from octavo.cluster.child import ReplicaChild
from octavo.server.replica import ReplicaIdentity
from octavo.serving.client import EngineClient

SMALL = ("--kv-memory", "4MiB", "--threads", "1")
StartChild = Callable[..., ReplicaChild]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def renderer(tiny_folder: Path) -> Iterator[EngineClient]:
    client = new_renderer(tiny_folder)
    yield client
    client.close()


@pytest.fixture
def pair() -> tuple[FakeReplica, FakeReplica]:
    return FakeReplica(0), FakeReplica(1)


def new_replica(slot: int = 0, disk: Path | None = None, key: str | None = None) -> ReplicaIdentity:
    """Of a cluster of its own, where no key is given."""
    return ReplicaIdentity(key or secrets.token_hex(32), slot, f"replica-{slot}", disk)


@pytest.fixture
def start_child(tiny_folder: Path) -> Iterator[StartChild]:
    """Starts one that ends with the test; flags come after the replica."""
    with ExitStack() as ends:

        def start(replica: ReplicaIdentity | None = None, *flags: str, **options: object) -> ReplicaChild:
            arguments = [str(tiny_folder), *SMALL, *flags]
            child = ReplicaChild(replica or new_replica(), arguments, **options)  # type: ignore[arg-type]
            ends.callback(child.kill)
            return child

        yield start
