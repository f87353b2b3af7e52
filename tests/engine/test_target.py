"""An operator changes the target for the time between tokens while the engine serves."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.served import serve_tiny

from octavo.errors import ConfigError, InvalidRequest
from octavo.units import parse_seconds


def test_it_is_set_seen_and_taken_back() -> None:
    async def run() -> None:
        control = served.llm.control
        assert (await control.kv()).totals.target is None  # type: ignore[union-attr]
        seen = await control.set_target(0.05)
        assert seen.totals is not None
        assert seen.totals.target is not None
        assert (seen.totals.target.seconds, seen.totals.target.gaps) == (0.05, 0)
        for refused in (0.0, -1.0, 1e9):
            with pytest.raises(InvalidRequest, match="target_itl"):
                await control.set_target(refused)
        assert (await control.set_target(None)).totals.target is None  # type: ignore[union-attr]

    served = serve_tiny()
    try:
        asyncio.run(run())
    finally:
        served.llm.close()


def test_times_are_given_in_words() -> None:
    assert [parse_seconds(text, "x") for text in ("50ms", "0.05", " 1.5 s")] == [0.05, 0.05, 1.5]
    for text in ("", "fast", "5m", "-1s", "1e3"):
        with pytest.raises(ConfigError, match=r"x is .*; allowed: a time such as 50ms"):
            parse_seconds(text, "x")
