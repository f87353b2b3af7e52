"""Two tiers: a file that belongs to the full tier as a whole is not even imported by the quick one, whose
environment has neither torch nor transformers (`tests.tiers`)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

_FULL_FILE = re.compile(r"^pytestmark = .*pytest\.mark\.full\b", re.MULTILINE)


def _wants_full(config: pytest.Config) -> bool:
    """The full tier runs only where `-m` names it."""
    return re.search(r"(?<!not )\bfull\b", config.option.markexpr) is not None


def pytest_report_header(config: pytest.Config) -> str:
    """Which tier this is."""
    if _wants_full(config):
        return "tier: full (make test-full)"
    return "tier: quick; `-m full` runs the other tests, which need the extra `oracles` (make test-full)"


def pytest_configure(config: pytest.Config) -> None:
    """torch computes on one thread: on several, its first operation in a process is wrong now and then.

    Seen with torch 2.13.0: in 2 of 951 fresh processes the first forward of a tiny Llama differed from the
    second by 0.0129 in rows of its second thread; on one thread it never did (1,580 processes).
    """
    if not _wants_full(config):
        return
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise pytest.UsageError(
                f"the full tier compares with {name}, which is not installed: make test-full"
            )
    import torch

    torch.set_num_threads(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of the full tier, unless it is asked for."""
    if collection_path.suffix != ".py" or _wants_full(config):
        return None
    return True if _FULL_FILE.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of the full tier among others, whatever else `-m` asks for."""
    if _wants_full(config):
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
