"""Whatever a template does, it is told in words, and takes no memory, no time and no other chat with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.processes import is_alive, running

from octavo.errors import InvalidRequest, RequestFailed
from octavo.text import template_helpers
from octavo.text.template_helpers import HELPERS_MAX, TemplateHelpers

CHARS_MAX = 1 << 20
DOUBLED = (
    "{% set s = namespace(x='x') %}{% for i in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}{{ s.x }}"
)
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SWITCH = (
    "{% if do == 'ok' %}fine{% elif do == 'memory' %}{{ 'x' * 3000000000 }}{% else %}" + LOOPS + "{% endif %}"
)


@pytest.fixture
def made():
    """Helpers for a template, closed in the end."""
    every = []

    def make(source):
        every.append(TemplateHelpers(source, CHARS_MAX))
        return every[-1]

    yield make
    for one in every:
        one.close()


def pids(helpers):
    return [helper.pid for helper in helpers._idle]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 3000000000 }}",
        DOUBLED,
        "{{ '%1000000000d' % 1 }}",
        "{{ 'x'.ljust(3000000000) }}",
        "{{ 'x'.replace('x', 'x' * 40000000).replace('x', 'x' * 100) }}",
        "{{ ([0] * 300000000) | length }}",
    ],
)
def test_memory_is_bounded(made, source):
    helpers = made(source)
    with pytest.raises(InvalidRequest, match=r"chat template needs more than 512 MiB") as caught:
        helpers.render({})
    assert caught.value.param == "messages"
    assert pids(helpers) == []  # what it took is gone with it


def test_what_a_refusing_template_took_is_given_back(made):
    helpers = made("{% set x = 'x' * num %}{{ raise_exception('no') }}")
    for num in (300_000_000, 1):  # it answers before it gives back, and gives back before the next answer
        with pytest.raises(InvalidRequest, match="messages: no"):
            helpers.render({"num": num})
    [pid] = pids(helpers)
    with open(f"/proc/{pid}/statm") as file:
        assert int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") < 200 << 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", [LOOPS, "{{ 7 ** (9 ** 9) }}"])
def test_time_is_bounded_and_the_process_is_gone(made, source, monkeypatch):
    monkeypatch.setattr(template_helpers, "SECONDS_MAX", 0.3)
    helpers = made(source)
    with pytest.raises(InvalidRequest, match=r"chat template took more than"):
        helpers.render({})
    assert pids(helpers) == []


def test_the_next_chat_is_rendered_after_each_misdeed(made, monkeypatch):
    helpers = made(SWITCH)
    assert helpers.render({"do": "ok"}) == "fine"
    with pytest.raises(InvalidRequest, match="512 MiB"):
        helpers.render({"do": "memory"})
    assert helpers.render({"do": "ok"}) == "fine"
    monkeypatch.setattr(template_helpers, "SECONDS_MAX", 0.3)
    with pytest.raises(InvalidRequest, match="took more than"):
        helpers.render({"do": "loops"})
    monkeypatch.undo()
    assert helpers.render({"do": "ok"}) == "fine"


def test_a_process_that_is_killed_between_two_chats_is_replaced_and_no_error_is_shown(made):
    helpers = made("{{ a }}")
    assert helpers.render({"a": 1}) == "1"
    [pid] = pids(helpers)
    os.kill(pid, signal.SIGKILL)
    assert helpers.render({"a": 2}) == "2"
    assert pids(helpers) != [pid]
    assert not is_alive(pid)


def test_a_process_that_is_killed_at_work_is_reported(made):
    helpers = made(LOOPS)
    caught = []

    def render():
        try:
            helpers.render({})
        except InvalidRequest as error:
            caught.append(str(error))

    started, plain = [], template_helpers._Helper.call
    at_work = threading.Event()

    def call(helper, line, seconds):
        started.append(helper.pid)
        if len(started) == 2:  # the first was its settings
            at_work.set()
        return plain(helper, line, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_helpers._Helper, "call", call)
        thread = threading.Thread(target=render)
        thread.start()
        assert at_work.wait(30)
        os.kill(started[-1], signal.SIGKILL)
        thread.join(30)
    assert caught == ["the model's chat template ended its process (signal 9); allowed: up to 512 MiB"]


# A worker that has taken its settings, said that it is ready, and read its first values.
READY = """
import os, sys
def read():
    return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big"))
