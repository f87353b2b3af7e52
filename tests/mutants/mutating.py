"""Seeded mutants: small edits of the source, each in one place, drawn from all places that can be edited.

An edit replaces a range of bytes of one file; the rest stays as it is formatted. What no test could notice is
not edited: annotations, decorators, messages of exceptions, f-strings, asserts, `__repr__`, calls of a
logger, and the files that only check invariants.
"""

from __future__ import annotations

import ast
import itertools
import random
import re
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("memory", "step", "scheduler", "retention", "executor")

_SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}
_NO_NUMBERS = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)  # `+` joins them: `-` is an error at once
_NOT_VISITED = ("annotation", "returns", "decorator_list")


@dataclass(frozen=True, slots=True)
class Mutant:
    """`source[start:stop]` of `path` becomes `after`. A test that runs a line of [first_line, last_line]
    reaches it."""

    name: str  # path:line:column:before->after
    path: str  # from the package's folder
    start: int
    stop: int
    after: str
    first_line: int
    last_line: int

    def applied(self, source: bytes) -> bytes:
        """The mutated file."""
        return source[: self.start] + self.after.encode() + source[self.stop :]


class _Finder:
    """Collects the places of one file: for each of them, its mutants."""

    def __init__(self, path: str, source: bytes) -> None:
        self.places: list[list[Mutant]] = []
        self._path, self._source = path, source
        lines = source.splitlines(keepends=True)
        self._starts = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
        self._function = ""  # where it is; code outside of functions runs when the module is imported
        self._first_line = 1  # of the statement where it is
        self._visit(ast.parse(source))

    def _visit(self, node: ast.AST) -> None:
        outer = self._function
        if isinstance(node, ast.stmt):
            self._first_line = node.lineno
        match node:
            case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.FunctionDef(name="__repr__" | "__str__"):
                return
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "_log")))):
                return
            case ast.FunctionDef(name=name):
                self._function = name
            case ast.arguments():  # defaults
                self._function = ""
            # Without an attribute that `__init__` sets nothing would work: not worth a run.
            case ast.Assign(targets=[ast.Attribute()]) if self._function != "__init__":
                self._add(node, "pass")
            case ast.Expr(value=ast.Call()):
                self._add(node, "pass")
            case ast.AugAssign(target=target, op=op, value=value):
                self._add(node, "pass")
                self._swap(target, op, value)
            case ast.BinOp(left=left, op=op, right=right):
                self._swap(left, op, right)
            case ast.Compare(left=left, ops=ops, comparators=others):
                for first, comparison, second in zip([left, *others], ops, others, strict=False):
                    self._swap(first, comparison, second)
            case ast.BoolOp(op=op, values=values):
                for first, second in itertools.pairwise(values):
                    self._swap(first, op, second)
            case ast.UnaryOp(op=ast.Not()):
                start, stop = self._range(node)
                self._add_range(start, stop, self._source[start + 3 : stop].decode().lstrip())
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                self._add(value, "None")
            case ast.Continue():
                self._add(node, "break")
            case ast.Break():
                self._add(node, "continue")
            case ast.Constant(value=bool() as flag):
                self._add(node, str(not flag))
            case ast.Constant(value=int() as number):
                self._add(node, str(number + 1), str(number - 1))
            case ast.Call(func=ast.Name(id="min" | "max" as called) as function):
                self._add(function, "max" if called == "min" else "min")
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in _NOT_VISITED:
                    self._visit(child)
        self._function = outer

    def _swap(self, left: ast.expr, op: ast.AST, right: ast.expr) -> None:
        if type(op) not in _SWAPS or (isinstance(op, ast.Add) and isinstance(left, _NO_NUMBERS)):
            return
        old, new = _SWAPS[type(op)]
        start, stop = self._range(left)[1], self._range(right)[0]
        found = re.search(re.escape(old).replace(r"\ ", r"\s+").encode(), self._source[start:stop])
        if found is not None and b"#" not in self._source[start:stop]:
            self._add_range(start + found.start(), start + found.end(), new)

    def _range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _add(self, node: ast.expr | ast.stmt, *afters: str) -> None:
        self._add_range(*self._range(node), *afters)

    def _add_range(self, start: int, stop: int, *afters: str) -> None:
        before = " ".join(self._source[start:stop].decode().split())[:60]
        line, last = (self._source.count(b"\n", 0, index) + 1 for index in (start, stop))
        where = f"{self._path}:{line}:{start - self._starts[line - 1]}"
        lines = (self._first_line, last) if self._function else (1, len(self._starts))
        self.places.append(
            [Mutant(f"{where}:{before}->{a[:60]}", self._path, start, stop, a, *lines) for a in afters]
        )


def find(path: str, source: bytes) -> list[list[Mutant]]:
    """The places of a file: for each of them, its mutants."""
    return _Finder(path, source).places


def draw(package: Path, seed: int, count: int) -> list[Mutant]:
    """The mutants of a source tree and a seed: each file's share is that of its places, and a change of one
    file changes few mutants of the others."""
    paths = [path for room in ROOMS for path in sorted((package / room).glob("*.py"))]
    names = [str(path.relative_to(package)) for path in paths if path.name != "check.py"]
    places = {name: find(name, (package / name).read_bytes()) for name in names}
    total = sum(map(len, places.values()))
    mutants, share = [], 0.0
    for name in names:
        before, share = share, share + count * len(places[name]) / total
        rng = random.Random(f"{seed} {name}")
        drawn = rng.sample(places[name], round(share) - round(before))
        mutants += [rng.choice(alternatives) for alternatives in drawn]
    return mutants
