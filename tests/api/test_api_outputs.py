"""From deltas to outputs: logprobs with ranks, reasons in vLLM's words; whole, as they grow, or in pieces."""

from __future__ import annotations

from tests.api.talking import TalkingTokenizer

from octavo import Logprob, SamplingParams
from octavo.api.gather import OutputGatherer
from octavo.engine.outputs import Delta, TokenInfo
from octavo.types import FinishReason, Usage

USAGE = Usage(3, 2, 1, 0)


def gathered(**fields: object) -> OutputGatherer:
    order = SamplingParams(**fields).order_of(TalkingTokenizer())  # type: ignore[arg-type]
    return OutputGatherer("7", "abc", [26, 27, 28], order, 100.0)


def delta(
    text: str, *infos: TokenInfo, choice: int = 0, finish: FinishReason | None = None, **more: object
) -> Delta:
    return Delta(choice, text, infos, USAGE, finish, **more)  # type: ignore[arg-type]


A = TokenInfo(5, b"a", -0.5, ((5, b"a", -0.5), (6, b"b", -1.0)))
RARE = TokenInfo(9, b"\xff", -7.0, ((5, b"a", -0.5), (6, b"b", -1.0)))


def test_each_place_shows_its_token_first_and_ranks_as_far_as_they_are_known() -> None:
    found = gathered(logprobs=2)
    found.take(delta("a", A, RARE, finish=FinishReason.LENGTH), 101.0)
    (output,) = found.output().outputs
    assert output.logprobs == [
        {5: Logprob(-0.5, 1, "a"), 6: Logprob(-1.0, 2, "b")},
        {9: Logprob(-7.0, None, "\ufffd"), 5: Logprob(-0.5, 1, "a"), 6: Logprob(-1.0, 2, "b")},
    ]
    assert [list(place) for place in output.logprobs] == [[5, 6], [9, 5, 6]]
    assert output.cumulative_logprob == -7.5


def test_without_logprobs_there_are_none() -> None:
    found = gathered()
    found.take(delta("a", TokenInfo(5, b"a"), finish=FinishReason.LENGTH), 101.0)
    (output,) = found.output().outputs
    assert (output.logprobs, output.cumulative_logprob, output.token_ids) == (None, None, [5])


def test_a_prompts_first_token_has_no_logprob() -> None:
    found = gathered(prompt_logprobs=1)
    found.take(delta("", prompt_logprobs=(TokenInfo(27, b"b", -2.0, ((5, b"a", -0.5),)),)), 101.0)
    found.take(delta("a", A, prompt_logprobs=(TokenInfo(28, b"c", -0.1, ((28, b"c", -0.1),)),)), 102.0)
    assert found.output().prompt_logprobs == [
        None,
        {27: Logprob(-2.0, None, "b"), 5: Logprob(-0.5, 1, "a")},
        {28: Logprob(-0.1, 1, "c")},
    ]


def test_reasons_are_in_vllms_words_and_the_models_own_end_is_no_stop_reason() -> None:
    for finish, stop, fields, wanted in (
        (FinishReason.STOP, "xy", {"stop": "xy"}, ("stop", "xy")),
        (FinishReason.STOP, 2, {}, ("stop", None)),
        (FinishReason.STOP, 9, {"stop_token_ids": [9]}, ("stop", 9)),
        (FinishReason.LENGTH, None, {}, ("length", None)),
        (FinishReason.CANCELLED, None, {}, ("abort", None)),
        (FinishReason.TIMEOUT, None, {}, ("timeout", None)),
    ):
        found = gathered(**fields)  # type: ignore[arg-type]
        found.take(delta("a", A, finish=finish, stop=stop), 101.0)
        (output,) = found.output().outputs
        assert (output.finish_reason, output.stop_reason) == wanted
        assert output.finished()


def test_a_request_has_finished_when_all_its_outputs_have() -> None:
    found = gathered(n=2)
    found.take(delta("", choice=1), 100.5)
    assert found.output().metrics.first_token_time is None
    found.take(delta("a", A, finish=FinishReason.LENGTH), 101.0)
    told = found.output()
    assert (told.finished, told.outputs[0].finished(), told.outputs[1].finished()) == (False, True, False)
    assert told.metrics.finished_time is None
    found.take(delta("b", A, choice=1, finish=FinishReason.STOP), 103.0)
    told = found.output()
    assert told.finished
    assert (told.metrics.arrival_time, told.metrics.first_token_time, told.metrics.finished_time) == (
        100,
        101,
        103,
    )
    assert told.metrics.first_token_latency == 1.0
    assert (told.request_id, told.prompt, told.prompt_token_ids) == ("7", "abc", [26, 27, 28])
    assert told.num_cached_tokens == 1


def test_pieces_join_to_the_whole() -> None:
    whole, pieces = gathered(n=2, logprobs=1, prompt_logprobs=0), gathered(n=2, logprobs=1, prompt_logprobs=0)
    deltas = [
        delta("a", A, prompt_logprobs=(TokenInfo(27, b"b", -2.0),)),
        delta("b", A, choice=1),
        delta("c", RARE, A, prompt_logprobs=(TokenInfo(28, b"c", -2.0),)),
        delta("d", finish=FinishReason.LENGTH),
        delta("e", A, choice=1, finish=FinishReason.LENGTH),
    ]
    told = []
    for one in deltas:
        whole.take(one, 101.0)
        pieces.take(one, 101.0)
        told.append(pieces.take_new(one.choice))
    wanted = whole.output()
    for index in (0, 1):
        own = [output for piece in told for output in piece.outputs if output.index == index]
        assert "".join(output.text for output in own) == wanted.outputs[index].text
        assert [token for output in own for token in output.token_ids] == wanted.outputs[index].token_ids
        assert [place for output in own for place in output.logprobs or []] == wanted.outputs[index].logprobs
        assert own[-1].cumulative_logprob == wanted.outputs[index].cumulative_logprob
    assert [place for piece in told for place in piece.prompt_logprobs or []] == wanted.prompt_logprobs
    assert [piece.finished for piece in told] == [False, False, False, False, True]


def test_an_output_that_was_sent_does_not_change_any_more() -> None:
    found = gathered()
    found.take(delta("a", A), 101.0)
    before = found.output()
    found.take(delta("b", A, finish=FinishReason.LENGTH), 102.0)
    assert (before.outputs[0].text, before.outputs[0].token_ids, before.finished) == ("a", [5], False)


def test_without_detokenizing_there_is_no_text() -> None:
    found = gathered(detokenize=False, logprobs=1)
    found.take(delta("a", A, finish=FinishReason.LENGTH), 101.0)
    (output,) = found.output().outputs
    assert output.text == ""
    assert output.logprobs == [{5: Logprob(-0.5, 1, None), 6: Logprob(-1.0, 2, None)}]
