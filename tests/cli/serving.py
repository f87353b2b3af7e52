"""A server that really listens, in a thread, for commands that talk to one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tests.doubles.fake_model import FakeModel

from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.serving.client import EngineClient

OPEN = ServerSettings()


@dataclass(frozen=True, slots=True)
class SharedServer:
    """One server for all tests of a module, and its model."""

    url: str
    model: FakeModel

    def reset(self, answer: str) -> FakeModel:
        """The model as a new one: what the test before has submitted, pinned or said is gone."""
        self.model.__init__(answer)  # type: ignore[misc]
        return self.model


@contextlib.contextmanager
def serving(model: EngineClient, settings: ServerSettings = OPEN) -> Iterator[str]:
    """Its address, while it is there."""
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = build_server(model, settings, lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        assert ready.wait(60)
        yield base_url(listener)
    finally:
        server.should_exit = True
        thread.join(60)
