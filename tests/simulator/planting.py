"""What a planted bug is: one promise, broken on purpose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """`target.attribute` is replaced by `broken` while the bug is planted. `drive`: a life of a seed, an
    overlap and so many steps that is to notice it; None: the simulator's own."""

    name: str
    target: object
    attribute: str
    broken: object
    drive: Callable[[int, int, int], object] | None = None

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Break it, and mend it on the way out."""
        with mock.patch.object(self.target, self.attribute, self.broken):
            yield
