"""`octavo disk` lists what a folder keeps and removes it when told to; `octavo doctor` tells the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.listings import rows
from tests.executor.store import NAMESPACE, filled, open_store
from typer.testing import CliRunner

from octavo.cli.doctor import disk_lines
from octavo.cli.main import app
from octavo.config import StartOptions
from octavo.errors import ConfigError


def said(*words: str, answer: str = "") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["disk", *words], input=answer)
    return result.exit_code, result.output


def test_it_lists_asks_and_removes(tmp_path: Path) -> None:
    filled(tmp_path)
    code, text = said("list", str(tmp_path))
    assert code == 0
    assert f"{tmp_path / NAMESPACE}\n" in text
    kept = rows(text)[0]
    assert (kept["blocks"], kept["last used"][-4:]) == ("4", " ago")
    told = json.loads(said("list", str(tmp_path), "--json")[1])
    assert (told["path"], told["num_blocks"], told["in_use"]) == (str(tmp_path / NAMESPACE), 4, False)
    code, text = said("clean", str(tmp_path), answer="n\n")
    assert code == 1
    assert "remove this?" in text
    assert (tmp_path / NAMESPACE).exists()
    assert "nothing to remove" in said("clean", str(tmp_path), "--older-than", "1")[1]
    code, text = said("clean", str(tmp_path), "--yes")
    assert (code, text.splitlines()[-1]) == (0, "removed 1 of 1")
    assert list(tmp_path.iterdir()) == []


def test_what_is_open_is_listed_and_not_offered(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert "in use now" in said("list", str(tmp_path))[1]
    assert "nothing to remove" in said("clean", str(tmp_path), "--yes")[1]
    store.close()


@pytest.mark.parametrize("words", [["list"], ["clean", "--yes"]])
def test_a_folder_that_is_not_there_is_reported_and_no_empty_one(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").touch()
    for given, why in (
        (str(tmp_path / "nope"), "No such file or directory"),
        (str(tmp_path / "file"), "Not a directory"),
        ("~there.is.no.such.user/kv", "home"),
    ):
        result = CliRunner().invoke(app, ["disk", *words, given])
        assert isinstance(result.exception, ConfigError), result.output
        assert given in str(result.exception)
        assert f"{why}" in str(result.exception)
        assert "--disk-cache" in str(result.exception)
        assert result.output == ""


@pytest.mark.parametrize("own", [NAMESPACE, "0" * 32])
def test_doctor_shows_the_disk_cache(tmp_path: Path, own: str) -> None:
    filled(tmp_path)
    lines = disk_lines(StartOptions(disk_cache=str(tmp_path)), own)
    told = dict(lines)
    assert "free; this model may use 20.0 GiB" in told["disk cache"]
    mine, others = told["  this model"], told.get("  another", "")
    assert ("4 blocks" in mine, "4 blocks" in others) == (own == NAMESPACE, own != NAMESPACE)
    assert "--disk-cache FOLDER" in disk_lines(StartOptions(), own)[0][1]
