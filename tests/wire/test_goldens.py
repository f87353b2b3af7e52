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
from tests.wire.exchange import Exchange, Scenario
from tests.wire.record import (
    CHANGES,
    GOLDENS,
    difference,
    digest,
    digest_in_table,
    read_goldens,
    record,
)
from tests.wire.scenarios import FAMILIES
from tests.wire.servers import ServerThread

from octavo.server import errors, sse

_REWRITE = 'python -m tests.wire.record --why "what changes for clients, and why"'
_BYTES_MAX = 800_000  # of all goldens
EXCHANGES = [
    pytest.param(family, scenario, exchange.name, id=exchange.name.replace(" ", "-"))
    for family, scenarios in FAMILIES.items()
    for scenario in scenarios
    for exchange in scenario.exchanges
]


class Recorder:
    """Runs each scenario once, when its first exchange is wanted."""

    def __init__(self, servers: ServerThread) -> None:
        self.servers = servers
        self._recorded: dict[str, dict[str, str]] = {}
        self._goldens = {family: read_goldens(family) for family in FAMILIES}

    def now(self, scenario: Scenario, name: str) -> str:
        """The exchange as it is."""
        if scenario.name not in self._recorded:
            self._recorded[scenario.name] = record(scenario, self.servers)
        return self._recorded[scenario.name][name]

    def golden(self, family: str, name: str) -> str:
        """The exchange as it was recorded."""
        return self._goldens[family].get(name, "")


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    servers = ServerThread(tmp_path_factory.mktemp("wire"))
    yield Recorder(servers)
    servers.close()


@pytest.mark.parametrize(("family", "scenario", "name"), EXCHANGES)
def test_a_client_sees_what_it_saw_when_the_golden_was_recorded(
    recorder: Recorder, family: str, scenario: Scenario, name: str
) -> None:
    differs = difference(recorder.golden(family, name), recorder.now(scenario, name))
    assert not differs, f"{name} differs; {_REWRITE} records it again\n{differs}"


@pytest.fixture(scope="module")
def front_end_recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    servers = ServerThread(tmp_path_factory.mktemp("wire"), is_front_end=True)
    yield Recorder(servers)
    servers.close()


@pytest.mark.parametrize(("family", "scenario", "name"), EXCHANGES)
def test_a_front_end_of_an_engine_in_another_process_answers_alike(
    front_end_recorder: Recorder, family: str, scenario: Scenario, name: str
) -> None:
    differs = difference(front_end_recorder.golden(family, name), front_end_recorder.now(scenario, name))
    assert not differs, f"{name} differs\n{differs}"


def test_goldens_hold_the_declared_exchanges_in_their_order_and_no_others() -> None:
    for family, scenarios in FAMILIES.items():
        declared = [exchange.name for scenario in scenarios for exchange in scenario.exchanges]
        assert list(read_goldens(family)) == declared, _REWRITE
    assert {path.stem for path in GOLDENS.iterdir()} == set(FAMILIES)
    assert sum(path.stat().st_size for path in GOLDENS.iterdir()) < _BYTES_MAX


def test_every_scene_and_every_exchange_has_a_name_of_its_own() -> None:
    scenarios = [scenario for family in FAMILIES.values() for scenario in family]
    names = Counter(exchange.name for scenario in scenarios for exchange in scenario.exchanges)
    names.update(f"scenario {scenario.name}" for scenario in scenarios)
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
def scenario_of(exchange_name: str) -> tuple[str, Scenario]:
    """The family and the scenario of an exchange."""
    return next(
        (family, scenario)
        for family, scenarios in FAMILIES.items()
        for scenario in scenarios
        for step in scenario.steps
        if isinstance(step, Exchange) and step.name == exchange_name
    )


def changes_in(recorder: Recorder, name: str) -> list[str]:
    """The lines of an exchange that are not as they were recorded, in another run."""
    family, scenario = scenario_of(name)
    lines = difference(recorder.golden(family, name), record(scenario, recorder.servers)[name]).split("\n")
    return [line[1:] for line in lines if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]


def test_another_header_is_caught(recorder: Recorder) -> None:
    with mock.patch.dict(sse._HEADERS, {"Cache-Control": "no-store"}):
        changed = changes_in(recorder, "chat streamed")
    assert changed == ["< cache-control: no-cache", "< cache-control: no-store"]


def test_two_events_in_another_order_are_caught(recorder: Recorder) -> None:
    async def swapped(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        sent = [event async for event in events]
        sent[1:3] = sent[2:0:-1]
        for event in sent:
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
