"""What the documentation promises to list, it lists; what it names, exists."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import octavo.errors
from octavo.config import StartOptions
from octavo.server.settings import ServerSettings
from octavo.setting import settings_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


# 60, and six that name what a router reads: where events go, what they say of tenants, in which form.
SETTINGS_MAX = 66


def test_settings_are_few_and_each_has_a_name_of_its_own() -> None:
    names = [setting.name for cls in (StartOptions, ServerSettings) for setting in settings_of(cls)]
    assert len(names) <= SETTINGS_MAX
    assert len(set(names)) == len(names)
    # Else OCTAVO_CACHE, say, would mean two things.
    assert not {"cache", "config", "isa", "url"} & set(names)


def test_the_page_of_settings_has_them_all() -> None:
    text = (DOCS / "settings.md").read_text()
    names = [field.name for field in dataclasses.fields(StartOptions)]
    assert [name for name in names if f"`{name.removesuffix('_bytes')}`" not in text] == []


def test_variables_that_are_no_setting_are_documented_and_there_are_at_most_3_alongside_that_of_tests() -> (
    None
):
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "csrc").rglob("*.[ch]pp")]
    used = set().union(*(re.findall(r"\"(OCTAVO_[A-Z_]+)\"", path.read_text()) for path in sources))
    text = (DOCS / "settings.md").read_text()
    assert {"OCTAVO_API_KEY", "OCTAVO_CACHE", "OCTAVO_ISA", "OCTAVO_URL"} <= used
    own = {setting.variable for cls in (StartOptions, ServerSettings) for setting in settings_of(cls)}
    assert len(used - own - {"OCTAVO_ISA", "OCTAVO_ISAS"}) <= 3
    assert [name for name in used - own if f"`{name}`" not in text] == []


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


LINKING = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "csrc/README.md")


def pages() -> list[Path]:
    return [*(ROOT / name for name in LINKING), *sorted(DOCS.glob("*.md"))]


def anchors_of(path: Path) -> set[str]:
    """What headings of a page are called in links to them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    dead = []
    for path in pages():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text()):
            if "://" in target:
                continue
            there = path.parent / target if target else path
            if not there.exists() or (anchor and anchor not in anchors_of(there)):
                dead.append(f"{path.name}: {target}#{anchor}")
    assert dead == []


def test_every_page_is_in_the_site() -> None:
    """`make docs` refuses a page that no part of the site leads to; so does this, without its packages."""
    told = (ROOT / "mkdocs.yml").read_text()
    assert [path.name for path in DOCS.glob("*.md") if f": {path.name}\n" not in told] == []
