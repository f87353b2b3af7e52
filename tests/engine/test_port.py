"""What crosses into the engine's thread: values, each with an encoding; and one file that answers them."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import request, settle, tiny_engine

import octavo
from octavo.conversations.responses import PreviousBusy
from octavo.engine import codec, port
from octavo.engine.codec import (
    AnyCommand,
    Refusal,
    decode_reply_as,
    encode_reply,
    reply_type,
)
from octavo.engine.core import Engine
from octavo.engine.port import Command, View
from octavo.errors import (
    InvalidRequest,
    OctavoError,
    QueueFull,
    RequestFailed,
    SessionBusy,
    SessionRefused,
    UnknownPin,
    UnknownSession,
)
from octavo.grammar import Thinking, of_schema
from octavo.kernels.native_ops import NativeOps
from octavo.memory.quota import TenantPolicy
from octavo.params import BeamParams, Pooling, SamplerParams, Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.retention.session_table import StoredSession
from octavo.types import TransferDone

KINDS: tuple[type[Command[object]], ...] = get_args(AnyCommand)
SAID = request(1, range(2, 40), 5)
FULL = replace(
    SAID,
    params=SamplerParams(
        logit_bias=((3, 1.5),),
        stop=("x",),
        stop_token_ids=(4,),
        banned_sequences=((2, 3),),
        grammar=of_schema({"type": "object", "properties": {"a": {"type": "string"}}}).of_tenant("alice"),
        thinking=Thinking(max_tokens=3),
        logprobs=2,
    ),
    tenant="alice",
    timeouts=Timeouts(total=3.0),
    cache_salt="s",
)
BEAMS = replace(SAID, params=SamplerParams(temperature=0.0, beams=BeamParams(3, early_stopping="never")))
POOLED = replace(
    SAID, max_tokens=1, params=SamplerParams(max_tokens=1, temperature=0.0, pooling=Pooling.MEAN)
)
ORDER = PinRequest("greeting", tuple(range(2, 40)), 60.0)
SESSION = StoredSession("s1", "", bytes(4 * 40), 60.0, 50.0)
FORK = StoredSession("s2", "", bytes(4 * 40), 60.0, 60.0)
# In an order in which an engine answers each of them.
EXAMPLES: tuple[Command[object], ...] = (
    *(port.Submit(one) for one in (SAID, replace(BEAMS, request_id=2), replace(POOLED, request_id=3))),
    port.Submit(replace(SAID, request_id=4, fills_pin="greeting"), ORDER),
    port.Submit(replace(SAID, request_id=5, session="s0", session_ttl=9.0), fallback="they differ"),
    port.FitRequest(replace(SAID, request_id=6, max_tokens=0)),
    port.StopTurn("s0", 5, 40),
    port.ViewRequests(),
    port.ViewRequests("", 1),
    port.Cancel(1),
    port.Cancel(4, 0),
    port.SetTenants((TenantPolicy("alice", 2.0, 3, 40),)),
    port.SetTenants(()),
    port.Resize(150),
    port.SetTarget(0.05),
    port.SetTarget(None),
    port.ReadMemory(1 << 30),
    port.FindPin(ORDER, 4),
    port.DropPin(ORDER, 4),
    port.RenewPin("", "kept", 30.0),
    port.ViewPins(),
    port.Unpin("", "kept"),
    port.CheckTenant(""),
    port.RestoreSession(SESSION),
    port.ForkSession("s1", FORK),
    port.ViewSessions(("s1", "s2", "none")),
    port.RenewSession("s1"),
    port.SuspendSession("", "s1"),
    port.FindSlots("", "s1"),
    port.LoseBlocks([b"n" * 32]),
    port.ConfirmSuspended("", "s1", 2),
    port.AbandonSuspension("s1"),
    port.ForgetSession("", "s2"),
    port.FinishTransfer(TransferDone(3, True, 0.1)),
    port.ViewStats(),
    port.ViewLoad(),
    port.ViewKv(),
    port.ViewKv(""),
    port.ViewGlimpse(0),
)


def engine_with_a_pin() -> Engine:
    engine = tiny_engine(NativeOps(), depth=0)
    kept = PinRequest("kept", tuple(range(2, 40)), 60.0)
    engine.apply(port.Submit(replace(SAID, request_id=90, max_tokens=1, fills_pin="kept"), kept))
    while engine.has_work:
        engine.step()
    return engine


def test_every_kind_of_command_has_an_example() -> None:
    assert {type(command) for command in EXAMPLES} == set(KINDS)
    defined = {
        value
        for value in vars(port).values()
        if isinstance(value, type) and issubclass(value, Command) and value not in (Command, View)
    }
    assert defined == set(KINDS)


@pytest.mark.parametrize("command", [*EXAMPLES, port.Submit(FULL)], ids=lambda c: type(c).__name__)
def test_a_command_is_the_same_after_it_was_encoded(command: Command[object]) -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=AnyCommand)
    assert type(again) is type(command)
    assert again == command


def test_every_reply_of_an_engine_is_the_same_after_it_was_encoded() -> None:
    engine = engine_with_a_pin()
    answered = set()
    for command in EXAMPLES:
        if isinstance(command, port.ReadMemory | port.FinishTransfer):
            continue  # replies None; there is no watch and no tier here
        with contextlib.suppress(SessionRefused, UnknownSession, SessionBusy, RequestFailed):
            reply = engine.apply(command)
            assert decode_reply_as(reply_type(type(command)), encode_reply(reply)) == reply
            answered.add(type(command))
    refused = {port.SuspendSession, port.ReadMemory, port.FinishTransfer}
    assert set(KINDS) - answered == refused
    blocks = engine.apply(port.ViewSessions(("s1",)))[0]  # what the one that was refused replies elsewhere
    assert decode_reply_as(reply_type(port.SuspendSession), encode_reply(blocks)) == blocks
    for kind in (port.ReadMemory, port.FinishTransfer):
        assert decode_reply_as(reply_type(kind), encode_reply(None)) is None
    settle(engine)
    engine.close()


def test_a_refusal_is_the_same_error_with_its_field_and_code() -> None:
    for error in (
        QueueFull("full"),
        UnknownPin("none", param="name"),
        PreviousBusy("busy", param="p", code="c"),
    ):
        with pytest.raises(OctavoError) as raised:
            decode_reply_as(reply_type(port.Resize), encode_reply(error))
        again = raised.value
        assert str(again) == str(error)
        assert isinstance(error, type(again))
        assert getattr(again, "param", None) == getattr(error, "param", None) or isinstance(
            error, SessionBusy
        )
    assert type(Refusal("shown", "text").to_error()) is OctavoError, "no function of the module is called"


def test_bytes_that_are_no_reply_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    good = encode_reply(3)
    for data, said in (
        (b"", "begins with bytes none; allowed: 02 00"),
        (b"\x01" + good[1:], "begins with bytes 01 00"),
        (good[:-1], "these bytes are no reply"),
        (encode_reply("3"), "these bytes are no reply"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            decode_reply_as(int, data)
    monkeypatch.setattr(codec, "REPLY_BYTES_MAX", 20)
    with pytest.raises(InvalidRequest, match="allowed: 20"):
        encode_reply("a" * 30)
    with pytest.raises(InvalidRequest, match="allowed: 20"):
        decode_reply_as(int, good + bytes(20))


@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_bytes_make_a_command_or_an_error(command: Command[object], data: st.DataObject) -> None:
    encoded = bytearray(msgspec.msgpack.encode(command))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError, InvalidRequest):
        assert isinstance(msgspec.msgpack.decode(bytes(encoded), type=AnyCommand), KINDS)


# -- gates

_PLAIN = {int, float, str, bytes, bool, type(None)}


def _parts_of(kind: object, seen: set[object]) -> Iterator[object]:
    """The leaves of a type: those that are no plain data are what the gate refuses."""
    if kind in seen:
        return
    seen.add(kind)
    origin = get_origin(kind)
    if origin is Literal:
        return
    if origin in (list, tuple, dict, frozenset, Mapping, typing.Union, types.UnionType):
        for part in get_args(kind):
            if part is not Ellipsis:
                yield from _parts_of(part, seen)
    elif kind in _PLAIN or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return
    elif isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        is_frozen = (
            kind.__struct_config__.frozen
            if issubclass(kind, msgspec.Struct)
            else kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        )
        if not is_frozen:
            yield kind
        for part in typing.get_type_hints(kind).values():
            if get_origin(part) is not typing.ClassVar:
                yield from _parts_of(part, seen)
    else:
        yield kind


def test_commands_and_replies_are_frozen_and_of_plain_data() -> None:
    wrong = [
        f"{kind.__name__}: {part}"
        for kind in KINDS
        for whole in (kind, reply_type(kind))
        for part in _parts_of(whole, set())
    ]
    assert wrong == []


def test_the_gate_sees_what_is_no_plain_data() -> None:
    class Bad(Command[Iterator[int]], frozen=True):
        call: typing.Callable[[int], int]

    Bad.__annotations__["call"] = typing.Callable[[int], int]
    assert list(_parts_of(Bad, set())) == [typing.Callable[[int], int]]
    assert list(_parts_of(reply_type(Bad), set())) == [Iterator[int]]
    assert list(_parts_of(Engine, set())) == [Engine]


def insides_in(tree: ast.AST) -> list[int]:
    """Lines that reach into a scheduler: `scheduler.x.y`, of a name or an attribute called so."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and _is_scheduler(node.value.value)
    ]


