"""What is said of wrong values: never longer than a line or two, and never an error of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.config import StartOptions
from octavo.errors import ConfigError, InvalidRequest, require_range, shown
from octavo.model.hub.paths import cache_folder
from octavo.params import SamplerParams, Timeouts
from octavo.retention.client_pins import PinRequest

HUGE = 10**5_000  # Python prints no integer of so many digits


@pytest.mark.parametrize(
    "make",
    [
        lambda: require_range("n", HUGE, 1, 2),
        lambda: require_range("n", -HUGE, 1, 2),
        lambda: SamplerParams(seed=HUGE),
        lambda: SamplerParams(temperature=HUGE),
        lambda: SamplerParams(top_p=HUGE),
        lambda: SamplerParams(logit_bias=((3, HUGE),)),
        lambda: Timeouts(total=HUGE),
        lambda: PinRequest("a", (1,), HUGE),
    ],
)
def test_a_number_without_end_is_refused_like_any_other(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest, match="is a number too long to be printed; allowed: "):
        make()


def test_so_it_is_among_the_settings() -> None:
    for make in (lambda: StartOptions(max_seqs=HUGE), lambda: StartOptions(block_size=HUGE)):
        with pytest.raises(ConfigError, match="is a number too long to be printed; allowed: "):
            make()


def test_what_is_shown_is_short() -> None:
    assert shown(5) == "5"
    assert shown("x" * 80) == "'" + "x" * 76 + "..."
    assert len(shown(10**4_000)) == len(shown(["a"] * 1_000_000)) == 80


@pytest.mark.parametrize(
    "given",
    [
        [],
        {},
        [[]] * 100,
        [[[1, {"a": [2.5, None]}], "b"], {"c": {}}] * 9,
        {str(number): [{}] * number for number in range(90)},
        {"a": "x" * 100, "b": True},
        ("a", ["b"]),
    ],
)
def test_what_is_shown_is_how_it_begins(given: object) -> None:
    text = repr(given)
    assert shown(given) == (text if len(text) <= 80 else text[:77] + "...")


def test_no_more_is_printed_than_is_shown() -> None:
    class Counted:
        printed = 0

        def __repr__(self) -> str:
            Counted.printed += 1
            return "0"

    wide = [[Counted()] * 1_000] * 1_000
    for given in (wide, {str(key): wide for key in range(1_000)}):
        shown(given)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "[" * 77 + "..."
    assert Counted.printed < 200


def test_the_home_of_no_user_is_reported(monkeypatch):
    with pytest.raises(ConfigError, match="disk_cache is '~nosuchuser/x', and there is no such user"):
        StartOptions(disk_cache="~nosuchuser/x")
    monkeypatch.setenv("OCTAVO_CACHE", "~nosuchuser/x")
    with pytest.raises(ConfigError, match="OCTAVO_CACHE is"):
        cache_folder()
