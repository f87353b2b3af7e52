"""A long text is encoded without the GIL, beside threads that compute, and leaves no memory behind."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from tests.text.vocabularies import CORPUS, REFERENCES

from octavo.errors import InvalidRequest
from octavo.text import encoding
from octavo.text.encoding import LONG_CHARS, VERY_LONG_CHARS, encode_text


@pytest.fixture(scope="module")
def backend():
    return REFERENCES["smollm"]()


LONG = " ".join(CORPUS) * 50


def test_long_texts_have_the_ids_of_short_ones(backend):
    assert len(LONG) > LONG_CHARS
    assert encode_text(backend, LONG) == backend.encode(LONG, add_special_tokens=False).ids


@pytest.mark.parametrize("text", ["a\ud800", "a\ud800" + LONG])
def test_a_lone_surrogate_is_an_invalid_request_in_both_ways(backend, text):
    with pytest.raises(InvalidRequest, match=r"not valid Unicode: .*surrogates not allowed"):
        encode_text(backend, text)


class _Counted:
    """A backend that notes how far another thread counted while it encoded."""

    def __init__(self, backend):
        self.backend = backend
        self.counted = 0

    def encode_batch_fast(self, texts, add_special_tokens):
        before = self.counted
        encoded = self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        self.while_encoding = self.counted - before
        return encoded


def test_other_threads_run_while_a_long_text_is_encoded(backend):
    counted, ended = _Counted(backend), threading.Event()

    def count():
        while not ended.wait(0.001):
            counted.counted += 1

    counter = threading.Thread(target=count)
    counter.start()
    encode_text(counted, LONG * 20)  # some 400 ms
    ended.set()
    counter.join(60)
    assert counted.while_encoding > 20


def test_memory_is_given_back_after_a_very_long_text_alone(backend, monkeypatch):
    asked = []
    monkeypatch.setattr(encoding, "trim_memory", lambda: asked.append(1))
    encode_text(backend, "a " * (VERY_LONG_CHARS // 2 - 1))
    assert asked == []
    encode_text(backend, "a " * (VERY_LONG_CHARS // 2))
    assert asked == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are told by /proc")
def test_the_librarys_threads_give_way_to_others():
    code = """
import os, threading, tokenizers
from octavo.text.encoding import start_library_threads
before = set(os.listdir("/proc/self/task"))
asks = start_library_threads(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])))
asks.join(60)
new = set(os.listdir("/proc/self/task")) - before - {str(asks.native_id)}  # it may take a moment to be gone
usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
print([os.getpriority(os.PRIO_PROCESS, int(one)) - usual for one in new])
"""
    environment = {"PYTHONPATH": ":".join(sys.path), "TOKENIZERS_PARALLELISM": "true"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )
    assert run.returncode == 0, run.stderr
    differences = run.stdout.split("]")[0].strip("[").split(", ")
    assert set(differences) == {"10"}, run.stdout


def test_a_panic_of_the_library_refuses_the_text_and_nothing_else():
    class PanicException(BaseException):  # as the library's: no Exception, and of no module
        pass

    class Broken:
        def __init__(self, error):
            self.error = error

        def encode(self, text, add_special_tokens):
            raise self.error

    with pytest.raises(InvalidRequest, match="gave up on this text: bad split"):
        encode_text(Broken(PanicException("bad split")), "a")
    with pytest.raises(KeyboardInterrupt):
        encode_text(Broken(KeyboardInterrupt()), "a")
