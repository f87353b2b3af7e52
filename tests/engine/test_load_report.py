"""What a replica reports of its work: its prompts by length, and what its steps take."""

from __future__ import annotations

import pytest
from tests.scheduler.test_first_tokens import Server
from tests.scheduler.test_latency_target import DECODE_S, PROMPT_S

from octavo.engine.load_report import LoadReporter
from octavo.memory.quota import TenantPolicy
from octavo.params import SamplerParams
from octavo.types import Request


def test_a_server_that_measured_nothing_reports_no_model() -> None:
    server = Server(None)
    load = LoadReporter(server.scheduler).report()
    assert load.step_model is None
    assert (load.num_running, load.num_waiting, load.prefill_left) == (0, 0, 0)
    assert load.free_blocks == load.num_blocks == 4000
    assert sum(load.prefill_s) == 0.0


def test_the_model_is_what_steps_took() -> None:
    server = Server(None)
    reporter = LoadReporter(server.scheduler)
    for length in (900, 300, 700):
        server.submit(length)
        server.drain()
    model = reporter.report().step_model
    assert model is not None
    assert model.prefill_s(0, 1000) == pytest.approx(1000 * PROMPT_S + 1000 / 256 * DECODE_S, rel=0.2)
    assert model.stretch == 1.0
    server.submit(10, output=500)
    for _ in range(20):
        server.step()
    assert (load := reporter.report()).step_model is not None
    assert load.step_model.stretch > 1.5
    assert load.step_model.decode_s > DECODE_S
    assert load.step_model.row_s < 0.3 * load.step_model.decode_s
    assert 400 < load.decode_left < 500


def test_prompts_are_counted_by_length_without_what_is_cached() -> None:
    server = Server(None, rows=1)
    reporter = LoadReporter(server.scheduler)
    server.submit(900)
    server.drain()
    server.submit(1000, output=2000)
    server.step()
    for request_id in (11, 12):  # they wait for the only row; the first one's blocks are found
        prompt, params = tuple(range(1000, 1900)), SamplerParams(ignore_eos=True)
        server.scheduler.submit(Request(request_id, prompt, params, 20, 0))
    load = reporter.report()
    assert (load.num_running, load.num_waiting) == (1, 2)
    assert load.prefill_left < 1000 + 2 * 16
    assert [i for i, seconds in enumerate(load.prefill_s) if seconds] == [3, 10]
    assert (load.prompts[3], load.prompts[10]) == (2, 1)


def test_a_full_queue_and_full_tenants_are_reported() -> None:
    server = Server(None, rows=1)
    server.scheduler.tenants.set_policies([TenantPolicy("ann", max_waiting=2), TenantPolicy("bob")])
    reporter = LoadReporter(server.scheduler)
    for _ in range(2):
        server.submit(10, tenant="ann")
    server.submit(10, tenant="bob")
    load = reporter.report(is_draining=True)
    assert load.tenants_full == ("ann",)
    assert (load.is_full, load.is_draining) == (False, True)
