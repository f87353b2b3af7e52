"""One server for the clients of a module; whatever they ask, it does not fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.attack.house import House, serving


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with serving(tmp_path_factory.mktemp("house")) as house:
        yield house
        assert " status=5" not in house.log.read_text()
        assert "Traceback" not in house.log.read_text()
