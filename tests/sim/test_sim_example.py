"""What `octavo.sim` shows its users, runs and prints what it says."""

from __future__ import annotations

import doctest

import octavo.sim


def test_the_example_in_the_docstring_prints_what_it_says() -> None:
    assert doctest.testmod(octavo.sim, optionflags=doctest.REPORT_NDIFF) == (0, 10)
