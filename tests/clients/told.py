"""Runs a client's script against a server and reads what it told. `make test-clients` and
`make test-clients-node` install what the scripts need."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.attack.house import House

SCRIPTS = Path(__file__).with_name("scripts")
VENV = Path(sys.executable).parent.parent
MODEL = "smollm2-135m"
ANNA = {"name": "Anna", "age": 31}
PARIS = ["get_weather", {"city": "Paris"}]
BLOCK = 16  # tokens; what a turn computes again is less than one block, and the turn's own tokens
SIZE = 576  # of the default model's hidden rows
LIMIT_S = 180


@functools.cache
def told(house: House, name: str, environment: str = "agents", key: str = "none") -> dict[str, Any]:
    """What the script of this client printed; it runs once against a house."""
    python = VENV / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there: make test-clients installs it")
    return _run(house, [str(python), str(SCRIPTS / f"{name}_client.py")], SCRIPTS, key)


def told_by_node(house: House, name: str) -> dict[str, Any]:
    """What the script of this JavaScript client printed."""
    node, folder = shutil.which("node"), VENV / "clients-node"
    if node is None or not (folder / "node_modules").exists():
        pytest.skip("node, or its packages, are not there: make test-clients-node installs them")
    # Node looks for packages beside the script.
    script = folder / f"{name}_client.mjs"
    shutil.copy(SCRIPTS / script.name, script)
    return _run(house, [node, str(script)], folder, "none")


def _run(house: House, command: list[str], folder: Path, key: str) -> dict[str, Any]:
    # The server's own sources are no business of the client's.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"OCTAVO_URL": house.url, "OCTAVO_KEY": key, "PYTHONDONTWRITEBYTECODE": "1"}
    variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it asks for prices, elsewhere
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=variables, cwd=folder, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found
