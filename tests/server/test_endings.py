"""How a server ends: every client is told, whatever it waits for, and the log shows no traceback."""

import signal
import subprocess
import sys
import threading

import httpx
import pytest
from tests.waiting import LIMIT_S, wait_until

SERVE = """
import asyncio, sys
from octavo.server.logs import configure_logging
from octavo.server.run import bind, serve
from octavo.server.settings import ServerSettings
from tests.doubles.fake_model import FakeModel

class Never:
    async def wait(self):
        await asyncio.Event().wait()

configure_logging("info", "text")
model = FakeModel("Hello")
model.hold = Never()
settings = ServerSettings(drain_timeout_s=float(sys.argv[1]))
serve(model, bind("127.0.0.1", 0), settings, lambda url: print(url, flush=True))
"""


class Ending:
    """A server in a process of its own, whose answers never end by themselves."""

    def __init__(self, drain_timeout_s, log):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(drain_timeout_s)],
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        self.url = self.process.stdout.readline().strip()


@pytest.fixture
def ending(tmp_path):
    made = []

    def make(drain_timeout_s):
        made.append(Ending(drain_timeout_s, tmp_path / "log"))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()


def end_of_stream(server, signals):
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={"prompt": "a", "stream": True}, timeout=20
    ) as answer:
        lines = answer.iter_lines()
        assert '"text":"H"' in next(lines)
        for number, each in enumerate(signals):
            if number:  # two that come together are one to the system
                wait_until(lambda: "stopping: " in server.log.read_text())
            server.process.send_signal(each)
        return [line for line in lines if line]


def check_log(server):
    text = server.log.read_text()
    assert "Traceback" not in text
    assert "stopping: 1 requests have" in text
    assert "octavo.server: stopped" in text


def test_a_stream_that_outlasts_the_drain_ends_with_an_error_event(ending):
    server = ending(0.2)
    *_, error, done = end_of_stream(server, [signal.SIGTERM])
    assert '"code":"engine_stopped"' in error
    assert done == "data: [DONE]"
    assert server.process.wait(LIMIT_S) == 0
    check_log(server)


def test_a_second_signal_does_not_wait_and_still_informs_the_client(ending):
    server = ending(600)
    *_, error, done = end_of_stream(server, [signal.SIGINT, signal.SIGINT])
    assert '"code":"engine_stopped"' in error
    assert done == "data: [DONE]"
    assert server.process.wait(LIMIT_S) == 0
    check_log(server)


def test_a_whole_answer_that_outlasts_the_drain_is_a_503_in_openais_shape(ending):
    server = ending(0.3)
    answers = []
    asking = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"}, timeout=20)
        )
    )
    asking.start()
    wait_until(lambda: httpx.get(f"{server.url}/v1/requests").json()["data"])
    server.process.send_signal(signal.SIGTERM)
    asking.join(LIMIT_S)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["type"] == "service_unavailable_error"
    assert server.process.wait(LIMIT_S) == 0
    check_log(server)


AFTER = (
    """
import os, signal
from octavo.server.run import ignore_signals
ignore_signals()
for one in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    os.kill(os.getpid(), one)
"""
    + SERVE
    + """
for _ in range(2):
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(os.getpid(), one)
print("closed", flush=True)
"""
)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_end_changes_no_exit_status_and_cuts_no_closing_short(first, tmp_path):
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", AFTER, "0.2"], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout.readline().startswith("http://")
        process.send_signal(signal.SIGUSR1)
        process.send_signal(first)
        assert process.communicate(timeout=LIMIT_S)[0] == "closed\n"
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (tmp_path / "log").read_text()
