"""`octavo bench memory`: lines for a program, tables for a person, one message when it refuses."""

import json
import sys

import pytest

from octavo.cli.main import main

FEW = ("--requests", "8", "--pool-tokens", "512", "--max-length", "128")


def run(monkeypatch, capsys, *words):
    """The exit status and what was written."""
    monkeypatch.setattr(sys, "argv", ["octavo", "bench", "memory", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


def test_every_row_is_a_line_of_json(monkeypatch, capsys):
    code, written = run(monkeypatch, capsys, *FEW, "--json")
    assert code == 0
    rows = [json.loads(line) for line in written.out.splitlines()]
    kinds = [next(iter(row)) for row in rows]
    assert [kinds.count(kind) for kind in ("waste", "worked", "scattered", "bookkeeping", "sharing")] == [
        10, 2, 1, 2, 6,
    ]  # fmt: skip
    assert kinds.count("oversubscribed") == 12  # three traces, two machines, with and without a tier
    assert len(kinds) == 33
    assert rows[0]["worked"]["num_blocks"] == 38
    assert {row["waste"]["result"]["policy"] for row in rows if "waste" in row} >= {"Orca Max", "Octavo"}


def test_the_tables_fit_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    code, written = run(monkeypatch, capsys, *FEW)
    assert code == 0
    assert "Oracle" in written.out
    assert "70.7%" in written.out
    assert "…" not in written.out
    assert max(map(len, written.out.splitlines())) <= 80


def test_a_trace_of_ones_own(monkeypatch, capsys, tmp_path):
    path = tmp_path / "[red]mine.jsonl"
    path.write_text('{"prompt": 20, "output": 10, "arrival": 0.1}\n' * 5)
    code, written = run(
        monkeypatch, capsys, "--trace", str(path), "--pool-tokens", "512", "--max-length", "64"
    )
    assert code == 0
    assert "[red]mine.jsonl: 5 requests" in written.out


@pytest.mark.parametrize(
    "words, says",
    [
        (("--pool-tokens", "100"), "--pool-tokens"),
        (("--trace", "/no/such/trace.jsonl"), "--trace"),
        (("--requests", "0"), "--requests"),
    ],
)
def test_a_refusal_is_one_message(monkeypatch, capsys, words, says):
    code, written = run(monkeypatch, capsys, *words)
    assert code == 2
    assert says in written.err
    assert written.out == ""