def _is_scheduler(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.lstrip("_") == "scheduler"


READERS = ("port.py", "load_report.py")  # the second is the port's


def test_the_port_alone_reaches_into_the_scheduler() -> None:
    root, wrong = Path(octavo.__file__).parent, []
    for room in ("engine", "conversations", "serving", "server", "api"):
        for path in (root / room).rglob("*.py"):
            if path.name not in READERS:
                tree = ast.parse(path.read_text())
                wrong += [f"{path.name}:{line} reaches into it" for line in insides_in(tree)]
                if path.name not in ("core.py", "replay.py", "virtual_loop.py"):
                    wrong += [
                        f"{path.name}:{node.lineno} takes it from an engine"
                        for node in ast.walk(tree)
                        if isinstance(node, ast.Attribute) and node.attr == "scheduler"
                    ]
    assert wrong == []


def test_few_files_know_the_scheduler() -> None:
    """So no other can be handed one, whatever it calls it."""
    root, found = Path(octavo.__file__).parent, set[str]()
    for room in ("engine", "conversations", "serving", "server", "api"):
        for path in (root / room).rglob("*.py"):
            if "from octavo.scheduler.scheduler import" in path.read_text():
                found.add(path.name)
    assert found == {*READERS, "core.py", "virtual_loop.py", "scheduler_setup.py", "start.py"}


def test_the_gate_sees_who_reaches_into_the_scheduler() -> None:
    code = "scheduler.step()\nb = self.scheduler.live\nc = self.scheduler.live.running\nscheduler.pins.add(3)"
    assert insides_in(ast.parse(code)) == [3, 4]
