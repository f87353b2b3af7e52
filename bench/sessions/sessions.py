"""Sessions over a restart: many chats are suspended, the server is killed with -9 and started again, and the
next turn of each is timed; then the same turns on a server without their blocks.

    serve --disk-cache F     turn 1 of each, suspend     SIGKILL
    serve --disk-cache F     turn 2 of each              SIGKILL      "resumed"
    serve                    turn 2 of each, no session  SIGKILL      "recomputed"

The servers are separate processes, so the measured times are those of real clients.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import RequestFailed
from octavo.sse_reader import SseReader

_READY_S = 600.0  # it may download the model
_ANSWER_S = 600.0
_NO_USAGE = {"prompt_tokens": 0, "cached_tokens": 0}
JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Scenario:
    """The chats: `lines` of about a dozen tokens in the first question, `output` tokens in each answer."""

    sessions: int = 50
    lines: int = 60
    output: int = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer."""

    text: str
    session_id: str
    seconds_to_first: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class SecondTurn:
    """One chat's second turn, resumed and recomputed."""

    said: int  # tokens before it
    prompt_tokens: int
    cached_tokens: int
    seconds_resumed: float
    seconds_recomputed: float

    @property
    def old_recomputed(self) -> int:
        """Tokens of the first turn that were computed again."""
        return max(0, self.said - self.cached_tokens)


class ServerProcess:
    """`octavo serve` as a process on a free port."""

    def __init__(self, words: Sequence[str]) -> None:
        command = [sys.executable, "-m", "octavo", "serve", "--port", "0", *words]
        # The server would require the key, and this client sends none.
        environment = {name: value for name, value in os.environ.items() if name != "OCTAVO_API_KEY"}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        watchdog = threading.Timer(_READY_S, self._process.kill)
        watchdog.start()
        output: list[str] = []
        self.url = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            output.append(line.rstrip())
            if " at http://" in line:
                self.url = line.split(" at ")[1].split("/v1")[0]
                break
        watchdog.cancel()
        if not self.url:
            raise RequestFailed(f"octavo serve did not start: {' '.join(output[-3:])}")
        rest = self._process.stdout
        threading.Thread(
            target=lambda: deque(rest, maxlen=0), daemon=True
        ).start()  # a full pipe would block it

    def kill(self) -> None:
        """Kill it with SIGKILL, without a shutdown."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def ask(self, method: str, path: str) -> JsonObject:
        """The answer of one of Octavo's own routes."""
        import httpx2

        answer = httpx2.request(method, self.url + path, timeout=_ANSWER_S)
        found = answer.json()
        if answer.status_code >= 400 or not isinstance(found, dict):
            raise RequestFailed(f"{method} {path} answered {answer.status_code}: {answer.text[:300]}")
        return found

    def chat(self, messages: Sequence[JsonObject], output: int, session: str | None) -> Answer:
        """Run one turn, streamed and greedy."""
        import httpx2

        body: JsonObject = {
            "messages": list(messages),
            "max_tokens": output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if session is not None:
            body["session"] = session
        started, first, text, usage = time.perf_counter(), 0.0, "", _NO_USAGE
        path = f"{self.url}/v1/chat/completions"
        with httpx2.stream("POST", path, json=body, timeout=_ANSWER_S) as stream:
            if stream.status_code != 200:
                stream.read()
                raise RequestFailed(f"a turn was refused: {stream.text[:300]}")
            session_id = stream.headers.get("x-octavo-session", "")
            for chunk in _objects(stream.iter_bytes()):
                if "error" in chunk:
                    raise RequestFailed(f"a turn failed: {chunk['error']}")
                choices = chunk.get("choices")
                part = choices[0]["delta"].get("content") if isinstance(choices, list) and choices else ""
                if part and not text:
                    first = time.perf_counter() - started
                text += part or ""
                given = chunk.get("usage")
                usage = given if isinstance(given, dict) else usage
        return Answer(text, session_id, first, usage["prompt_tokens"], usage["cached_tokens"])


@contextmanager
def serving(words: Sequence[str]) -> Iterator[ServerProcess]:
    """A server, killed at the end of the block."""
    server = ServerProcess(words)
    try:
        yield server
    finally:
        server.kill()


def measure(
    words: Sequence[str], folder: Path, scenario: Scenario, progress: Callable[[str], None]
) -> list[SecondTurn]:
    """Run the scenario. `words` are the servers' options, `folder` is for the disk cache.

    Raises RequestFailed.
    """
    with_disk = [*words, "--disk-cache", str(folder)]
    chats, ids, said = [_question(i, scenario) for i in range(scenario.sessions)], [], []
    with serving(with_disk) as server:
        for i, messages in enumerate(chats):
            progress(f"{i + 1} of {len(chats)} chats begun and suspended")
            answer = server.chat(messages, scenario.output, "new")
            ids.append(answer.session_id)
            suspended = server.ask("POST", f"/v1/sessions/{answer.session_id}/suspend")
            said.append(int(str(suspended["num_tokens"])))
            messages += [
                {"role": "assistant", "content": answer.text},
                {"role": "user", "content": f"And what of letter {i}? Answer in a line."},
            ]
    with serving(with_disk) as server:
        resumed = [
            _after(progress, f"{i + 1} of {len(chats)} chats resumed", server, messages, scenario, ids[i])
            for i, messages in enumerate(chats)
        ]
    with serving(words) as server:
        again = [
            _after(progress, f"{i + 1} of {len(chats)} chats recomputed", server, messages, scenario, None)
            for i, messages in enumerate(chats)
        ]
    return [
        SecondTurn(old, one.prompt_tokens, one.cached_tokens, one.seconds_to_first, other.seconds_to_first)
        for old, one, other in zip(said, resumed, again, strict=True)
    ]


def _after(
    progress: Callable[[str], None],
    text: str,
    server: ServerProcess,
    messages: Sequence[JsonObject],
    scenario: Scenario,
    session: str | None,
) -> Answer:
    progress(text)
    return server.chat(messages, scenario.output, session)


def _question(index: int, scenario: Scenario) -> list[JsonObject]:
    """A first message without a common block with the others."""
    lines = [f"Chapter {index}, line {j}: the letter {index * 7 + j}." for j in range(scenario.lines)]
    return [{"role": "user", "content": f"Book {index}. {' '.join(lines)} What is it about?"}]


def _objects(chunks: Iterator[bytes]) -> Iterator[JsonObject]:
    """The objects of a stream of server-sent events."""
    reader = SseReader()
    for data in itertools.chain.from_iterable(map(reader.feed, chunks)):
        if data != b"[DONE]":
            value = json.loads(data)
            assert isinstance(value, dict)
            yield value
