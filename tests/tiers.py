"""Two tiers: what `make test` runs, and what only `make test-full` runs, which is marked `full`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def full(*values: object, id: str | None = None):  # type: ignore[no-untyped-def]
    """One cell of a matrix that only the full tier runs."""
    return pytest.param(*values, marks=pytest.mark.full, id=id)


def cells(names: Iterable[str], quick: Collection[str]) -> list[object]:
    """The cells of a matrix: those in `quick` run in both tiers, the others in the full one."""
    names = list(names)
    assert set(quick) <= set(names), f"no cell is named {set(quick) - set(names)}"
    return [name if name in quick else full(name) for name in names]
