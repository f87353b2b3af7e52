"""Requests to all replicas, and the merge of their answers.

    lists        all rows, each with its `replica`        metrics     each sample with the label `replica`
    new pins     on all replicas or on none               changes     on the replicas that have the object

A replica that does not answer is left out, and named in x-octavo-replicas-missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from urllib.parse import quote, urlencode

from starlette.responses import Response

from octavo.cluster.fleet import Replica
from octavo.cluster.relayed_answer import RelayedAnswer
from octavo.cluster.upstream import NotSent, OutgoingRequest, ReplicaLost, Upstream
from octavo.errors import EngineStopped
from octavo.server.body import parse_json
from octavo.server.errors import HttpRefusal, JsonObject, json_response
from octavo.server.metrics import CONTENT_TYPE

_SILENT_S = 5.0
_PIN_S = 300.0  # for a pin, whose prompt is computed before the answer
_PINS = "/v1/kv/pins"
MISSING_HEADER = "x-octavo-replicas-missing"


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """The whole answer of one replica."""

    replica: Replica
    response: Response

    @property
    def is_good(self) -> bool:
        """Whether the replica did not refuse."""
        return self.response.status_code < HTTPStatus.BAD_REQUEST

    def json(self) -> JsonObject:
        """The JSON object of its body."""
        return parse_json(bytes(self.response.body))


@dataclass(frozen=True, slots=True)
class AllAnswers:
    """The answers by slot; `missing`: the replicas without one."""

    answers: Sequence[ReplicaAnswer]
    missing: Sequence[Replica]

    @property
    def good(self) -> list[ReplicaAnswer]:
        """The answers that are no refusals."""
        return [one for one in self.answers if one.is_good]

    @property
    def missing_names(self) -> str:
        """The names of replicas without an answer."""
        return ", ".join(one.name for one in self.missing)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the merged answer."""
        return {MISSING_HEADER: self.missing_names} if self.missing else {}


async def send_to_all(upstream: Upstream, replicas: Sequence[Replica], out: OutgoingRequest) -> AllAnswers:
    """Send the same request to each replica; HEAD goes as GET. A replica that is silent for 5 s, or for 300 s
    while it makes a pin, is missing. Raises EngineStopped if none answers."""
    if out.method == "HEAD":
        out = replace(out, method="GET")
    silent_s = _PIN_S if out.method == "POST" else _SILENT_S

    async def send(replica: Replica) -> ReplicaAnswer | None:
        try:
            received = await upstream.send(replica, out, silent_s)
            return ReplicaAnswer(replica, await RelayedAnswer(received, replica).whole())
        except (NotSent, ReplicaLost, EngineStopped):
            return None

    ordered = sorted(replicas, key=lambda one: one.slot)
    answers = await asyncio.gather(*map(send, ordered))
    found = [one for one in answers if one is not None]
    if not found:
        raise EngineStopped("no replica answers; try again when one has started")
    missing = [one for one, answer in zip(ordered, answers, strict=True) if answer is None]
    return AllAnswers(found, missing)


def merge_lists(result: AllAnswers) -> Response:
    """Concatenate lists. If no replica has one, the first refusal."""
    if not result.good:
        return result.answers[0].response
    data, totals = list[object](), list[int]()
    for one in result.good:
        listed = one.json()
        rows, total = listed["data"], listed.get("total")
        assert isinstance(rows, list)
        data += [row | {"replica": one.replica.name} for row in rows]
        totals += [total] if isinstance(total, int) else []
    whole: JsonObject = {"object": "list", "data": data}
    return json_response(whole | ({"total": sum(totals)} if totals else {}), headers=result.headers)


def merge_sources(result: AllAnswers) -> Response:
    """The addresses of the replicas' KV events, by slot."""
    sources = {str(one.replica.slot): source for one in result.good for source in one.json().values()}
    return json_response(sources, headers=result.headers)


