"""What a shell completes: commands, options, choices and models, by the function that the command prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import options
from octavo.model.hub import alias

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Where `octavo` is this one, the caches are empty and HOME is another."""
    command = tmp_path / "bin" / "octavo"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m octavo "$@"\n')
    command.chmod(0o755)
    (tmp_path / "home").mkdir()
    return {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(tmp_path / "home"),
        "OCTAVO_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "hub"),
    }


def bash(env: dict[str, str], script: str) -> list[str]:
    assert BASH is not None
    done = subprocess.run([BASH, "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@needs_bash
def test_bash_completes_commands_options_choices_and_models(env: dict[str, str]) -> None:
    """The function is called as bash calls it at a tab."""
    lines = [
        "octavo se",
        "octavo pins r",
        "octavo serve smol",
        "octavo serve --kv-mem",
        "octavo models rm smol",
    ]
    lines += ["octavo bench serve http://x --workload sh", "octavo bench offline --workload lo"]
    calls = [
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); "
        '_octavo_completion octavo; echo "${COMPREPLY[*]}"'
        for line in lines
    ]
    found = bash(env, "\n".join(['eval "$(octavo --show-completion)"', *calls]))
    assert [line.split() for line in found] == [
        ["serve", "sessions"], ["renew"], ["smollm2-135m"], ["--kv-memory"], [], ["shared-prefix"], ["long"],
    ]  # fmt: skip


@needs_bash
def test_it_is_installed_in_a_file_that_bash_reads(env: dict[str, str]) -> None:
    said = bash(env, "octavo --install-completion\n:")  # bash stays: the shell is looked for among parents
    assert "bash completion installed in" in " ".join(said)
    home = Path(env["HOME"])
    assert "complete -o default -F _octavo_completion octavo" in "".join(
        path.read_text() for path in home.rglob("octavo.sh")
    )
    assert "octavo.sh" in (home / ".bashrc").read_text()


def test_zsh_and_fish_have_scripts_too(env: dict[str, str]) -> None:
    for shell, says in (("zsh", "#compdef octavo"), ("fish", "complete --command octavo")):
        told = subprocess.run(
            ["octavo"], env=env | {"_OCTAVO_COMPLETE": f"source_{shell}"}, capture_output=True, text=True
        )
        assert (told.returncode, says in told.stdout) == (0, True), told.stderr


def test_a_cache_that_cannot_be_read_completes_aliases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> None:
        raise PermissionError("no")

    monkeypatch.setattr("octavo.model.hub.cache.cached_models", unreadable)
    assert options.complete_model("") == list(alias.ALIASES)
    assert options.complete_model("zzz") == []
