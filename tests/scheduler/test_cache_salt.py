"""A cache salt joins the tenant in the names of blocks: requests share a prefix only where both are equal."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import pytest
from tests.tiny import Answer, random_prompt, request, run, tiny_engine

from octavo.engine.core import Engine
from octavo.kernels.native_ops import NativeOps
from octavo.memory.names import NameChain, root_name, salted_root
from octavo.memory.quota import SHARED
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.types import Request

PROMPT = random_prompt(np.random.default_rng(3), 70)
CACHED = 64  # of it, when it is found


def salted(request_id: int, salt: str, tenant: str = "", **fields: object) -> Request:
    return replace(request(request_id, PROMPT, 6), cache_salt=salt, tenant=tenant, **fields)  # type: ignore[arg-type]


def answer(engine: Engine, one: Request) -> Answer:
    return run(engine, [one])[one.request_id, 0]


def test_a_prefix_is_found_only_under_the_same_tenant_and_the_same_salt() -> None:
    engine = tiny_engine(NativeOps())
    whose = [("", ""), ("", "a"), ("", "b"), ("alice", ""), ("alice", "a"), ("bob", "a")]
    found = [answer(engine, salted(i, salt, tenant)) for i, (tenant, salt) in enumerate(whose)]
    assert [one.cached for one in found] == [0] * len(whose)
    again = [answer(engine, salted(10 + i, salt, tenant)) for i, (tenant, salt) in enumerate(whose)]
    assert [one.cached for one in again] == [CACHED] * len(whose)
    assert {str(one.essence) for one in [*found, *again]} == {str(found[0].essence)}


def test_no_one_waits_for_a_prefix_that_is_computed_under_another_salt() -> None:
    for other, follows in (("a", True), ("b", False), ("", False)):
        engine = tiny_engine(NativeOps(), step_tokens=20)
        answers = run(engine, [salted(1, "a"), salted(2, other)])
        assert (answers[2, 0].cached > 0) == follows


def test_a_prefix_that_is_pinned_for_all_is_foreign_to_a_salt() -> None:
    engine = tiny_engine(NativeOps())
    pin = replace(salted(1, "", SHARED), fills_pin="p", max_tokens=1)
    order = PinRequest("p", tuple(PROMPT), 1e6, Strength.HOT, SHARED)
    engine.scheduler.client_pins.open(order, 1, 0.0)
    run(engine, [pin])
    assert answer(engine, salted(2, "", "alice")).cached == CACHED
    assert answer(engine, salted(3, "a", "alice")).cached == 0
    assert answer(engine, salted(4, "a", "alice")).cached == CACHED


@pytest.mark.parametrize("depth", [0, 1])
def test_a_salted_request_that_is_preempted_finds_its_own_blocks_again(depth: int) -> None:
    engine = tiny_engine(NativeOps(), depth=depth)

    def between(step: int) -> None:
        if step == 4:
            engine.scheduler.preemption.preempt(
                engine.scheduler.live.running[-1], engine.scheduler.live.running[0]
            )

    wanted = answer(tiny_engine(NativeOps()), salted(1, ""))
    got = run(engine, [salted(1, "a", n=3)], between)
    assert got[1, 0].essence == wanted.essence
    assert sum(one.preemptions for one in got.values()) >= 1
    assert answer(engine, salted(2, "")).cached == 0
    assert answer(engine, salted(3, "a")).cached == CACHED
    engine.executor.close()


def test_no_salt_is_the_tenants_own_root_bit_for_bit_and_a_salt_is_no_one_elses() -> None:
    root = root_name(b"alice")
    assert salted_root(root, "") == root
    salts = ["a", "b", "a" * 256, "\udc80", "é"]
    assert len({salted_root(own, salt) for own in (root, root_name(b"bob")) for salt in salts}) == 10
    # Not even a salt that is written as the bytes of a block names anything that tokens name.
    tokens = array("I", [97, 98, 99, 100])
    chain = NameChain(root, 4)
    chain.extend(tokens)
    assert salted_root(root, tokens.tobytes().decode()) != chain.names[0]
