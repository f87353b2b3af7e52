"""What the documentation promises to list, it lists; what it names, exists."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import octavo.errors
from octavo.config import StartOptions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_setting_is_documented_and_there_are_at_most_60() -> None:
    text = (DOCS / "settings.md").read_text()
    names = [field.name for field in dataclasses.fields(StartOptions)]
    assert [name for name in names if f"`{name}`" not in text] == []
    assert len(names) <= 60


def test_every_environment_variable_is_documented_and_there_are_at_most_3_beside_that_of_tests() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "csrc").rglob("*.[ch]pp")]
    used = set().union(*(re.findall(r"\"(OCTAVO_[A-Z_]+)\"", path.read_text()) for path in sources))
    text = (DOCS / "settings.md").read_text()
    assert {"OCTAVO_API_KEY", "OCTAVO_CACHE", "OCTAVO_ISA", "OCTAVO_URL"} <= used
    assert len(used - {"OCTAVO_ISA"}) <= 3
    assert [name for name in used if f"`{name}`" not in text] == []


def test_every_error_is_in_the_tree_and_documented() -> None:
    tree = octavo.errors.__doc__ or ""
    text = (DOCS / "errors.md").read_text()
    for name, item in vars(octavo.errors).items():
        if inspect.isclass(item) and issubclass(item, octavo.errors.OctavoError):
            assert name in tree, f"{name} is not drawn in errors.py"
            assert f"`{name}`" in text, f"{name} is not in docs/errors.md"


def test_every_dependency_is_justified() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (DOCS / "architecture.md").read_text()
    for dependency in project["dependencies"]:
        name = re.split(r"[<>=~!\[]", dependency)[0]
        assert f"`{name}`" in text, f"{name} is not justified in docs/architecture.md"


def test_links_between_documents_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} links to {target}"
