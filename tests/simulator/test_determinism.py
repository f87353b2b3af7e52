"""A seed is a whole life: whatever ran before it in the process, and however this process hashes. So a
fingerprint of many lives says whether two versions decide alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.simulator import fingerprint
from tests.simulator.fingerprint import hash_of
from tests.tiers import full

from octavo.memory.ledger import Ledger
from octavo.memory.table import BlockTable

LIVES = ((2, 0), (6, 1), (11, 2))  # with a tier below, and stores that fail; the second one crashes


@pytest.fixture(scope="module")
def here() -> list[str]:
    return [hash_of(life) for life in LIVES]


@pytest.mark.parametrize("hash_seed", ["1", full("2"), full("3")])
def test_a_life_is_the_same_in_every_process(here: list[str], hash_seed: str) -> None:
    code = (
        "from tests.simulator.test_determinism import hash_of, LIVES; print(*map(hash_of, reversed(LIVES)))"
    )
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == here[::-1]


def test_a_block_that_is_given_to_another_changes_the_fingerprint(here: list[str]) -> None:
    """Nothing is wrong with it, and no other test would notice: the head of a table goes before its tail."""

    def close(memory: Ledger, table: BlockTable) -> None:
        table.blocks.reverse()
        plain(memory, table)

    plain = Ledger.close
    with mock.patch.object(Ledger, "close", close):
        assert hash_of(LIVES[0]) != here[0]


def test_the_command_saves_compares_and_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "lives.json"
    monkeypatch.setattr(fingerprint, "hashes_of", lambda lives: ((life, f"{life}") for life in lives))
    monkeypatch.setattr(sys, "argv", ["fingerprint", "--seeds", "2", "--save", str(saved)])
    assert fingerprint.main() == 0
    assert "4 lives" in capsys.readouterr().out
    monkeypatch.setattr(fingerprint, "hashes_of", lambda lives: ((life, f"{life[0]}") for life in lives))
    monkeypatch.setattr(sys, "argv", ["fingerprint", "--seeds", "2", "--against", str(saved)])
    assert fingerprint.main() == 1
    assert capsys.readouterr().out == "not the same: --trace 0 --overlap 0\n"
    monkeypatch.setattr(sys, "argv", ["fingerprint", "--trace", "2"])
    assert fingerprint.main() == 0
    kinds = {line.split(" ", 1)[0] for line in capsys.readouterr().out.splitlines()}
    assert kinds == {"plan", "update"}
