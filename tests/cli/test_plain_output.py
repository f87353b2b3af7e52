"""Where there is no terminal, or one without colours, no command writes codes; how commands end is told."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import running
from tests.tiers import full

from octavo.cli.terminal import print_all, table

ROOT = Path(__file__).parents[2]
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[0-9;]*m")
ENV = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80"}
# Help, a table of measurements, and an error: what has colours in a terminal.
HELP, TABLE, ERROR = (
    ["--help"],
    ["bench", "memory", "--requests", "8", "--pool-tokens", "512"],
    ["serve", "--x"],
)
TABLE += ["--max-length", "128"]


def written(words: list[str], env: dict[str, str], *, in_terminal: bool) -> bytes:
    """Both streams, written into a terminal or a pipe."""
    command = [sys.executable, "-m", "octavo", *words]
    if not in_terminal:
        done = subprocess.run(
            command, env=ENV | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120
        )
        return done.stdout
    leader, follower = pty.openpty()
    seen = b""
    with running(command, stdin=follower, stdout=follower, stderr=follower, env=ENV | env):
        os.close(follower)
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
    os.close(leader)
    return seen


@pytest.mark.full
def test_a_terminal_has_colours_and_no_color_takes_them_away() -> None:
    assert COLOUR.search(written(HELP, {"TERM": "xterm-256color"}, in_terminal=True))
    for words in (HELP, TABLE, ERROR):
        seen = written(words, {"TERM": "xterm-256color", "NO_COLOR": "1"}, in_terminal=True)
        assert len(seen) > 100
        assert COLOUR.search(seen) is None, words


@pytest.mark.parametrize(
    "words", [full(HELP, id="help"), full(TABLE, id="table"), pytest.param(ERROR, id="error")]
)
def test_a_dumb_terminal_and_a_pipe_get_no_code_at_all(words: list[str]) -> None:
    for term, in_terminal in (("dumb", True), ("xterm-256color", False)):
        seen = written(words, {"TERM": term}, in_terminal=in_terminal)
        assert len(seen) > 100
        assert b"\x1b" not in seen


def test_ctrl_c_ends_a_command_with_130_and_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        command = [sys.executable, "-m", "octavo", "pins", "list", "--url", url]
        with running(command, env=ENV, stderr=subprocess.PIPE) as process:
            signal.signal(signal.SIGINT, before)
            connection, _ = silent.accept()
            with connection:  # a closed one would be an error of its own
                connection.recv(1)  # the command has asked, and waits
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_the_statuses_are_reported_by_help_and_by_the_page() -> None:
    told = b" ".join(written(HELP, {}, in_terminal=False).split())
    page = (ROOT / "docs" / "commands.md").read_text()
    for status in (0, 1, 2, 130):
        assert f"{status} ".encode() in told.partition(b"Exit status:")[2]
        assert f"| {status} |" in page


def test_a_table_in_a_pipe_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [f"column {index}" for index in range(30)]
    print_all(table("wide", columns, [[f"cell {index}" for index in range(30)]]))
    lines = [line for line in capsys.readouterr().out.splitlines() if "cell" in line]
    assert len(lines) == 1
    assert "…" not in lines[0]
    assert "cell 29" in lines[0]
