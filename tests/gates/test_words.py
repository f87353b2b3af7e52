"""Words: code and pages use the field's, in plain English. docs/glossary.md has Octavo's own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/octavo"
# Programs of others, and what was written at its time.
EXEMPT = {ROOT / "docs/log.md", ROOT / "CHANGELOG.md"}
TEXTS = [
    path
    for where, patterns in (
        (PACKAGE, ("*.py", "*.js", "*.html", "*.css", "*.toml", "*.jinja")),
        (ROOT / "csrc", ("*.?pp",)),
        (ROOT / "docs", ("*.md", "*.py")),
        (ROOT / "deploy", ("*.md", "*.yaml", "*.yml", "*.json")),
        (ROOT / "bench", ("*.py", "*.md")),
        (ROOT / "scripts", ("*.py",)),
    )
    for pattern in patterns
    for path in sorted(where.rglob(pattern))
    if "vendor" not in path.parts and path not in EXEMPT
]
TEXTS += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
WORDS = re.compile(
    r"\b(whoever|nobody|somebody|anybody|afresh|anew|gives? way|stands? in line|lets in|let in"
    r"|takes? its place|by way of|farewell|good-?bye|hollow|newcomers?)\b|(?<![a-z])told(?![a-z])",
    re.IGNORECASE,
)
# Nouns that end as participles do.
NOUNS = (
    *("Backing", "Binding", "Bookkeeping", "Embedding", "Framing", "Lowering", "Pooling", "Reading"),
    *("Reasoning", "Recording", "Ring", "Routing", "Sampling", "Scaling", "Setting", "Sharing", "Thinking"),
    *("Tiling", "Tracing"),
)


def found_in(text: str) -> list[str]:
    """The words that a text should not have, each with its line."""
    lines = enumerate(text.splitlines(), 1)
    return [f"{number}: {match[0]}" for number, line in lines for match in WORDS.finditer(line)]


def test_the_gate_sees_each_kind_of_word() -> None:
    seen = (
        "Nobody asks\nit is told_later\nthe told\nit gives\nway; untold, stolid, shallow, canew\nit gives way"
    )
    assert found_in(seen) == ["1: Nobody", "2: told", "3: told", "6: gives way"]


def test_texts_are_in_plain_words() -> None:
    found = {str(path.relative_to(ROOT)): found_in(path.read_text()) for path in TEXTS}
    assert {path: words for path, words in found.items() if words} == {}


def test_a_class_is_a_noun() -> None:
    """Neither a gerund nor a participle."""
    strange = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("ing") and not node.name.endswith(NOUNS)
    ]
    assert strange == []
