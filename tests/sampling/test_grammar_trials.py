"""The processes that try grammars: what crashes, hangs or grows costs its own request and nothing else."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import llguidance
import pytest
from tests.processes import is_alive, running
from tests.waiting import wait_until

from octavo.errors import EngineStopped, QueueFull, RequestFailed
from octavo.sampling import grammar_trials
from octavo.sampling.grammar_trials import GrammarTrials, TrialStopped, Verdict
from octavo.sampling.grammars import _LIMITS

TOKENS = [bytes([i]) for i in range(256)] + [b"<end>"]
Made = Callable[[], GrammarTrials]


def schema(value: object) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema(json.dumps(value))


def refs(num: int) -> str:
    defs = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(num)}
    return schema({"$defs": {**defs, f"d{num}": {"type": "string"}}, "$ref": "#/$defs/d0"})


GOOD = schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
CRASH = schema({"type": "integer", "minimum": -(2**63), "maximum": -(2**63)})
ENDLESS = schema({"type": "integer", "multipleOf": 16777213})


def try_it(trials: GrammarTrials, grammar: str, **more: object) -> Verdict:
    limits: Mapping[str, object] = _LIMITS
    return trials.try_grammar(grammar, limits, is_gbnf=bool(more.get("is_gbnf")), stop=more.get("stop"))  # type: ignore[arg-type]


@pytest.fixture
def made() -> Iterator[Made]:
    """New trials, closed at the end. Constants that they start with may be changed before."""
    all_made: list[GrammarTrials] = []

    def make() -> GrammarTrials:
        all_made.append(GrammarTrials(TOKENS, [256], [256]))
        return all_made[-1]

    yield make
    for trials in all_made:
        trials.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[GrammarTrials]:
    trials = GrammarTrials(TOKENS, [256], [256])
    yield trials
    trials.close()


def children_of(pid: int) -> set[int]:
    """Those that are alive."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return {child for child in map(int, file.read().split()) if is_alive(child)}


def has_spare_alone(trials: GrammarTrials) -> bool:
    """Whether the one child is the spare, which has a thread that waits; one that has answered has none."""
    try:
        [child] = children_of(trials.pid or 0)
        return len(os.listdir(f"/proc/{child}/task")) == 2
    except (ValueError, FileNotFoundError, ProcessLookupError):  # none, or two, or it has just ended
        return False


def test_a_good_grammar_is_good_and_takes_memory(shared: GrammarTrials) -> None:
    verdict = try_it(shared, GOOD)
    assert verdict.why_not == ""
    assert 0 < verdict.num_bytes < 32 << 20


@pytest.mark.parametrize("grammar", [CRASH, refs(3000)])
def test_a_crash_costs_one_trial(shared: GrammarTrials, grammar: str) -> None:
    try_it(shared, GOOD)
    pid = shared.pid
    verdict = try_it(shared, grammar)
    assert "ended the process that tried it (signal 11)" in verdict.why_not
    assert verdict.is_final
    assert try_it(shared, GOOD).why_not == ""
    assert shared.pid == pid


def test_the_library_s_reason_is_reported(shared: GrammarTrials) -> None:
    assert "Invalid type: frog" in try_it(shared, schema({"type": "frog"})).why_not
    assert "unclosed group" in try_it(shared, llguidance.LLMatcher.grammar_from_regex("(")).why_not


def test_gbnf_comes_back_as_it_is_compiled(shared: GrammarTrials) -> None:
    verdict = try_it(shared, 'root ::= "yes" | "no"', is_gbnf=True)
    assert verdict.why_not == ""
    assert llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(verdict.lark)) == ""
    assert "not found" in try_it(shared, "root ::= missing", is_gbnf=True).why_not
    assert (
        "recursion" in try_it(shared, "root ::= " + "(" * 60000 + '"a"' + ")" * 60000, is_gbnf=True).why_not
    )


def test_a_grammar_that_never_ends_is_stopped_by_its_processor_time(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "CPU_SECONDS_MAX", 0.2)
    verdict = try_it(made(), ENDLESS)
    assert "to compile; allowed: a simpler one" in verdict.why_not
    assert not verdict.is_final


def test_memory_is_bounded_while_it_compiles_and_for_what_is_left(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "ADDRESS_SPACE_MAX", 24 << 20)
    verdict = try_it(made(), schema({"type": "integer", "multipleOf": 104729}))
    assert "24 MiB" in verdict.why_not
    monkeypatch.undo()
    monkeypatch.setattr(grammar_trials, "GROWTH_MAX", 1 << 10)
    assert "of memory; allowed: 0" in try_it(made(), GOOD).why_not


def test_a_mask_that_takes_long_is_refused(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trials, "MASK_SECONDS_MAX", 0.0)
    assert "to say which tokens may come next; allowed" in try_it(made(), GOOD).why_not


def test_who_has_gone_ends_the_trial_and_its_process(shared: GrammarTrials) -> None:
    try_it(shared, GOOD)
    assert shared.pid is not None
    wait_until(lambda: has_spare_alone(shared))  # the spare
    stop, raised = threading.Event(), []

    def leave() -> None:
        try:
            try_it(shared, ENDLESS, stop=stop)
        except TrialStopped:
            raised.append(True)

    thread = threading.Thread(target=leave)
    thread.start()
    wait_until(lambda: len(children_of(shared.pid or 0)) > 1)
    stop.set()
    thread.join(30)
    assert raised == [True]
    wait_until(lambda: has_spare_alone(shared))


