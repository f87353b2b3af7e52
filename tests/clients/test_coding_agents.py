"""Coding agents as their users run them, without a network: each edits one file by the calls of a scripted
model. `make test-clients-node` installs them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.clients.told import VENV
from tests.wire.scripted import Script, new_tokenizer, start_scripted

from octavo.kernels.contract import Floats
from octavo.server.run import bind, build_server
from octavo.server.settings import ServerSettings
from octavo.text.tokenizer import Tokenizer

pytestmark = pytest.mark.clients
CONTEXT = 1 << 18  # an agent's prompt has a hundred thousand letters
LIMIT_S = 240
BEFORE, AFTER = "The word is wrong.\n", "The word is right.\n"
Steps = Callable[[frozenset[str]], list[str]]  # what is said turn by turn, with these tools


class Agent(Script):
    """Says one step after another: the next one behind each result of a tool."""

    def __init__(self, tokenizer: Tokenizer, steps: Steps) -> None:
        super().__init__(tokenizer)
        self._steps = steps

    def logits(self, context: Sequence[int]) -> Floats:
        """(V,)."""
        text = b"".join(map(self._tokenizer.token_bytes, context))
        said = text[text.rfind(self._header) + len(self._header) :]
        row = super().logits([0])
        row[:] = 0.0
        row[self._following(text, said)] = 64.0
        return row

    def _following(self, text: bytes, said: bytes) -> int:
        tools = text.partition(b"Tools:")[2].partition(b". Write <tool_call>")[0].decode().split()
        steps = self._steps(frozenset(tools)) if tools else ["ok"]
        whole = steps[min(text.count(b"<tool_response>"), len(steps) - 1)].encode()
        rest = whole.removeprefix(said).decode() if whole.startswith(said) else ""
        return self._tokenizer.encode(rest)[0] if rest else self._end


def call(name: str, **arguments: object) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@contextmanager
def serving(steps: Steps) -> Iterator[str]:
    """The URL of a server over the agent's script."""
    tokenizer = new_tokenizer()
    client = start_scripted(
        tokenizer, lambda executor: executor, time.monotonic, script=Agent(tokenizer, steps), context=CONTEXT
    )
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = build_server(client, ServerSettings(), lambda url: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        tokenizer.end()


def run_agent(name: str, arguments: list[str], folder: Path, variables: dict[str, str]) -> str:
    """What it printed; it has a home of its own, and no network but loopback."""
    program = VENV / "clients-node/node_modules/.bin" / name
    if shutil.which("node") is None or not program.exists():
        pytest.skip(f"{program} is not there: make test-clients-node installs it")
    home = folder.parent / f"{name}-home"
    home.mkdir()
    kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
    blocked = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "HTTP", "HTTPS")}
    own = kept | blocked | {"HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | variables
    ran = subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=own,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout[-3000:], ran.stderr[-3000:])
    return ran.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the file that is to be edited."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "note.txt").write_text(BEFORE)
    return folder


def test_claude_code_edits_a_file(project: Path) -> None:
    path = str(project / "note.txt")

    def steps(tools: frozenset[str]) -> list[str]:
        edit = call("Edit", file_path=path, old_string="wrong", new_string="right")
        return [call("Read", file_path=path), edit, "Edited."]

    with serving(steps) as url:
        told = run_agent(
            "claude",
            ["-p", "Edit note.txt.", "--output-format", "json", "--dangerously-skip-permissions"],
            project,
            {
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "ANTHROPIC_MODEL": "scripted",
                "ANTHROPIC_SMALL_FAST_MODEL": "scripted",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "IS_SANDBOX": "1",
            },
        )
    assert (project / "note.txt").read_text() == AFTER
    assert json.loads(told)["result"] == "Edited."


def test_codex_edits_a_file(project: Path) -> None:
    change = "@@\\n-The word is wrong.\\n+The word is right.\\n"
    patch = f"*** Begin Patch\\n*** Update File: note.txt\\n{change}*** End Patch"
    by_shell = "sed -i s/wrong/right/ note.txt"

    def steps(tools: frozenset[str]) -> list[str]:
        ways = {
            "apply_patch": call("apply_patch", input=patch),
            "exec_command": call("exec_command", cmd=by_shell),
            "shell_command": call("shell_command", command=by_shell),
            "shell": call("shell", command=["bash", "-lc", by_shell]),
        }
        return [next(said for name, said in ways.items() if name in tools), "Edited."]

    with serving(steps) as url:
        provider = f'{{name="octavo",base_url="{url}/v1",wire_api="responses",env_key="OCTAVO_KEY"}}'
        told = run_agent(
            "codex",
            [
                *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
                *("-c", "model_provider=octavo", "-c", f"model_providers.octavo={provider}"),
                *("-m", "scripted", "Edit note.txt."),
            ],
            project,
            {"OCTAVO_KEY": "none"},
        )
    assert (project / "note.txt").read_text() == AFTER
    assert "Edited." in told


def test_opencode_edits_a_file(project: Path) -> None:
    path = str(project / "note.txt")

    def steps(tools: frozenset[str]) -> list[str]:
        edit = call("edit", filePath=path, oldString="wrong", newString="right")
        return [call("read", filePath=path), edit, "Edited."]

    with serving(steps) as url:
        models = {"scripted": {"name": "scripted", "limit": {"context": CONTEXT, "output": 4096}}}
        options = {"baseURL": f"{url}/v1", "apiKey": "none"}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Octavo",
            "options": options,
            "models": models,
        }
        settings = {"provider": {"octavo": provider}, "model": "octavo/scripted", "autoupdate": False}
        (project / "opencode.json").write_text(json.dumps(settings | {"small_model": "octavo/scripted"}))
        told = run_agent("opencode", ["run", "Edit note.txt."], project, {})
    assert (project / "note.txt").read_text() == AFTER
    assert "Edited." in told
