"""Nothing that a client sees changes unseen: complete exchanges, byte for byte, with the real server over a
scripted model.

A golden changes only with a row of CHANGES.md; `python -m tests.wire.record --why "..."` writes both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from unittest import mock

import pytest
from tests.wire.exchange import Exchange, Scene
from tests.wire.record import (
    CHANGES,
    GOLDENS,
    difference,
    digest,
    digest_in_table,
    read_goldens,
    record,
)
from tests.wire.scenes import FAMILIES
from tests.wire.servers import ServerHouse

from octavo.server import errors, sse

_REWRITE = 'python -m tests.wire.record --why "what changes for clients, and why"'
_BYTES_MAX = 800_000  # of all goldens
EXCHANGES = [
    pytest.param(family, scene, exchange.name, id=exchange.name.replace(" ", "-"))
    for family, scenes in FAMILIES.items()
    for scene in scenes
    for exchange in scene.exchanges
]


class Recorder:
    """Plays each scene once, when its first exchange is wanted."""

    def __init__(self, house: ServerHouse) -> None:
        self.house = house
        self._played: dict[str, dict[str, str]] = {}
        self._goldens = {family: read_goldens(family) for family in FAMILIES}

    def now(self, scene: Scene, name: str) -> str:
        """The exchange as it is."""
        if scene.name not in self._played:
            self._played[scene.name] = record(scene, self.house)
        return self._played[scene.name][name]

    def golden(self, family: str, name: str) -> str:
        """The exchange as it was recorded."""
        return self._goldens[family].get(name, "")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    house = ServerHouse(tmp_path_factory.mktemp("wire"))
    yield Recorder(house)
    house.close()


@pytest.mark.parametrize(("family", "scene", "name"), EXCHANGES)
def test_a_client_sees_what_it_saw_when_the_golden_was_recorded(
    recorder: Recorder, family: str, scene: Scene, name: str
) -> None:
    differs = difference(recorder.golden(family, name), recorder.now(scene, name))
    assert not differs, f"{name} differs; {_REWRITE} records it anew\n{differs}"


def test_goldens_hold_the_declared_exchanges_in_their_order_and_no_others() -> None:
    for family, scenes in FAMILIES.items():
        declared = [exchange.name for scene in scenes for exchange in scene.exchanges]
        assert list(read_goldens(family)) == declared, _REWRITE
    assert {path.stem for path in GOLDENS.iterdir()} == set(FAMILIES)
    assert sum(path.stat().st_size for path in GOLDENS.iterdir()) < _BYTES_MAX


def test_every_scene_and_every_exchange_has_a_name_of_its_own() -> None:
    scenes = [scene for family in FAMILIES.values() for scene in family]
    names = Counter(exchange.name for scene in scenes for exchange in scene.exchanges)
    names.update(f"scene {scene.name}" for scene in scenes)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_golden_changes_only_with_a_row_that_says_why() -> None:
    assert digest() == digest_in_table(), (
        f"the goldens are not those of the last row of CHANGES.md: {_REWRITE}"
    )
    rows = [line.split("|")[1:-1] for line in CHANGES.read_text().splitlines() if line.startswith("| 2")]
    for date, exchanges, why, of_files in (map(str.strip, row) for row in rows):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert exchanges
        assert len(why) >= 10
        assert re.fullmatch(r"[0-9a-f]{16}", of_files)


# -- changes that are planted in the product
def scene_of(exchange_name: str) -> tuple[str, Scene]:
    """The family and the scene of an exchange."""
    return next(
        (family, scene)
        for family, scenes in FAMILIES.items()
        for scene in scenes
        for step in scene.steps
        if isinstance(step, Exchange) and step.name == exchange_name
    )


def changes_in(recorder: Recorder, name: str) -> list[str]:
    """The lines of an exchange that are not as they were recorded, played again."""
    family, scene = scene_of(name)
    lines = difference(recorder.golden(family, name), record(scene, recorder.house)[name]).split("\n")
    return [line[1:] for line in lines if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]


def test_another_header_is_caught(recorder: Recorder) -> None:
    with mock.patch.dict(sse._HEADERS, {"Cache-Control": "no-store"}):
        changed = changes_in(recorder, "chat streamed")
    assert changed == ["< cache-control: no-cache", "< cache-control: no-store"]


def test_two_events_in_another_order_are_caught(recorder: Recorder) -> None:
    async def swapped(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        told = [event async for event in events]
        told[1:3] = told[2:0:-1]
        for event in told:
            yield event

    def begin(
        stream: sse.EventStream, events: AsyncGenerator[bytes, None], *given: object, **more: object
    ) -> None:
        in_order(stream, swapped(events), *given, **more)  # type: ignore[arg-type]

    in_order = sse.EventStream.__init__
    with mock.patch.object(sse.EventStream, "__init__", begin):
        changed = changes_in(recorder, "chat streamed")
    assert len(changed) == 2
    assert changed[0] == changed[1]
    assert '"content":"Hello"' in changed[0] or '"content":" world"' in changed[0]


def test_another_error_text_is_caught(recorder: Recorder) -> None:
    def shorter(error: BaseException) -> str:
        return message_of(error).replace("allowed: an object, {...}", "allowed: an object")

    message_of = errors.message_of
    with mock.patch.object(errors, "message_of", shorter):
        [was, now] = changes_in(recorder, "chat with a list")
        assert changes_in(recorder, "chat with NaN") == []
    assert was.replace(", {...}", "") == now
