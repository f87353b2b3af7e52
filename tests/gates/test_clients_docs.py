"""The versions that docs/clients.md tells are those that are installed."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_versions_of_clients_are_those_that_are_tried() -> None:
    folder = ROOT / "tests" / "clients"
    pins: dict[str, str] = {}
    for name in ("requirements-llama-index.txt", "requirements-agents.txt"):
        for line in (folder / name).read_text().split():
            package, _, version = line.partition("==")
            pins[package.partition("[")[0]] = version
    pins |= json.loads((folder / "package.json").read_text())["dependencies"]
    told = re.findall(r"^\| [^|]+ \| `([^`]+)` \| ([^ ]+) \|", (ROOT / "docs/clients.md").read_text(), re.M)
    assert len(told) == 9
    assert {package: pins[package] for package, _ in told} == dict(told)
