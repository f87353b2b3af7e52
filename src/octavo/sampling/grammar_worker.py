"""A process that tries grammars: each in a child of its own, forked from a parent that holds the vocabulary.

    stdin   the vocabulary, then requests     parent --fork--> a spare child --a request--> answers, and exits
    stdout  answers, as they come               +-- forks the next spare

Frames are a length in four bytes, then so many bytes. The vocabulary is JSON: {"tokens" (hexadecimal),
"special_ids", "end_ids"} and the bounds of a trial. A request is one byte of a command (`TRY`, `STOP`), eight
bytes of its number, and for `TRY` JSON: {"grammar", "is_gbnf", "parser_limits"}. An answer is the number, and
JSON: {"bytes", "lark"?} for a grammar that can be followed, {"error", "kind"} for one that cannot, {"status"}
of a child that died.

It is run by its path and imports only those modules of Octavo that every helper process imports. The parent
never runs a grammar, so a bad one costs only a child: a timer of processor time bounds its time, RLIMIT_AS
its memory, and a thread of its own, smaller than any of the server's, its stack.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import selectors
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import llguidance

if __name__ == "__main__":
    sys.path += sys.argv[1:]  # where Octavo and llguidance are

from octavo.helper_worker import bound_memory, prefer_as_oom_victim, read_frame, write_frame

TRY, STOP = b"t", b"s"
_HEAD_BYTES = 9
_LOWER_PRIORITY_AFTER_S = 0.1
_LOW_PRIORITY = 10
_REAP_S = 0.1  # interval of reaping children
_SPARE_S = 0.02  # delay of the next spare: forked at once, it would slow down the current trial
_ERROR_CHARS_MAX = 2000
_PICKS_MAX = 4
_WARM_UP = {
    "grammar": 'start: %json {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}',
    "is_gbnf": False,
    "parser_limits": {},
}


def main() -> None:
    """Serve until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c is for the server, which finishes its answers
    settings = json.loads(read_frame(0))
    vocabulary = _Vocabulary(settings)
    write_frame(1, b'{"ready": true}')
    _Parent(vocabulary, settings).run()


class _Vocabulary:
    """The library's tokenizer. Its encoding differs from the model's: a trial needs no canonical tokens."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import llguidance

        self.tokens = [bytes.fromhex(token) for token in settings["tokens"]]
        self.special_token_ids = settings["special_ids"]
        self.end_ids = settings["end_ids"]
        self.eos_token_id = self.end_ids[0]
        self.bos_token_id = None
        self._of_byte = {token[0]: index for index, token in enumerate(self.tokens) if len(token) == 1}
        wrapper = llguidance.TokenizerWrapper(self)
        self.tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(self.tokens), eos_token=list(self.end_ids)
        )

    def __call__(self, text: str | bytes) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        return [token for token in map(self._of_byte.get, data) if token is not None]


class _Child:
    """A process that waits for a request, and its answer so far."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.link = link
        self.number = b""  # of its request
        self.received = bytearray()


