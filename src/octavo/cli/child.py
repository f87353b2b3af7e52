"""An engine or front-end process, started by a server's supervisor: `python -m octavo.cli.child DESCRIPTOR`.

It reads its job from standard input, reports on the control socket when it is ready, and ends when that
closes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import socket
import sys
import threading
import time

from octavo.cli.main import run_command
from octavo.cli.replica import die_with_parent
from octavo.errors import EngineStopped
from octavo.server.connections import raise_descriptor_limit
from octavo.server.jobs import EngineJob, FrontEndJob, decode_job
from octavo.server.logs import configure_logging
from octavo.server.run import build_server, run_server
from octavo.server.running import FrontEnd
from octavo.server.supervisor import (
    END,
    FRONT_END,
    GAVE_UP,
    HANGUP,
    MESSAGE_BYTES_MAX,
    READY,
    STOP,
)

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FLUSH_S = 5.0


def main() -> None:
    """Run the job."""
    # Blocked, not ignored: uvicorn would install handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    control = socket.socket(fileno=int(sys.argv[1]))
    run_command(lambda: run(control))


def run(control: socket.socket) -> None:
    """Run the job that standard input describes."""
    job = decode_job(sys.stdin.buffer.read())
    replica = job.settings.replica
    if replica is not None:
        die_with_parent()
    name = None if replica is None else replica.name
    configure_logging(job.settings.log_level, job.settings.log_format, name)
    if isinstance(job, EngineJob):
        run_engine(job, control)
    else:
        run_front_end(job, control)


def run_engine(job: EngineJob, control: socket.socket) -> None:
    """Load the model, and serve front ends until the supervisor ends it or is gone. Raises as
    `start_engine`."""
    from octavo.cli.serve import traffic_of
    from octavo.cli.terminal import probe_machine, show_progress
    from octavo.serving.front_end_link import FrontEnds
    from octavo.serving.start import started_engine, warm

    probe_machine()
    traffic = traffic_of(job.settings)
    roster = job.settings.roster
    policies_of = None if roster is None else roster.tenants.policies

    def on_give_up(reason: str) -> None:
        send(control, GAVE_UP + reason.encode()[: MESSAGE_BYTES_MAX // 2])

    messages: queue.SimpleQueue[tuple[bytes, list[int]]] = queue.SimpleQueue()
    is_loading = True

    def listen() -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 1)
            if not message and is_loading:
                os._exit(1)  # the supervisor is gone, and there is no state to save
            messages.put((message, descriptors))
            if not message:
                return

    threading.Thread(target=listen, name="octavo-control", daemon=True).start()
    with show_progress() as report:
        start = None if job.settings.replica is None else job.settings.replica.start
        starting = started_engine(job.model, job.options, report, policies_of, start)
        with starting as started:
            warm(started, job.options, report)
            front_ends = FrontEnds(started, job.options, job.num_front_ends, on_give_up, traffic)
    is_loading = False
    gc.freeze()  # as `run_server`
    try:
        while True:
            message, descriptors = messages.get()
            if message.startswith(FRONT_END):
                index = int(message.removeprefix(FRONT_END))
                front_ends.add(socket.socket(fileno=descriptors[0]), index)
            elif message in (b"", END):  # b"": the supervisor is gone
                break
        if not message:
            front_ends.wait_until_gone(job.settings.drain_timeout_s + _FLUSH_S)
    finally:
        gc.unfreeze()
        front_ends.close()
        started.loaded.tokenizer.close()


def run_front_end(job: FrontEndJob, control: socket.socket) -> None:
    """Serve until the supervisor stops it or is gone, or the engine is gone, which the supervisor reports."""
    try:
        serve_front_end(job, control)
    except EngineStopped:
        sys.exit(1)


def serve_front_end(job: FrontEndJob, control: socket.socket) -> None:
    """Serve HTTP for the engine of another process. Raises EngineStopped, ConfigError."""
    from octavo.serving.remote_host import connect
    from octavo.serving.start import check_template

    raise_descriptor_limit()
    client, host = connect(socket.socket(fileno=job.channel), job.options)
    if job.index == 0:
        threading.Thread(target=check_template, args=(client.tokenizer,), daemon=True).start()
    front_end = FrontEnd(job.index, host, host.welcome.run_id, int(time.time()), job.engine_pid, job.metrics)
    scrapes = None if job.scrapes is None else socket.socket(fileno=job.scrapes)
    server = build_server(
        client, job.settings, lambda url: send(control, READY + client.name.encode()), front_end, scrapes
    )

    def follow_commands() -> None:
        while (command := control.recv(MESSAGE_BYTES_MAX)) in (STOP, HANGUP):
            server.command(command.decode())
        server.command(STOP.decode())  # the supervisor is gone

    threading.Thread(target=follow_commands, name="octavo-control", daemon=True).start()
    try:
        run_server(server, client, socket.socket(fileno=job.listener))
    finally:
        client.close()


def send(control: socket.socket, message: bytes) -> None:
    """Send a message to the supervisor, if it is still there."""
    with contextlib.suppress(OSError):
        control.send(message)


if __name__ == "__main__":
    main()
