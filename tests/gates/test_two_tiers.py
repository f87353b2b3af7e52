"""What is compared with an oracle belongs to the full tier, where the oracle is."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
ORACLES = {"torch", "transformers", "triton"}
IS_FULL = "pytest.mark.full"


def oracles_in(node: ast.AST) -> set[str]:
    """Those that it imports, or skips without."""
    found = set[str]()
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            found |= {alias.name.split(".")[0] for alias in part.names}
        elif isinstance(part, ast.ImportFrom):
            found.add((part.module or "").split(".")[0])
        elif isinstance(part, ast.Call) and ast.unparse(part.func).endswith("importorskip"):
            found |= {str(name.value).split(".")[0] for name in part.args if isinstance(name, ast.Constant)}
    return found & ORACLES


def quick_tests_with_oracles(source: str) -> list[str]:
    """Module level, or tests, that need an oracle and are not marked."""
    tree = ast.parse(source)
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    if any(IS_FULL in mark for mark in marks):
        return []
    found = []
    for node in tree.body:
        is_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        is_module_level = not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if not (is_test or is_module_level) or not oracles_in(node):
            continue
        if not (is_test and any(IS_FULL in ast.unparse(mark) for mark in node.decorator_list)):
            found.append(getattr(node, "name", "module level"))
    return found


def test_no_test_of_the_quick_tier_needs_an_oracle() -> None:
    paths = sorted(path for path in TESTS.rglob("test_*.py"))
    wrong = {path.name: names for path in paths if (names := quick_tests_with_oracles(path.read_text()))}
    assert wrong == {}, "mark them with pytest.mark.full, and import the oracle inside"


def test_a_test_that_needs_one_is_found() -> None:
    assert quick_tests_with_oracles("import torch") == ["module level"]
    assert quick_tests_with_oracles("def test_x():\n    import torch.nn") == ["test_x"]
    assert quick_tests_with_oracles("def test_x():\n    pytest.importorskip('triton')") == ["test_x"]
    assert quick_tests_with_oracles("@pytest.mark.full\ndef test_x():\n    import torch") == []
    assert quick_tests_with_oracles("import torch\npytestmark = pytest.mark.full") == []
