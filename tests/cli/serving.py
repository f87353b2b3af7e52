"""A server that really listens, in a thread, for commands that talk to one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from octavo.engine.client import EngineClient
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings

OPEN = ServerSettings()


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
