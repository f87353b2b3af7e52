"""A small pool of processes that render a chat template (`template_worker`).

    render -> an idle process, or a new one -> values by its stdin, text by its stdout -> idle again
                                            -> too late, too large, dead: ended; the next rendering starts one

A template is an untrusted program. In any case a rendering ends within `SECONDS_MAX` of getting a process,
and uses at most `MEMORY_MAX` in one that has no secrets and no files.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

from octavo.errors import InvalidRequest, RequestFailed
from octavo.helper_process import HelperEnded, HelperProcess, HelperTimeout, import_folders

HELPERS_MAX = 2
SECONDS_MAX = 5.0
START_SECONDS_MAX = 30.0
MEMORY_MAX = 512 << 20
_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateHelpers:
    """Renders one template. Any thread may; each waits until it is done."""

    def __init__(self, source: str, chars_max: int) -> None:
        self._source = source
        self._chars_max = chars_max
        self._free = threading.Semaphore(HELPERS_MAX)
        self._idle: list[_Helper] = []  # appending and popping are atomic
        self._words: tuple[list[str], list[str]] | None = None
        self._kept = True
        weakref.finalize(self, _end_all, self._idle)

    def render(self, values: Mapping[str, object]) -> str:
        """The text. Raises InvalidRequest for any error of the template, RequestFailed if no process can be
        started."""
        request = json.dumps(values).encode()
        with self._free:
            helper, was_idle = self._taken()
            try:
                answer = helper.call(request, SECONDS_MAX)
            except _HelperExited:
                if not was_idle:
                    raise
                # It may have been killed from outside since its last text; if the template did it, it will
                # again.
                helper = self._started()
                answer = helper.call(request, SECONDS_MAX)
            if answer.get("kind") in ("memory", "length"):
                helper.end()  # it may still hold memory of that rendering
            else:
                self._idle.append(helper)
            if not self._kept:
                _end_all(self._idle)
        return self._text(answer)

    def words(self) -> tuple[list[str], list[str]]:
        """The template's quoted strings, and its names. Raises RequestFailed if no process can be started."""
        if self._words is None:
            with self._free:
                self._idle.append(self._started())
        assert self._words is not None, "a process that started has sent them"
        return self._words

    def close(self) -> None:
        """End the processes. A later rendering starts one."""
        self._kept = False
        _end_all(self._idle)

    def _taken(self) -> tuple[_Helper, bool]:
        """A process, and whether it was idle before."""
        try:
            return self._idle.pop(), True
        except IndexError:
            return self._started(), False

    def _started(self) -> _Helper:
        settings = {
            "source": self._source,
            "memory_bytes": MEMORY_MAX,
            "seconds": int(SECONDS_MAX) + 1,
            "chars_max": self._chars_max,
        }
        # JSON may encode each character as six.
        helper = _Helper(bytes_max=6 * self._chars_max + (64 << 10))
        try:
            ready = helper.call(json.dumps(settings).encode(), START_SECONDS_MAX)
        except InvalidRequest as error:
            raise RequestFailed(f"the process that renders chat templates did not start: {error}") from error
        self._words = _texts(ready.get("words")), _texts(ready.get("names"))
        return helper

    def _text(self, answer: Mapping[str, object]) -> str:
        text, kind = answer.get("text"), answer.get("kind")
        if isinstance(text, str):
            return text
        if kind == "memory":
            raise _wrong(f"needs more than {MEMORY_MAX >> 20} MiB for these messages")
        if kind == "length":
            raise InvalidRequest(
                f"the rendered chat has more than {self._chars_max:,} characters, which is the most allowed",
                param="messages",
            )
        raise _wrong(f"refuses these messages: {answer.get('error')}")


class _HelperExited(InvalidRequest):
    """The process has ended."""


class _Helper(HelperProcess):
    """A process with one template."""

    def __init__(self, bytes_max: int) -> None:
        try:
            super().__init__(_WORKER, import_folders("octavo", "jinja2", "markupsafe"), bytes_max)
        except OSError as error:
            raise RequestFailed(f"the process that renders chat templates did not start: {error}") from error

    def call(self, request: bytes, seconds: float) -> dict[str, object]:
        """The answer of the process. Ends the process and raises InvalidRequest if that takes too long, sends
        too much, or has ended."""
        try:
            answer: dict[str, object] = json.loads(self.exchange(request, seconds))
        except HelperTimeout:
            raise _wrong(f"took more than {seconds:.0f} s for these messages, and was stopped") from None
        except (HelperEnded, ValueError) as error:
            raise _HelperExited(
                f"the model's chat template ended its process ({error}); allowed: up to "
                f"{MEMORY_MAX >> 20} MiB",
                param="messages",
            ) from None
        return answer


def _end_all(helpers: list[_Helper]) -> None:
    while helpers:
        helpers.pop().end()


def _texts(given: object) -> list[str]:
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []


def _wrong(what: str) -> InvalidRequest:
    return InvalidRequest(f"the model's chat template {what}", param="messages")