def test_trials_at_once_are_answered_as_they_end(shared: GrammarTrials) -> None:
    verdicts: dict[str, Verdict] = {}
    grammars = {"crash": CRASH, "bad": schema({"type": "frog"}), "good": GOOD, "deep": refs(3000)}
    threads = [
        threading.Thread(target=lambda n=name, g=grammar: verdicts.__setitem__(n, try_it(shared, g)))
        for name, grammar in grammars.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {name for name, one in verdicts.items() if one.why_not} == {"crash", "bad", "deep"}
    assert "frog" in verdicts["bad"].why_not


def test_long_grammars_and_long_answers_at_once_hold_up_nothing(shared: GrammarTrials) -> None:
    """Each is longer than a pipe holds."""
    gbnf = "# " + "c" * 120_000 + '\nroot ::= "a"\n'
    lark = llguidance.LLMatcher.grammar_from_lark("// " + "c" * 200_000 + '\nstart: "a"\n')
    verdicts = []
    threads = [
        threading.Thread(
            target=lambda is_gbnf=index % 2 == 0: verdicts.extend(  # type: ignore[misc]
                try_it(shared, gbnf if is_gbnf else lark, is_gbnf=is_gbnf) for _ in range(8)
            )
        )
        for index in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(verdicts) == 48
    assert {one.why_not for one in verdicts} == {""}


def test_after_close_nothing_is_tried(made: Made) -> None:
    trials = made()
    try_it(trials, GOOD)
    trials.close()
    wait_until(lambda: trials.pid is None)
    with pytest.raises(EngineStopped):
        try_it(trials, GOOD)


def test_a_process_that_was_ended_is_started_again_and_not_without_end(made: Made) -> None:
    trials = made()
    for _ in range(grammar_trials.STARTS_MAX):
        assert try_it(trials, GOOD).why_not == ""
        assert trials.pid is not None
        os.kill(trials.pid, signal.SIGKILL)
        wait_until(lambda: trials.pid is None)
    with pytest.raises(RequestFailed, match="was ended 6 times within a minute"):
        try_it(trials, GOOD)


def test_a_trial_whose_process_is_ended_from_outside_fails_and_a_spare_is_replaced(made: Made) -> None:
    trials, failed = made(), []
    try_it(trials, GOOD)
    assert trials.pid is not None
    wait_until(lambda: has_spare_alone(trials))
    [spare] = children_of(trials.pid)
    os.kill(spare, signal.SIGKILL)
    wait_until(lambda: spare not in children_of(trials.pid or 0) and bool(children_of(trials.pid or 0)))
    assert try_it(trials, GOOD).why_not == ""

    def wait() -> None:
        try:
            try_it(trials, ENDLESS)
        except RequestFailed as error:
            failed.append(str(error))

    wait_until(lambda: has_spare_alone(trials))
    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: len(children_of(trials.pid or 0)) > 1)
    os.kill(trials.pid, signal.SIGKILL)
    thread.join(30)
    assert failed == ["the process that tries grammars was ended; try again"]


def test_a_process_that_does_not_start_is_no_fault_of_the_client(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "_WORKER", grammar_trials._WORKER.with_name("nowhere.py"))
    with pytest.raises(RequestFailed, match="did not start"):
        try_it(made(), GOOD)
    monkeypatch.setattr(sys, "executable", "/no-python")
    with pytest.raises(RequestFailed, match="did not start"):
        try_it(made(), GOOD)


def test_no_process_outlives_its_server() -> None:
    code = """
import sys, threading
sys.path[:0] = sys.argv[1:]
from tests.sampling.test_grammar_trials import ENDLESS, GOOD, TOKENS, children_of, has_spare_alone, try_it
from tests.waiting import wait_until
from octavo.sampling.grammar_trials import GrammarTrials
trials = GrammarTrials(TOKENS, [256], [256])
try_it(trials, GOOD)
wait_until(lambda: has_spare_alone(trials))
threading.Thread(target=try_it, args=(trials, ENDLESS), daemon=True).start()
wait_until(lambda: len(children_of(trials.pid)) == 2)
print(trials.pid, *children_of(trials.pid), flush=True)
sys.stdin.read()
"""
    with running([sys.executable, "-c", code, *sys.path], stdin=subprocess.PIPE) as server:
        watched = [os.pidfd_open(int(pid)) for pid in server.stdout.readline().split()]
        assert len(watched) == 3
        server.kill()
        server.communicate(timeout=30)
        for one in watched:
            assert select.select([one], [], [], 30)[0], "a process outlives its server"
            os.close(one)


def test_the_processes_have_no_secrets(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    trials = made()
    try_it(trials, GOOD)
    wait_until(lambda: has_spare_alone(trials))
    for pid in (trials.pid, *children_of(trials.pid or 0)):
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert b"secret" not in file.read()


def test_a_long_wait_is_said_to_be_the_machine_s(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trials, "WALL_SECONDS_MAX", 0.2)
    monkeypatch.setattr(grammar_trials, "CPU_SECONDS_MAX", 30.0)
    begun = time.monotonic()
    with pytest.raises(QueueFull, match="too busy; try again"):
        try_it(made(), ENDLESS)
    assert time.monotonic() - begun < 20