def merge_changes(result: AllAnswers) -> Response:
    """The answer of a replica that has the object. If none has it, the first refusal."""
    response = (result.good or result.answers)[0].response
    response.headers.update(result.headers)
    return response


def merge_scrapes(result: AllAnswers, own: dict[str, bytes]) -> Response:
    """The metrics of all replicas and of the relay."""
    texts = {one.replica.name: bytes(one.response.body).decode() for one in result.good}
    texts |= {name: text.decode() for name, text in own.items()}
    return Response(merge_metrics(texts), headers={"Content-Type": CONTENT_TYPE} | result.headers)


async def pin_on_all(upstream: Upstream, replicas: Sequence[Replica], out: OutgoingRequest) -> Response:
    """Make a pin on all replicas; if one refuses it or does not answer, on none. Raises EngineStopped."""
    began = time.monotonic()
    result = await send_to_all(upstream, replicas, out)
    refused = next((one.response for one in result.answers if not one.is_good), None)
    if refused is None and not result.missing:
        return result.answers[0].response
    if result.good:
        await _undo_pin(upstream, result, out, began)
    if refused is None:
        raise HttpRefusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"a pin is made by all replicas or by none, and these did not answer: {result.missing_names}",
            code="replica_lost",
            headers=result.headers,
        )
    refused.headers.update(result.headers)
    return refused


async def _undo_pin(upstream: Upstream, result: AllAnswers, out: OutgoingRequest, began: float) -> None:
    """Delete the pin where this request made it. A replica that did not answer may hold an older pin of this
    name: only one that is younger than the request is deleted there."""
    pin = result.good[0].json()
    query = urlencode({"tenant": str(pin["tenant"])}) if pin.get("tenant") else ""
    path = f"{_PINS}/{quote(str(pin['name']), safe='')}" + (f"?{query}" if query else "")
    delete = replace(out, method="DELETE", path=path, body=())
    with contextlib.suppress(EngineStopped):
        await send_to_all(upstream, [one.replica for one in result.good], delete)
    listing = replace(out, method="GET", path=_PINS, body=())

    async def undo_on(replica: Replica) -> None:
        with contextlib.suppress(EngineStopped):
            pins = (await send_to_all(upstream, [replica], listing)).good
            if pins and _has_pin(pins[0], pin, time.monotonic() - began):
                await send_to_all(upstream, [replica], delete)

    await asyncio.gather(*map(undo_on, result.missing))


def _has_pin(listed: ReplicaAnswer, pin: JsonObject, age_max: float) -> bool:
    """Whether a list of pins has this one, made within the last `age_max` seconds."""
    rows = listed.json()["data"]
    assert isinstance(rows, list)
    return any(
        all(row.get(name) == pin.get(name) for name in ("name", "tenant")) and row["age"] <= age_max
        for row in rows
    )


def merge_metrics(texts: Mapping[str, str]) -> str:
    """Prometheus texts by replica as one text: each sample gets the label `replica`, each family one head.
    O(bytes).

    octavo_blocks{state="free"} 5     -->     octavo_blocks{replica="replica-0",state="free"} 5
    """
    heads, samples = dict[str, list[str]](), dict[str, list[str]]()
    for name, text in texts.items():
        label, own = f'replica="{name}"', list[str]()
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                own = samples.setdefault(family, [])
                head = heads.setdefault(family, [])
                if len(head) < 2 and line not in head:
                    head.append(line)
            elif line:
                own.append(_with_label(line, label))
    return "".join(f"{line}\n" for family, head in heads.items() for line in (*head, *samples[family]))


def _with_label(sample: str, label: str) -> str:
    end = sample.index(" ")
    brace = sample.find("{", 0, end)
    if brace < 0:
        return f"{sample[:end]}{{{label}}}{sample[end:]}"
    comma = "" if sample[brace + 1] == "}" else ","
    return f"{sample[: brace + 1]}{label}{comma}{sample[brace + 1 :]}"
