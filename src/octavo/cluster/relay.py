"""The edge of a cluster: the application of `octavo serve` with replicas in place of an engine.

    uvicorn -> Targets, AccessLog, Preflights, Guard (as in `octavo serve`) -> Relay.answer, by Route.spread:

    PREFIX    the handler finds the prompt, the router chooses by the names of its blocks
    LOAD      the same without a prompt    ID        the slot that the id names
    ALL       all replicas, merged         REPLICA   the one of ?replica=    RELAY   the handler itself

If a replica is lost before the client has a byte of its answer, the request goes to the next one. A request
that writes a session or a response is sent again only if the lost replica cannot have read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import parse_qsl, urlencode

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from octavo.cluster.fan_out import (
    merge_changes,
    merge_lists,
    merge_scrapes,
    merge_sources,
    pin_on_all,
    send_to_all,
)
from octavo.cluster.feed_reader import FeedReader
from octavo.cluster.fleet import Fleet, NoReplicaLeft, Replica
from octavo.cluster.prompts import BodyRecorder, PromptReader, names_of
from octavo.cluster.relay_metrics import RelayMetrics, cluster_view, relay_label
from octavo.cluster.relayed_answer import RelayedAnswer
from octavo.cluster.upstream import NotSent, OutgoingRequest, ReplicaLost, Upstream
from octavo.errors import EngineStopped, InvalidRequest, QueueFull, shown
from octavo.routing.prompt_costs import RoutedPrompt
from octavo.routing.router import Choice, NoReplica, Router
from octavo.routing.slots import slot_of
from octavo.server import about, kv
from octavo.server.app import create_app
from octavo.server.body import decompress_body, parse_json, read_raw
from octavo.server.dialects.error_shapes import request_id_of
from octavo.server.errors import HttpRefusal, JsonObject, json_response
from octavo.server.generation import Edge, until_disconnect
from octavo.server.large_bodies import is_large
from octavo.server.route import Route, Spread
from octavo.server.run import Server, make_server
from octavo.server.settings import ServerSettings
from octavo.serving.client import EngineClient

_WAITING_MAX = 4096  # queued texts of a tenant, to be tokenised
_FIRST_REPORT_S, _POLL_S = 5.0, 0.05  # while a running replica has not reported to the router yet
_SLOT_RETRY_S, _SLOT_PAUSE_S = 2.0, 0.2  # while the replica of a slot refuses connections
_ROUTED_MAX = 10_000  # requests whose routing is kept
_UNKNOWN_REASON = (
    "not known to this relay: another relay sent the request, or this one has sent 10,000 since then"
)
_STOPPING = "the server is shutting down and takes no more requests"
_BUSY_OR_ENDING = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def create_relay_app(
    renderer: EngineClient, settings: ServerSettings, router: Router, fleet: Fleet
) -> Starlette:
    """The application over a fleet, whose reports it follows from its start. `renderer`: from
    `start_renderer`, of the model that all replicas serve. Raises ConfigError."""
    relay = Relay(renderer, router, fleet)
    app = create_app(renderer, settings, cluster=relay)
    app.state.relay = relay
    return app


def create_relay_server(
    renderer: EngineClient, settings: ServerSettings, router: Router, fleet: Fleet
) -> Server:
    """The server of this application, for the caller's event loop. When it stops, running answers have the
    drain timeout to finish. Raises ConfigError."""
    app = create_relay_app(renderer, settings, router, fleet)
    server = make_server(app, renderer, settings, kind=RelayServer)
    assert isinstance(server, RelayServer)
    server.relay = app.state.relay
    return server


class RelayServer(Server):
    """A server whose requests run on replicas."""

    relay: Relay

    async def drain_requests(self) -> None:
        """Wait for running answers within the drain timeout, but not for pages that watch a replica."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                while self.relay.num_reserved and not self.end_now.is_set():
                    await asyncio.sleep(0.02)
        await self.relay.stop()


