"""The backends and numbers of threads that tests of the engine run over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.drawn import BACKENDS, CELLS
from tests.exactness import threads_restored
from tests.tiers import full

from octavo import _native
from octavo.kernels.contract import Ops


@pytest.fixture(params=CELLS)
def ops(request: pytest.FixtureRequest) -> Ops:
    """Each backend; a few of each kind in the quick tier."""
    return BACKENDS[request.param]


@pytest.fixture(params=[full(1), 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set for the test."""
    with threads_restored():
        _native.set_num_threads(request.param)
        yield request.param
