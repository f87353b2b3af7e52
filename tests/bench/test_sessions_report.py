"""`python -m bench.sessions`: its report, and the server that it starts."""

from __future__ import annotations

import subprocess
from io import StringIO
from unittest import mock

import pytest
from bench.sessions.__main__ import lines_of
from bench.sessions.sessions import SecondTurn, ServerProcess


def test_the_report_compares_both_ways() -> None:
    lines = lines_of([SecondTurn(100, 120, 96, 0.1, 0.4), SecondTurn(200, 220, 200, 0.1, 0.6)])
    assert "2 sessions" in lines[0]
    assert lines[2] == "old tokens computed again: 4 at most"
    assert lines[-1].endswith("(5.0 times as long)")


@pytest.mark.parametrize("turns", [[], [SecondTurn(100, 120, 96, 0.0, 0.0)]])
def test_a_report_of_no_turns_or_of_answers_without_text_is_reported_too(turns: list[SecondTurn]) -> None:
    assert lines_of(turns)[-1].endswith("(no text came first)")


def test_the_servers_want_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    monkeypatch.setenv("OCTAVO_OTHER", "kept")
    process = mock.Mock(stdout=StringIO("octavo serves tiny at http://127.0.0.1:5/v1\n"))
    with mock.patch.object(subprocess, "Popen", return_value=process) as popen:
        assert ServerProcess([]).url == "http://127.0.0.1:5"
    environment = popen.call_args.kwargs["env"]
    assert "OCTAVO_API_KEY" not in environment
    assert environment["OCTAVO_OTHER"] == "kept"