read()
sys.stdout.buffer.write(b'\\x00\\x00\\x00\\x0f{"ready": true}\\n')
sys.stdout.buffer.flush()
read()
"""


def test_a_template_that_ends_its_process_is_reported_and_not_tried_for_ever(made, monkeypatch, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(READY + "os.abort()\n")
    monkeypatch.setattr(template_helpers, "_WORKER", worker)
    with pytest.raises(InvalidRequest, match=r"chat template ended its process \(signal 6\)"):
        made("x").render({})


def test_a_process_that_says_nonsense_or_too_much_is_ended(made, monkeypatch, tmp_path):
    worker = tmp_path / "worker.py"
    monkeypatch.setattr(template_helpers, "_WORKER", worker)
    short = "sys.stdout.buffer.write(b'\\x00\\x00\\x00\\x08nonsense')"
    for last in (short, "while True: sys.stdout.write('x' * 65536)"):
        worker.write_text(READY + last)
        with pytest.raises(InvalidRequest, match="chat template ended its process"):
            made("x").render({})


def test_a_process_that_does_not_start_is_no_fault_of_the_client(made, monkeypatch, tmp_path):
    monkeypatch.setattr(template_helpers, "_WORKER", tmp_path / "nowhere.py")
    with pytest.raises(RequestFailed, match="did not start"):
        made("x").render({})
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(RequestFailed, match="did not start"):
        made("x").render({})


def test_chats_at_once_have_a_process_each_up_to_the_bound(made):
    helpers = made("{{ a }}")
    told, together = [], threading.Barrier(6)

    def render(number):
        together.wait(30)
        for _ in range(20):
            told.append(helpers.render({"a": number}) == str(number))

    threads = [threading.Thread(target=render, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert told == [True] * 120
    assert 1 <= len(pids(helpers)) <= HELPERS_MAX


def test_close_ends_the_processes_and_a_later_chat_leaves_none(made):
    helpers = made("{{ a }}")
    helpers.render({"a": 1})
    [pid] = pids(helpers)
    helpers.close()
    assert not is_alive(pid)
    assert helpers.render({"a": 2}) == "2"
    assert pids(helpers) == []


def test_a_process_ends_when_its_server_was_killed():
    code = """
import sys
from octavo.text.template_helpers import TemplateHelpers
helpers = TemplateHelpers("{{ a }}", 1000)
helpers.render({"a": 1})
print(helpers._idle[0].pid, flush=True)
sys.stdin.read()
"""
    env = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    with running([sys.executable, "-c", code], stdin=subprocess.PIPE, env=env) as server:
        pid = int(server.stdout.readline())
        assert is_alive(pid)
        watched = os.pidfd_open(pid)
        server.kill()
        server.communicate(timeout=30)
        import select

        assert select.select([watched], [], [], 30)[0], "the process outlives its server"
        os.close(watched)


def test_the_process_has_no_secrets_and_no_files(made, monkeypatch):
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    helpers = made("x")
    helpers.render({})
    [pid] = pids(helpers)
    with open(f"/proc/{pid}/environ", "rb") as file:
        assert b"secret" not in file.read()
    assert sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"]


def test_long_texts_and_any_unicode_travel_unharmed(made):
    helpers = made("{{ a }}")
    for text in ("é世🙂\n\x00\u2028", "a\ud800", "世" * 900_000):
        assert helpers.render({"a": text}) == text
