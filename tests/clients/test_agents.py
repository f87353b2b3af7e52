"""Agent frameworks, as their users run them, against a real server: typed outputs and tool calls. The default
model is small: calls that are required, functions that are named and schemas are what can be relied on.
`make test-clients` and `make test-clients-node` install what they need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.attack.house import House, serving

pytestmark = [pytest.mark.real_model, pytest.mark.clients]

SCRIPTS = Path(__file__).with_name("scripts")
VENV = Path(sys.executable).parent.parent
ANNA = {"name": "Anna", "age": 31}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with serving(tmp_path_factory.mktemp("house")) as house:
        yield house


def told(house: House, name: str, environment: str = "agents") -> dict[str, Any]:
    """What the script of this client printed."""
    python = VENV / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{python} is not there: make test-clients installs it")
    return _run(house, [str(python), str(SCRIPTS / f"{name}_client.py")], SCRIPTS)


def _run(house: House, command: list[str], folder: Path) -> dict[str, Any]:
    variables = os.environ | {"OCTAVO_URL": house.url, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=variables, cwd=folder)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_openai(house: House) -> None:
    found = told(house, "openai")
    assert found["person"] == ANNA
    assert found["call"] == found["streamed"] == found["helper"] == ["get_weather", '{"city": "Paris"}']
    assert (found["finish"], found["answered"]) == ("tool_calls", True)


def test_langchain(house: House) -> None:
    found = told(house, "langchain")
    for calls in (found["calls"], found["named"]):
        assert [(call["name"], call["args"]) for call in calls] == [("get_weather", {"city": "Paris"})]
    assert found["ways"] == {"json_schema": ANNA, "function_calling": ANNA}
    assert found["json_mode"]


def test_llama_index(house: House) -> None:
    found = told(house, "llama_index", "llama-index")
    assert found["person"] == ANNA
    assert found["calls"][0] == ["get_weather", {"city": "Paris"}]


def test_pydantic_ai(house: House) -> None:
    assert told(house, "pydantic_ai") == {"by_tool": ANNA, "native": ANNA}


def test_instructor(house: House) -> None:
    assert told(house, "instructor") == {"TOOLS": ANNA, "JSON_SCHEMA": ANNA}


def test_agents_sdk(house: House) -> None:
    assert told(house, "agents_sdk") == {"asked": ["Paris"], "said": "sunny in Paris", "person": ANNA}


def test_smolagents(house: House) -> None:
    found = told(house, "smolagents")
    assert set(found["calls"]) == {"get_weather"}
    assert found["steps"] == 1


def test_litellm(house: House) -> None:
    found = told(house, "litellm")
    assert set(found["calls"]) == {"get_weather"}
    assert found["person"] == ANNA


def test_ai_sdk(house: House) -> None:
    node, folder = shutil.which("node"), VENV / "clients-node"
    if node is None or not (folder / "node_modules").exists():
        pytest.skip("node, or its packages, are not there: make test-clients-node installs them")
    script = folder / "ai_sdk_client.mjs"
    shutil.copy(SCRIPTS / script.name, script)
    found = _run(house, [node, str(script)], folder)
    assert found["person"] == ANNA
    assert found["calls"][0] == ["get_weather", {"city": "Paris"}]