class Relay:
    """Answers a cluster's clients. On one event loop."""

    def __init__(self, renderer: EngineClient, router: Router, fleet: Fleet) -> None:
        self._renderer = renderer
        self._router = router
        self._fleet = fleet
        self._upstream = Upstream(fleet.cluster_key)
        self._feeds = FeedReader(router, fleet, self._upstream)
        self._metrics = RelayMetrics(router)
        self._reader: PromptReader | None = None
        self._routed: OrderedDict[str, JsonObject] = OrderedDict()  # by request id
        self._num_sent = 0
        self._open = set[RelayedAnswer]()
        self._pinning = set[asyncio.Task[Response]]()
        self._is_stopping = False
        self.num_reserved = 0  # answers that have a reserved replica

    # -- for the application

    def begin(self) -> None:
        """Start to follow the replicas. On the event loop."""
        self._feeds.begin()

    async def stop(self) -> None:
        """End running answers in order, and refuse new requests."""
        self._is_stopping = True
        for answer in list(self._open):
            answer.stop(_STOPPING)
        await self._upstream.close()

    async def close(self) -> None:
        """Close all connections to replicas."""
        await self._feeds.close()
        await self._upstream.close()

    def view(self) -> JsonObject:
        """GET /cluster."""
        return cluster_view(self._fleet, self._router, self._metrics)

    async def answer(self, edge: Edge, route: Route, request: Request) -> Response:
        """The answer to a request of this route. Raises OctavoError."""
        match route.spread:
            case Spread.RELAY if route.handler is about.health:
                return self._health()
            case Spread.RELAY:
                return await route.handler(edge, request)
            case Spread.PREFIX:
                return await self._by_prefix(edge, route, request)
        body = await read_raw(request, edge.body_bytes_max)
        out = OutgoingRequest.of(request, body)
        match route.spread:
            case Spread.LOAD:
                creates = route.success == HTTPStatus.CREATED
                return await self._to_best(request, out, _any_prompt(request), is_write=creates)
            case Spread.ID:
                return await self._by_id(route, request, out)
            case Spread.ALL if "replica" not in request.query_params:
                return await self._to_all(edge, route, request, out)
        return await self._to_named(request, out)

    def _health(self) -> Response:
        """Whether the router has a replica to choose."""
        if not self._router.fingerprints():
            raise _no_replica()
        return json_response({"status": "ok"})

    # -- one replica, chosen

    async def _by_prefix(self, edge: Edge, route: Route, request: Request) -> Response:
        if self._reader is None:
            self._reader = PromptReader(self._renderer, edge, _WAITING_MAX)
        recorder = BodyRecorder(request)
        found = await self._reader.read(route, recorder.request)
        if isinstance(found, Response):
            return found
        out = OutgoingRequest.of(request, recorder.chunks)
        if isinstance(found, str):
            return await self._to_slot(request, out, found)
        names = await names_of(found, self._router.fingerprints())
        key = b"".join(token.to_bytes(4, "little") for token in found.prompt[:64])
        prompt = RoutedPrompt(len(found.prompt), names, found.params.max_tokens or 0, key, found.tenant)
        return await self._to_best(request, out, prompt, is_write=found.session != "")

    async def _to_best(
        self, request: Request, out: OutgoingRequest, prompt: RoutedPrompt, *, is_write: bool
    ) -> Response:
        """The answer of the replica that the router chooses, or of the next one if that is lost, full or
        draining."""
        excluded, refusal = set[str](), None
        waits_until = time.monotonic() + _FIRST_REPORT_S
        while True:
            if self._is_stopping:
                raise EngineStopped(_STOPPING)
            choice = self._router.choose(prompt, time.monotonic(), frozenset(excluded))
            if isinstance(choice, NoReplica):
                if refusal is not None:
                    is_full = refusal.status_code == HTTPStatus.TOO_MANY_REQUESTS
                    self._router.on_refused(NoReplica.FULL if is_full else NoReplica.NONE)
                    return refusal
                # In an update the last old replica drains as soon as the first new one runs.
                ids = {one.replica_id for one in self._running()} - excluded
                if ids - self._feeds.known and time.monotonic() < waits_until:
                    await until_disconnect(request, asyncio.sleep(_POLL_S))
                    continue
                self._router.on_refused(choice)
                raise _all_full() if choice is NoReplica.FULL else _no_replica()
            try:
                answer = await until_disconnect(request, self._send_chosen(choice, out))
            except NoReplicaLeft:
                excluded |= {choice.replica_id, *choice.ranked}
                continue
            except (NotSent, ReplicaLost) as lost:
                self._metrics.lost.inc()
                if is_write and isinstance(lost, ReplicaLost):
                    raise _maybe_written(lost.replica) from None
                excluded.add(lost.replica.replica_id)
                continue
            status = answer.status_code
            if status not in _BUSY_OR_ENDING or (is_write and status != HTTPStatus.TOO_MANY_REQUESTS):
                return answer
            self._metrics.refused.inc()
            excluded.add(answer.replica.replica_id)
            with contextlib.suppress(EngineStopped):  # lost within its refusal
                refusal = await until_disconnect(request, answer.whole())

    async def _send_chosen(self, choice: Choice, out: OutgoingRequest) -> RelayedAnswer:
        """Send to the chosen replica and return its answer, whose head has come. Raises NoReplicaLeft,
        NotSent or ReplicaLost."""
        async with AsyncExitStack() as stack:
            replica = await self._reserve(stack, (choice.replica_id, *choice.ranked))
            self._num_sent += 1
            key = str(self._num_sent)
            self._router.on_sent(replica.replica_id, choice, key, time.monotonic())
            stack.callback(self._router.on_ended, key)
            answer = await self._open_answer(stack, replica, out)
            if await answer.begin():
                self._router.on_first_token(key)
            is_first = replica.replica_id == choice.replica_id
            self._note_routed(
                answer, choice.reason if is_first else "the replica chosen first took no request"
            )
            return answer

    async def _reserve(self, stack: AsyncExitStack, ranked: Sequence[str]) -> Replica:
        """Reserve the first of these that can be reserved, until the stack ends. Raises NoReplicaLeft."""
        replica = await stack.enter_async_context(self._fleet.reserve(ranked))
        self.num_reserved += 1
        stack.callback(self._end_reservation)
        return replica

    def _end_reservation(self) -> None:
        self.num_reserved -= 1

    async def _open_answer(
        self, stack: AsyncExitStack, replica: Replica, out: OutgoingRequest
    ) -> RelayedAnswer:
        """The replica's answer, which takes the stack's contents over. Raises NotSent or ReplicaLost."""
        self._metrics.requests.labels(replica.name).inc()
        stack.enter_context(self._metrics.answering(replica.name))
        received = await self._upstream.send(replica, out)
        answer = RelayedAnswer(received, replica, self._metrics.cut.inc)
        self._open.add(answer)
        stack.callback(self._open.discard, answer)
        answer.stack = stack.pop_all()
        return answer

    def _note_routed(self, answer: RelayedAnswer, reason: str) -> None:
        """Keep where the answer's requests went and why, for GET /v1/requests/{id}."""
        for request_id in filter(None, answer.headers.get("x-octavo-request", "").split(",")):
            self._routed[request_id] = {"replica": answer.replica.name, "reason": reason}
        while len(self._routed) > _ROUTED_MAX:
            self._routed.popitem(last=False)

    # -- one replica, named

    async def _by_id(self, route: Route, request: Request, out: OutgoingRequest) -> Response:
        [kept_id] = request.path_params.values()
        if route.handler is not kv.show_request:
            return await self._to_slot(request, out, kept_id)
        answer = await self._to_slot(request, replace(out, method="GET"), kept_id)  # also for HEAD
        if answer.status_code != HTTPStatus.OK or not isinstance(answer, RelayedAnswer):
            return answer
        whole = await answer.whole()
        routed = self._routed.get(kept_id, {"replica": answer.replica.name, "reason": _UNKNOWN_REASON})
        row = parse_json(bytes(whole.body)) | {"routing": routed}
        return json_response(row, headers={"x-octavo-replica": answer.replica.name})

    async def _to_slot(self, request: Request, out: OutgoingRequest, kept_id: str) -> Response:
        """The answer of the replica whose slot the id names. If it refuses the connection, the slot is tried
        again for a few seconds. An id without a slot is unknown to every replica: any of them refuses it."""
        slot = slot_of(kept_id)
        if slot is None:
            return await self._to_best(request, out, _any_prompt(request), is_write=False)
        until = time.monotonic() + _SLOT_RETRY_S
        while True:
            if self._is_stopping:
                raise EngineStopped(_STOPPING)
            replica = next((one for one in self._running() if one.slot == slot), None)
            if replica is None:
                raise _empty_slot(kept_id, slot)
            try:
                answer = await until_disconnect(request, self._send_reserved(replica, out))
                if out.method == "POST":
                    self._note_routed(answer, f"{shown(kept_id)} is kept by slot {slot}")
                return answer
            except NoReplicaLeft:
                raise _empty_slot(kept_id, slot) from None
            except NotSent:  # it has read nothing: the request may be sent again
                if time.monotonic() >= until:
                    raise _empty_slot(kept_id, slot) from None
                await until_disconnect(request, asyncio.sleep(_SLOT_PAUSE_S))
            except ReplicaLost as lost:
                raise _maybe_written(lost.replica) from None

    async def _send_reserved(self, replica: Replica, out: OutgoingRequest) -> RelayedAnswer:
        async with AsyncExitStack() as stack:
            await self._reserve(stack, (replica.replica_id,))
            return await self._open_answer(stack, replica, out)

    async def _to_named(self, request: Request, out: OutgoingRequest) -> Response:
        """The answer of the replica of ?replica=; for a GET without it, of the lowest slot's. The replica is
        not reserved: a page that is left open must not keep it from ending."""
        replicas, query = self._running(), parse_qsl(out.path.partition("?")[2], keep_blank_values=True)
        if not replicas:
            raise _no_replica()
        named, names = dict(query).get("replica"), ", ".join(one.name for one in replicas)
        if named is None and request.method not in ("GET", "HEAD"):
            raise InvalidRequest(
                f"{request.method} changes one replica; allowed: ?replica= with {names}", param="replica"
            )
        replica = next((one for one in replicas if named in (None, one.name)), None)
        if replica is None:
            raise InvalidRequest(f"replica is {shown(named)}; allowed: {names}", param="replica")
        rest = urlencode([(name, value) for name, value in query if name != "replica"])
        path = out.path.partition("?")[0] + (f"?{rest}" if rest else "")
        try:
            return await until_disconnect(request, self._send_plain(replica, out.to(path)))
        except (NotSent, ReplicaLost) as lost:
            raise _maybe_written(lost.replica) from None

    async def _send_plain(self, replica: Replica, out: OutgoingRequest) -> RelayedAnswer:
        async with AsyncExitStack() as stack:
            return await self._open_answer(stack, replica, out)

    # -- all replicas

    async def _to_all(self, edge: Edge, route: Route, request: Request, out: OutgoingRequest) -> Response:
        if route.handler is kv.create_pin:
            session = _session_of(await decompress_body(request, list(out.body), edge.body_bytes_max))
            if session is not None:
                return await self._to_slot(request, out, session)
            return await until_disconnect(request, self._pin(out))
        result = await until_disconnect(request, send_to_all(self._upstream, self._running(), out))
        if route.handler is about.metrics:
            text = self._metrics.render() + generate_latest(edge.metrics.edge_registry)
            return merge_scrapes(result, {relay_label(): text})
        if route.handler is about.kv_event_sources:
            return merge_sources(result)
        return merge_lists(result) if route.method == "GET" else merge_changes(result)

    async def _pin(self, out: OutgoingRequest) -> Response:
        """Make a pin on all replicas or undo it, even if its client disconnects. Raises OctavoError."""
        pinning = asyncio.create_task(pin_on_all(self._upstream, self._running(), out))
        self._pinning.add(pinning)
        pinning.add_done_callback(self._pinning.discard)
        return await asyncio.shield(pinning)

    def _running(self) -> list[Replica]:
        """Replicas with an address, by slot."""
        known = self._fleet.replicas().values()
        return sorted((one for one in known if one.base_url), key=lambda one: one.slot)


def _any_prompt(request: Request) -> RoutedPrompt:
    """The prompt of a request that goes by load alone. The key spreads requests among equally free
    replicas."""
    return RoutedPrompt(0, key=request_id_of(request.scope).encode())


def _session_of(body: Sequence[bytes]) -> str | None:
    """The session whose tokens a pin keeps. A large body has a prompt, so it names no session."""
    if is_large(body):
        return None
    session = parse_json(b"".join(body)).get("session")
    return session if isinstance(session, str) else None


def _no_replica() -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "no replica serves now; try again when one has started",
        code="no_replica",
        headers={"Retry-After": "1"},
    )


def _all_full() -> QueueFull:
    return QueueFull("the queues of all replicas are full; try again shortly")


def _empty_slot(kept_id: str, slot: int) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"{shown(kept_id)} is kept by slot {slot}, which has no replica now; try again when one has started",
        code="slot_without_replica",
        headers={"Retry-After": "1"},
    )


def _maybe_written(replica: Replica) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"{replica.name} was lost before it answered; it may or may not have done what the request says",
        code="replica_lost",
    )
