"""Routes that go to every replica, and one answer made of all.

    lists        all rows, each with its `replica`        metrics     by label (metrics_text)
    new pins     made by all, or by none                  changes     done where the thing is

A replica that does not answer is left out, and named in x-octavo-replicas-missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import quote, urlencode

from starlette.responses import Response

from octavo.cluster.fleet import Replica
from octavo.cluster.metrics_text import merged_metrics
from octavo.cluster.passing import PassedAnswer
from octavo.cluster.upstream import NotSent, Outgoing, ReplicaLost, Upstream
from octavo.errors import EngineStopped
from octavo.server.body import parse_json
from octavo.server.errors import HttpRefusal, JsonObject, json_response
from octavo.server.metrics import CONTENT_TYPE

_SILENT_S = 5.0
_PIN_S = 300.0  # for a pin, whose prompt is computed before the answer
_PINS = "/v1/kv/pins"
MISSING_HEADER = "x-octavo-replicas-missing"


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """What one replica answered, whole."""

    replica: Replica
    response: Response

    @property
    def is_good(self) -> bool:
        """Whether it did what was asked."""
        return self.response.status_code < HTTPStatus.BAD_REQUEST

    def rows(self) -> JsonObject:
        """Its JSON object."""
        return parse_json(bytes(self.response.body))


@dataclass(frozen=True, slots=True)
class AllAnswers:
    """Those of all replicas that answered, by slot; `missing` are the others."""

    answers: Sequence[OneAnswer]
    missing: Sequence[Replica]

    @property
    def good(self) -> list[OneAnswer]:
        """Of those that did what was asked."""
        return [one for one in self.answers if one.is_good]

    @property
    def missing_names(self) -> str:
        """Of those that did not answer."""
        return ", ".join(one.name for one in self.missing)

    @property
    def headers(self) -> dict[str, str]:
        """Of the merged answer."""
        return {MISSING_HEADER: self.missing_names} if self.missing else {}


async def ask_all(upstream: Upstream, replicas: Sequence[Replica], out: Outgoing) -> AllAnswers:
    """Send the same request to each replica; HEAD goes as GET. A replica that is silent for 5 s, or for 300 s
    while it makes a pin, is missing. Raises EngineStopped if none answers."""
    if out.method == "HEAD":
        out = replace(out, method="GET")
    silent_s = _PIN_S if out.method == "POST" else _SILENT_S

    async def ask(replica: Replica) -> OneAnswer | None:
        try:
            received = await upstream.send(replica, out, silent_s)
            return OneAnswer(replica, await PassedAnswer(received, replica).whole())
        except (NotSent, ReplicaLost, EngineStopped):
            return None

    ordered = sorted(replicas, key=lambda one: one.slot)
    answers = await asyncio.gather(*map(ask, ordered))
    found = [one for one in answers if one is not None]
    if not found:
        raise EngineStopped("no replica answers; try again when one has started")
    missing = [one for one, answer in zip(ordered, answers, strict=True) if answer is None]
    return AllAnswers(found, missing)


def merged_lists(asked: AllAnswers) -> Response:
    """Lists as one. Where none has a list, the first refusal."""
    if not asked.good:
        return asked.answers[0].response
    data, totals = list[object](), list[int]()
    for one in asked.good:
        listed = one.rows()
        rows, total = listed["data"], listed.get("total")
        assert isinstance(rows, list)
        data += [row | {"replica": one.replica.name} for row in rows]
        totals += [total] if isinstance(total, int) else []
    whole: JsonObject = {"object": "list", "data": data}
    return json_response(whole | ({"total": sum(totals)} if totals else {}), headers=asked.headers)


def merged_sources(asked: AllAnswers) -> Response:
    """Where each replica sends KV events, by slot."""
    sources = {str(one.replica.slot): source for one in asked.good for source in one.rows().values()}
    return json_response(sources, headers=asked.headers)


def merged_changes(asked: AllAnswers) -> Response:
    """Done by those that have the thing: an answer of theirs. Where none has it, the first refusal."""
    response = (asked.good or asked.answers)[0].response
    response.headers.update(asked.headers)
    return response


def merged_scrapes(asked: AllAnswers, own: dict[str, bytes]) -> Response:
    """The metrics of all, and the relay's own."""
    texts = {one.replica.name: bytes(one.response.body).decode() for one in asked.good}
    texts |= {name: text.decode() for name, text in own.items()}
    return Response(merged_metrics(texts), headers={"Content-Type": CONTENT_TYPE} | asked.headers)


async def pinned_by_all(upstream: Upstream, replicas: Sequence[Replica], out: Outgoing) -> Response:
    """A new pin on all replicas; if one refuses it or does not answer, on none. Raises EngineStopped."""
    began = time.monotonic()
    asked = await ask_all(upstream, replicas, out)
    refused = next((one.response for one in asked.answers if not one.is_good), None)
    if refused is None and not asked.missing:
        return asked.answers[0].response
    if asked.good:
        await _undo_pin(upstream, asked, out, began)
    if refused is None:
        raise HttpRefusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"a pin is made by all replicas or by none, and these did not answer: {asked.missing_names}",
            code="replica_lost",
            headers=asked.headers,
        )
    refused.headers.update(asked.headers)
    return refused


async def _undo_pin(upstream: Upstream, asked: AllAnswers, out: Outgoing, began: float) -> None:
    """Delete the pin where this request made it. A replica that did not answer may hold an older pin of this
    name: only one that is younger than the request is deleted there."""
    pin = asked.good[0].rows()
    query = urlencode({"tenant": str(pin["tenant"])}) if pin.get("tenant") else ""
    path = f"{_PINS}/{quote(str(pin['name']), safe='')}" + (f"?{query}" if query else "")
    delete = replace(out, method="DELETE", path=path, body=())
    with contextlib.suppress(EngineStopped):
        await ask_all(upstream, [one.replica for one in asked.good], delete)
    with contextlib.suppress(EngineStopped):
        lists = await ask_all(upstream, asked.missing, replace(out, method="GET", path=_PINS, body=()))
        age_max = time.monotonic() - began
        made = [one.replica for one in lists.good if _has_pin(one, pin, age_max)]
        await ask_all(upstream, made, delete)


def _has_pin(listed: OneAnswer, pin: JsonObject, age_max: float) -> bool:
    """Whether a list of pins has this one, made within the last `age_max` seconds."""
    rows = listed.rows()["data"]
    assert isinstance(rows, list)
    return any(
        all(row.get(name) == pin.get(name) for name in ("name", "tenant")) and row["age"] <= age_max
        for row in rows
    )
