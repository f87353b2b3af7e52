"""The version stands in one place, and the changelog speaks of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import octavo

ROOT = Path(__file__).parents[2]


def test_the_build_reads_the_version_of_the_package() -> None:
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in given["project"]
    assert given["project"]["dynamic"] == ["version"]
    source = ROOT / given["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert f'__version__ = "{octavo.__version__}"' in source.read_text()


def test_no_other_file_of_the_package_states_it() -> None:
    stated = re.compile(rf"version\w*\W{{1,5}}{re.escape(octavo.__version__)}\b", re.IGNORECASE)
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "csrc").rglob("*.[ch]pp"), ROOT / "CMakeLists.txt"]
    found = [path.name for path in sources if stated.search(path.read_text())]
    assert found == ["__init__.py"]


def test_the_newest_entry_of_the_changelog_is_of_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == octavo.__version__
