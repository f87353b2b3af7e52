"""Several front ends before one engine, as `octavo serve --http-processes 2` runs them: what is one stays
one, and each process may be killed.

A front end is chosen by stopping the other one while a connection is made: they accept on one socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.processes import is_alive, running, url_told
from tests.waiting import LIMIT_S, wait_until

from octavo.bench.traces import read_trace

pytestmark = [pytest.mark.full, pytest.mark.real_model]

HELLO: dict[str, object] = {"messages": [{"role": "user", "content": "What is a book?"}], "temperature": 0}
SMALL = ("--kv-memory", "64MiB", "--context-length", "4096")


@dataclass(frozen=True, slots=True)
class House:
    """A running server, and the log that it writes."""

    process: subprocess.Popen[str]
    url: str

    @property
    def children(self) -> list[int]:
        """The engine's process, then the front ends."""
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @property
    def engine(self) -> int:
        return self.children[0]

    @property
    def front_ends(self) -> list[int]:
        return self.children[1:]

    @contextlib.contextmanager
    def only(self, pid: int) -> Iterator[httpx.Client]:
        """A client whose connection goes to that front end."""
        others = [one for one in self.front_ends if one != pid]
        for one in others:
            os.kill(one, signal.SIGSTOP)
        with httpx.Client(base_url=self.url, timeout=LIMIT_S) as client:
            try:
                assert client.get("/health").status_code == 200
            finally:
                for one in others:
                    os.kill(one, signal.SIGCONT)
            yield client

    def stats(self) -> dict[str, float]:
        """All samples of a scrape."""
        return samples_of(httpx.get(f"{self.url}/metrics", timeout=LIMIT_S).text)

    def wait_end(self) -> tuple[int, str]:
        """Its exit status, and the rest of its log."""
        _, log = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, log


