"""The pages that explain the house name files, classes and functions: each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("architecture.md", "memory.md", "life-of-a-request.md", "holders.md", "../csrc/README.md")
SPOKEN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?:[\w-]+/)*[\w-]+\.(?:py|cpp|hpp)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\(\)|[A-Z]\w+\.[a-z_]\w*|[A-Z][a-z]\w*[A-Z]\w*")
FOREIGN = {"GiB", "MiB", "MemAvailable"}


@cache
def defined() -> tuple[set[str], set[str]]:
    """Every class, function and attribute of the package and its kernels, and `Class.member` for each."""
    names, members = set[str](), set[str]()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(node.name)
            if isinstance(node, ast.ClassDef):
                members |= {f"{node.name}.{name}" for name in members_of(node)}
    for path in [*(ROOT / "csrc").rglob("*.?pp"), *(ROOT / "src").rglob("*.pyi")]:
        text = path.read_text()
        names |= set(re.findall(r"\b(\w+)\(", text))
        names |= set(re.findall(r"(?:class|struct|enum class) (\w+)", text))
        members |= {f"{a}.{b}" for a, b in re.findall(r"(\w+)::(\w+)\(", text)}
    return names, members


def members_of(node: ast.ClassDef) -> set[str]:
    found = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(part.name)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            found.add(part.attr)
        elif isinstance(part, ast.Assign):
            found |= {target.id for target in part.targets if isinstance(target, ast.Name)}
    return found


@cache
def is_file(name: str) -> bool:
    places = (ROOT, ROOT / "src" / "octavo", ROOT / "src", ROOT / "csrc")
    return any((place / name).exists() for place in places) or (
        "/" not in name and any(True for place in places[1:] for _ in place.rglob(name))
    )


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_function_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    names, members = defined()
    missing = [found for found in FILE.findall(text) if not is_file(found)]
    for spoken in SPOKEN.findall(text):
        for found in NAME.findall(FILE.sub("", spoken)):
            name = found.removesuffix("()").replace("::", ".")
            owner, _, member = name.rpartition(".")
            is_member = f"{owner.rpartition('.')[2]}.{member}" in members
            if not (is_member if owner[:1].isupper() else member in names) and name not in FOREIGN:
                missing.append(found)
    assert missing == []


def test_a_name_that_does_not_exist_is_found_out() -> None:
    names, members = defined()
    assert "Ledger.reserve" in members
    assert "Ledger.reserved_by_nobody" not in members
    assert "check_fits" in names
    assert not is_file("scheduler/tenancy.py")
