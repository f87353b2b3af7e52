"""Commands whose standard streams are closed, full or read by nobody end with a line and a status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiers import full

FULL = "octavo: standard output cannot be written: No space left on device\n"
CLOSED = "octavo: standard output cannot be written: Bad file descriptor\n"


def shell(line: str, *, unbuffered: bool = False) -> tuple[int, str, str]:
    """Status, output and errors of a line in which `octavo` is the command, and `python` this interpreter."""
    places = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "PYTHON": sys.executable}
    begin = 'python() { "$PYTHON" "$@"; }; octavo() { python -m octavo "$@"; }; '
    done = subprocess.run(
        ["/bin/sh", "-c", begin + line],
        env=places | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command, unbuffered",
    [
        ("disk list /", False),
        *map(full, ["--version", "--help", "tenants new-key", "serve --help"], [False] * 4),
        *map(full, ["--version", "--help", "disk list /", "tenants new-key", "serve --help"], [True] * 5),
    ],
)
def test_output_that_cannot_be_written_ends_a_command_with_one_line(command: str, unbuffered: bool) -> None:
    assert shell(f"octavo {command} >/dev/full", unbuffered=unbuffered) == (1, "", FULL)
    assert shell(f"octavo {command} >&-", unbuffered=unbuffered) == (1, "", CLOSED)


@pytest.mark.parametrize(
    "where", [">/dev/full 2>&1", *map(full, [">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>&-"])]
)
def test_where_there_is_no_place_to_say_it_only_the_status_shows(where: str) -> None:
    assert shell(f"octavo --version {where}") == (1, "", "")


@pytest.mark.parametrize("where", ["2>/dev/full", full("2>&-"), full("<&- 2>&-")])
def test_errors_that_cannot_be_reported_change_no_status(where: str) -> None:
    assert shell(f"octavo --version {where}")[::2] == (0, "")
    assert shell(f"octavo disk list /no/such/folder {where}") == (2, "", "")
    assert shell(f"octavo no-such-command {where}") == (2, "", "")


def test_a_pipe_that_no_one_reads_any_more_is_left_in_silence() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "octavo", "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_what_fails_otherwise_says_so_alongside_an_output_that_is_lost() -> None:
    status, _, told = shell("octavo disk list /no/such/folder >/dev/full")
    assert (status, told.startswith("octavo: /no/such/folder cannot be read")) == (2, True)


def test_an_error_of_the_system_that_is_not_the_outputs_is_not_taken_for_it() -> None:
    code = "from octavo.cli.streams import standard_streams as s\\nwith s(): open('/no/such/file')"
    status, _, told = shell(f'python -c "$(printf "{code}")" >/dev/full')
    assert (status, told.splitlines()[-1][:17]) == (1, "FileNotFoundError")


def test_a_server_goes_on_without_its_log_and_no_file_takes_the_place_of_a_stream(tmp_path: Path) -> None:
    script = tmp_path / "serve.py"
    script.write_text(
        "import os, sys\n"
        "from octavo.cli.streams import standard_streams\n"
        "with standard_streams():\n"
        "    with open(sys.argv[1], 'w+') as file:\n"
        "        assert file.fileno() > 2\n"
        "        for _ in range(3):\n"
        "            print('a line of the log', file=sys.stderr)\n"
        "        os.write(2, b'a native one') if sys.argv[2] == 'closed' else None\n"
        "        assert sys.stdin.read() == ''\n"
        "        file.write('served')\n"
    )
    for where, how in (("<&- >&- 2>&-", "closed"), ("</dev/null >/dev/full 2>/dev/full", "full")):
        served = tmp_path / how
        assert shell(f"python {script} {served} {how} {where}") == (0, "", "")
        assert served.read_text() == "served"
