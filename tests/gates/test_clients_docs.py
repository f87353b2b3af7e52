"""The versions that docs/clients.md tells are those that are installed, and no client is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "tests" / "clients"
# What clients need beside them.
HELPERS = {"zod"}


def told(language: str) -> set[tuple[str, str]]:
    """Packages and versions in the table of this language."""
    [section] = re.findall(
        rf"^## {language}\n(.*?)(?=^## )", (ROOT / "docs/clients.md").read_text(), re.M | re.S
    )
    return set(re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([^ ]+) \|", section, re.M))


def test_versions_of_python_clients_are_those_that_are_tried() -> None:
    pins: dict[str, str] = {}
    # LlamaIndex needs an older openai, which is not what is told.
    for name in ("requirements-llama-index.txt", "requirements-agents.txt"):
        for line in (CLIENTS / name).read_text().split():
            package, _, version = line.partition("==")
            pins[package.partition("[")[0]] = version
    assert told("Python") == set(pins.items())


def test_versions_of_javascript_clients_are_those_that_are_tried() -> None:
    pins = json.loads((CLIENTS / "package.json").read_text())["dependencies"]
    assert told("JavaScript") == {(package, pins[package]) for package in pins.keys() - HELPERS}


def test_every_script_of_a_client_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in CLIENTS.glob("test_*.py"))
    scripts = {path.name.partition("_client.")[0] for path in CLIENTS.glob("scripts/*_client.*")}
    assert {name for name in scripts if f'"{name}"' not in tests} == set()
