"""docs/migrating.md, run: what a reader is told to write works, and every option that it names is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from tests.attack.house import House, serving
from typer.core import TyperGroup

from octavo.cli.main import app

pytestmark = [pytest.mark.full, pytest.mark.real_model]

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
BLOCKS = re.findall(r"^```diff (.*?)\n(.*?)^```", PAGE, re.M | re.S)
HERE = "http://127.0.0.1:8000"


def after(block: str) -> str:
    """What the reader has after the change."""
    return "".join(line[1:] for line in block.splitlines(keepends=True) if not line.startswith("-"))


def of_kind(kind: str) -> list[str]:
    found = [after(block) for name, block in BLOCKS if name == kind]
    assert found, f"the page has no block of kind {kind!r}"
    return found


def run_python(code: str) -> str:
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )
    assert ran.returncode == 0, f"{code}\n{ran.stderr[-3000:]}"
    return ran.stdout


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with serving(tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.mark.parametrize("code", of_kind("python"))
def test_a_program_runs_with_the_import_changed(code: str) -> None:
    assert "from octavo import" in code
    assert run_python(code).strip()


@pytest.mark.parametrize("code", of_kind("python server"))
def test_a_client_runs_with_the_url_changed(code: str, house: House) -> None:
    assert HERE in code
    assert run_python(code.replace(HERE, house.url)).strip()


@pytest.mark.parametrize("package", ["ollama", "anthropic"])
def test_another_apis_client_runs_with_the_url_changed(package: str, house: House) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: make test-clients runs this with it")
    [code] = of_kind(f"python {package}")
    assert HERE in code
    assert run_python(code.replace(HERE, house.url)).strip()


def options_of(command: str) -> set[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    options = (
        option
        for parameter in group.commands[command].params
        for option in (*parameter.opts, *parameter.secondary_opts)
    )
    return {option for option in options if option.startswith("--")}


@pytest.mark.parametrize("line", [line for block in of_kind("console") for line in block.splitlines()])
def test_every_command_can_be_given_as_it_stands(line: str) -> None:
    program, command, *arguments = shlex.split(line)
    assert program == "octavo"
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    group.commands[command].make_context(command, list(arguments))  # raises for an option that is not there


def test_every_option_that_a_table_names_is_there() -> None:
    rows = re.findall(r"^\| .+ \| (.+) \|$", PAGE, re.M)
    named = {option for cell in rows for option in re.findall(r"`(--[a-z-]+)", cell)}
    assert len(named) > 12
    assert named - {"--url", "--enable-auto-tool-choice"} <= options_of("serve")
    assert "--url" in options_of("chat")