def samples_of(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def total(scrape: dict[str, float], name: str, label: str = "") -> float:
    """Of all samples of that name, and with that label."""
    return sum(value for key, value in scrape.items() if key.partition("{")[0] == name and label in key)


@contextlib.contextmanager
def serving(gguf_path: Path, *arguments: str) -> Iterator[House]:
    command = [sys.executable, "-m", "octavo", "serve", str(gguf_path), "--port", "0", *SMALL]
    with running(
        [*command, "--http-processes", "2", *arguments], stderr=subprocess.PIPE, stdout=None
    ) as process:
        house = House(process, url_told(process))
        children = house.children
        yield house
    wait_until(lambda: not any(map(is_alive, children)))  # none outlives the supervisor


def streamed(client: httpx.Client, **more: object) -> Iterator[dict[str, object]]:
    """The events of a chat, until the stream ends, or is cut."""
    body = HELLO | {"stream": True} | more
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def test_front_ends_are_one_server(gguf_path: Path, tmp_path: Path) -> None:
    with serving(gguf_path, "--disk-cache", str(tmp_path / "disk"), "--disk-size", "64MiB") as house:
        one, two = house.front_ends
        with house.only(one) as first, house.only(two) as second:
            # 1. Answers are the same bits.
            asked = HELLO | {"max_tokens": 8, "logprobs": True}
            answers = [each.post("/v1/chat/completions", json=asked).json() for each in (first, second)]
            assert answers[0]["choices"] == answers[1]["choices"]

            # 2. A session that one has begun goes on in the other, suspended and resumed in between.
            told = first.post("/v1/chat/completions", json=asked | {"session": "new"})
            session = told.headers["x-octavo-session"]
            assert second.post(f"/v1/sessions/{session}/suspend").json()["state"] == "suspended"
            assert first.post(f"/v1/sessions/{session}/resume").status_code == 200
            said = told.json()["choices"][0]["message"]["content"]
            longer = [
                *HELLO["messages"],  # type: ignore[misc]
                {"role": "assistant", "content": said},
                {"role": "user", "content": "Go on."},
            ]
            goes_on = second.post(
                "/v1/chat/completions", json=asked | {"session": session, "messages": longer}
            )
            assert goes_on.json()["session"]["reused_tokens"] > 0
            assert first.get(f"/v1/sessions/{session}").json()["turns"] == 2
            assert second.delete(f"/v1/sessions/{session}").status_code == 200
            assert first.get(f"/v1/sessions/{session}").status_code == 404

            # 3. A response that one makes is shown and cancelled by the other.
            ask = {"input": "Tell me all you know.", "stream": True, "max_output_tokens": 1500}
            with first.stream("POST", "/v1/responses", json=ask) as response:
                lines = response.iter_lines()
                created = next(line for line in lines if "response.created" in line and "data" in line)
                name = json.loads(created.removeprefix("data: "))["response"]["id"]
                assert second.get(f"/v1/responses/{name}").json()["status"] == "in_progress"
                cancelled = second.post(f"/v1/responses/{name}/cancel")
                assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
                assert any("response.incomplete" in line for line in lines)
            assert second.post(f"/v1/responses/{name}/cancel").status_code == 400

            # 4. An output that follows a schema: compiled by the engine, for both.
            schema = {"type": "object", "properties": {"size": {"enum": [1, 2]}}, "required": ["size"]}
            follow = {
                "response_format": {"type": "json_schema", "json_schema": {"schema": schema, "name": "a"}}
            }
            for each in (first, second):
                answer = each.post("/v1/chat/completions", json=HELLO | follow)
                assert json.loads(answer.json()["choices"][0]["message"]["content"])["size"] in (1, 2)
            wrong = {"response_format": {"type": "regex", "regex": "("}} | HELLO
            assert second.post("/v1/chat/completions", json=wrong).status_code == 400

            # 5. Whichever is scraped tells the counts of both, and the map is of one engine.
            for each in (first, second):
                scrape = samples_of(each.get("/metrics").text)
                asked_of_both = total(scrape, "octavo_http_requests_total", 'route="/v1/chat/completions"')
                assert (asked_of_both, total(scrape, "octavo_grammars_compiled_total")) == (7, 1)
                first_tokens = total(scrape, "octavo_time_to_first_token_seconds_count")
                assert first_tokens == 7  # six chats that were answered, and a response
            ids = [each.get("/v1/models").json()["data"][0]["created"] for each in (first, second)]
            assert ids[0] == ids[1]
        house.process.send_signal(signal.SIGTERM)
        status, log = house.wait_end()
        assert status == 0, log


def test_a_front_end_that_is_killed_loses_its_connections_and_nothing_else(gguf_path: Path) -> None:
    with serving(gguf_path) as house:
        dies, stays = house.front_ends
        with house.only(dies) as lost, house.only(stays) as kept:
            of_lost = streamed(lost, max_tokens=1500, ignore_eos=True)
            of_kept = streamed(kept, max_tokens=200, ignore_eos=True)
            for _ in range(3):
                next(of_lost), next(of_kept)
            assert len(kept.get("/v1/requests").json()["data"]) == 2
            os.kill(dies, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(of_lost)
            wait_until(lambda: len(kept.get("/v1/requests").json()["data"]) < 2)
            ends = [event for event in of_kept if event["choices"][0]["finish_reason"]]  # type: ignore[index]
            assert ends[-1]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
        wait_until(lambda: len(house.front_ends) == 2 and dies not in house.front_ends)
        new = next(pid for pid in house.front_ends if pid != stays)
        wait_until(lambda: f"{new}" and b"octavo.cli.child" in Path(f"/proc/{new}/cmdline").read_bytes())
        with house.only(new) as other:
            assert other.post("/v1/chat/completions", json=HELLO | {"max_tokens": 4}).status_code == 200
        # What the dead one has counted stays counted; its request was cancelled in the engine.
        scrape = house.stats()
        assert total(scrape, "octavo_engine_requests_finished_total") == 3
        assert total(scrape, "octavo_time_to_first_token_seconds_count") == 3
        assert total(scrape, "octavo_sequences_running") == 0


def test_an_engine_that_is_killed_ends_every_stream_with_an_error_and_the_server(gguf_path: Path) -> None:
    with serving(gguf_path) as house:
        one, two = house.front_ends
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(house.only(pid)) for pid in (one, two, one, two)]
            chats = [{}, {}, {"session": "new"}]
            streams = [
                streamed(client, max_tokens=1500, ignore_eos=True, **more)
                for client, more in zip(clients, chats, strict=False)
            ]
            asked = {"input": "Tell me all you know.", "stream": True, "max_output_tokens": 1500}
            lines = stack.enter_context(clients[3].stream("POST", "/v1/responses", json=asked)).iter_lines()
            next(line for line in lines if "output_text.delta" in line)
            for events in streams:
                next(events), next(events)
            os.kill(house.engine, signal.SIGKILL)
            for events in streams:
                *_, last = events
                assert "the engine's process has ended" in last["error"]["message"]  # type: ignore[index]
            assert any("response.failed" in line for line in lines)
        status, log = house.wait_end()
        assert status == 1
        assert "the engine's process has ended (signal 9)" in log


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_lets_streams_end_and_a_second_one_ends_them(gguf_path: Path, signals: int) -> None:
    with serving(gguf_path) as house:
        with house.only(house.front_ends[0]) as client:
            events = streamed(client, max_tokens=100 if signals == 1 else 1500, ignore_eos=True)
            next(events)
            house.process.send_signal(signal.SIGTERM)
            if signals == 2:
                wait_until(lambda: is_refused(house.url))  # the first one has been seen
                house.process.send_signal(signal.SIGTERM)
            *_, last = events
        if signals == 1:
            assert last["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
        else:
            assert "server is stopping" in last["error"]["message"]  # type: ignore[index]
        status, log = house.wait_end()
        assert status == 0, log


def is_refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        pass  # taken by the system, and by no front end any more
    return False


def test_a_signal_while_the_model_loads_ends_all_processes(gguf_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "octavo",
        "serve",
        str(gguf_path),
        "--port",
        "0",
        "--http-processes",
        "2",
    ]
    with running(command, stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 3)
        pids = [int(word) for word in children.read_text().split()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) != 0
    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_model_that_is_not_there_is_one_sentence_and_its_status(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "octavo", "serve", str(tmp_path), "--port", "0", "--http-processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert len(re.findall("octavo: ", done.stderr)) == 1, done.stderr


def test_the_requests_of_all_front_ends_are_in_one_trace(gguf_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with serving(gguf_path, "--trace-file", str(path)) as house:
        for pid in house.front_ends:
            with house.only(pid) as client:
                asked = {"prompt": [300] * 600, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
                assert client.post("/v1/completions", json=asked).status_code == 200
        wait_until(lambda: path.read_text().count("\n") == 2)
    first, second = read_trace(path).requests
    assert (first.prompt, first.output, len(first.blocks)) == (600, 4, 2)
    assert second.blocks == first.blocks
    assert second.arrival_s > 0