class _Parent:
    """Passes requests to spare children, and their answers back. Knows no grammar."""

    def __init__(self, vocabulary: _Vocabulary, settings: dict[str, Any]) -> None:
        self._vocabulary = vocabulary
        self._settings = settings
        self._busy: dict[bytes, _Child] = {}  # by number
        self._exiting: list[int] = []  # pids of children that have answered
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._spare: _Child | None = self._fork_child()

    def run(self) -> None:
        """Serve until stdin is closed; then no child is left."""
        while True:
            self._reap()
            waits = None if self._spare else _SPARE_S
            events = self._selector.select(_REAP_S if self._exiting and waits is None else waits)
            for key, _ in events:
                if key.data is not None:
                    self._receive_from(key.data)
                elif not self._take():
                    for child in self._busy.values():
                        os.kill(child.pid, signal.SIGKILL)
                    return
            if not events:
                self._spare = self._spare or self._fork_child()

    def _take(self) -> bool:
        """Handle one request; False at the end."""
        frame = read_frame(0)
        if not frame:
            return False
        number = frame[1:_HEAD_BYTES]
        if frame[:1] == STOP:
            if number in self._busy:
                os.kill(self._busy[number].pid, signal.SIGKILL)
            return True
        child, self._spare = self._spare or self._fork_child(), None
        child.number = number
        self._busy[number] = child
        with contextlib.suppress(OSError):  # it was killed from outside, which `_receive_from` detects
            write_frame(child.link.fileno(), frame[_HEAD_BYTES:])
        return True

    def _receive_from(self, child: _Child) -> None:
        try:
            piece = child.link.recv(1 << 16)
        except OSError:
            piece = b""
        child.received += piece
        if piece and len(child.received) < 4 + int.from_bytes(child.received[:4], "big"):
            return
        self._selector.unregister(child.link)
        child.link.close()
        answer = bytes(child.received[4:])
        if not piece:
            answer = json.dumps({"status": os.waitpid(child.pid, 0)[1]}).encode()
        else:
            self._exiting.append(child.pid)
        if child is self._spare:  # killed from outside
            self._spare = None
        else:
            del self._busy[child.number]
            write_frame(1, child.number + answer)

    def _reap(self) -> None:
        self._exiting = [pid for pid in self._exiting if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _fork_child(self) -> _Child:
        own, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            own.close()
            _run_child(theirs, self._vocabulary, self._settings)
        theirs.close()
        child = _Child(pid, own)
        self._selector.register(own, selectors.EVENT_READ, child)
        return child


def _run_child(link: socket.socket, vocabulary: _Vocabulary, settings: dict[str, Any]) -> NoReturn:
    """Try one grammar, send the answer, and exit."""
    try:
        prefer_as_oom_victim()
        bound_memory(settings["memory_bytes"])
        with open(os.devnull, "rb+") as nothing:  # the child must not use the server's pipes
            os.dup2(nothing.fileno(), 0)
            os.dup2(nothing.fileno(), 1)
        trial = _GrammarTrial(vocabulary, settings)
        request = read_frame(link.fileno())
        if request:  # otherwise the parent has ended
            write_frame(link.fileno(), json.dumps(trial.run(json.loads(request))).encode())
    finally:
        os._exit(0)


class _GrammarTrial:
    """A thread with a small stack, which touches the memory that a trial needs in advance."""

    def __init__(self, vocabulary: _Vocabulary, settings: dict[str, Any]) -> None:
        self._vocabulary = vocabulary
        self._settings = settings
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._answers: list[dict[str, Any]] = []
        threading.stack_size(settings["stack_bytes"])
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """The result. A long trial continues at a low priority, and a signal ends it."""
        # There is no handler, so the signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, self._settings["cpu_seconds"])
        self._requests.put(request)
        self._thread.join(_LOWER_PRIORITY_AFTER_S)
        if self._thread.is_alive():
            with contextlib.suppress(OSError):
                own = self._thread.native_id if sys.platform == "linux" else None
                os.setpriority(os.PRIO_PROCESS, own or os.getpid(), _LOW_PRIORITY)
            self._thread.join()
        return self._answers[0] if self._answers else _refusal("failed", "it was not tried")

    def _work(self) -> None:
        _try_grammar(_WARM_UP, self._vocabulary, self._settings)
        self._answers.append(_try_grammar(self._requests.get(), self._vocabulary, self._settings))


def _try_grammar(
    request: dict[str, Any], vocabulary: _Vocabulary, settings: dict[str, Any]
) -> dict[str, Any]:
    """Compile it, compute its first mask, walk some tokens."""
    import llguidance

    try:
        grammar, answer = request["grammar"], dict[str, Any]()
        if request["is_gbnf"]:
            from llguidance.gbnf_to_lark import gbnf_to_lark

            try:
                answer["lark"] = gbnf_to_lark(grammar)
            except Exception as error:  # noqa: BLE001  the converter raises nothing more special
                return _refusal("unreadable", str(error) or type(error).__name__)
            grammar = llguidance.LLMatcher.grammar_from_lark(answer["lark"])
        faults = _faults()
        limits = llguidance.LLParserLimits(**request["parser_limits"])
        matcher = llguidance.LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            return _refusal("refused", matcher.get_error())
        longest = _walk(matcher, vocabulary, settings["walk_tokens"])
        if matcher.is_error():
            return _refusal("limit", matcher.get_error())
        if longest > settings["mask_seconds"]:
            return _refusal("slow", "")
        answer["bytes"] = (_faults() - faults) * resource.getpagesize()
        del matcher  # its destructor must run on this stack, too
    except MemoryError:
        return _refusal("memory", "")
    except Exception as error:  # noqa: BLE001  the library's, or ours: the server decides which
        return _refusal("failed", f"{type(error).__name__}: {error}")
    return answer


def _walk(matcher: llguidance.LLMatcher, vocabulary: _Vocabulary, num_tokens: int) -> float:
    """Take that many allowed tokens, deterministically, up to the end or an error. Returns the longest time
    of a mask, in seconds of the processor."""
    state, longest = 1, 0.0
    for _ in range(num_tokens):
        started = time.thread_time()
        matcher.compute_ff_tokens()
        mask = matcher.compute_bitmask()
        longest = max(longest, time.thread_time() - started)
        if matcher.is_stopped():
            break
        for _ in range(_PICKS_MAX):
            state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            token = _first_set(mask, state % len(mask))
            if token not in vocabulary.end_ids:
                break
        if not matcher.consume_token(token):
            break
    return longest


def _first_set(mask: bytes, start: int) -> int:
    """The first set bit from a byte on, or else from the beginning."""
    rest = mask[start:].lstrip(b"\0")
    place = len(mask) - len(rest)
    if not rest:
        rest = mask.lstrip(b"\0")
        place = len(mask) - len(rest)
    lowest = rest[0] & -rest[0]
    return place * 8 + lowest.bit_length() - 1


def _refusal(kind: str, error: str) -> dict[str, Any]:
    return {"kind": kind, "error": error[:_ERROR_CHARS_MAX]}


def _faults() -> int:
    """Pages of memory that were touched for the first time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    main()
