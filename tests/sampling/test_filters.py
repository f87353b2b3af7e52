"""The filters and penalties against versions too stupid to be wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.params import SamplerParams
from octavo.sampling.filters import keep_ids, nucleus
from octavo.sampling.penalties import adjust
from octavo.sampling.top_ids import descending, top_ids

# Few distinct values: ties everywhere.
TIED = st.lists(st.sampled_from([0.0, -0.0, 0.5, -0.5, -1.0, -3.0, -9.0, -np.inf]), min_size=1, max_size=40)


def ranked(scores):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def stupid_keep(scores, params):
    kept = ranked(scores)
    if params.top_k:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        weights = [np.exp(np.float64(scores[i])) for i in kept]
        total, reached, nucleus_ids = sum(weights), 0.0, []
        for i, weight in zip(kept, weights, strict=True):
            nucleus_ids.append(i)
            reached += weight
            if reached >= params.top_p * total:
                break
        kept = nucleus_ids
    if params.min_p > 0.0:
        best = max(np.exp(np.float64(scores[i])) for i in kept)
        kept = [i for i in kept if np.exp(np.float64(scores[i])) >= params.min_p * best]
    return sorted(kept)


@settings(max_examples=300, deadline=None)
@given(
    TIED,
    st.integers(0, 45),
    st.sampled_from([1.0, 0.97, 0.613, 0.2, 1e-9]),
    st.sampled_from([0.0, 0.31, 1.0]),
)
def test_filters_keep_what_the_stupid_version_keeps(values, top_k, top_p, min_p):
    scores = np.array(values, np.float32)
    scores -= scores.max() if np.isfinite(scores.max()) else np.float32(0.0)
    if not np.isfinite(scores).any():
        scores[0] = 0.0
    params = SamplerParams(top_k=top_k, top_p=top_p, min_p=min_p)
    kept = keep_ids(scores, params)
    everything = list(range(len(values)))
    assert (everything if kept is None else kept.tolist()) == stupid_keep(scores.tolist(), params)


@settings(max_examples=200, deadline=None)
@given(TIED, st.integers(1, 45))
def test_top_ids_are_the_first_of_the_stable_order(values, count):
    scores = np.array(values, np.float32)
    assert top_ids(scores, count).tolist() == sorted(ranked(values)[:count])
    assert descending(scores).tolist() == ranked(values)


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
def test_a_nucleus_is_the_same_whether_wide_or_narrow(spread):
    rng = np.random.default_rng(9)
    scores = rng.normal(0.0, spread, 5000).astype(np.float32)
    scores -= scores.max()
    order = np.argsort(-scores, kind="stable")
    reached = np.cumsum(np.exp(scores[order].astype(np.float64)))
    for top_p in (0.05, 0.5, 0.95):
        size = int((reached < top_p * np.exp(scores.astype(np.float64)).sum()).sum()) + 1
        assert nucleus(scores, top_p).tolist() == sorted(order[:size].tolist())


def test_the_likeliest_token_survives_every_filter():
    scores = np.array([-1.0, 0.0, -2.0], np.float32)
    assert keep_ids(scores, SamplerParams(top_k=1, top_p=1e-9, min_p=1.0)).tolist() == [1]


def test_penalties_follow_their_definitions():
    rng = np.random.default_rng(10)
    logits = rng.normal(0.0, 2.0, 30).astype(np.float32)
    prompt, output = [3, 4, 4], [5, 5, 5, 6, 3]
    params = SamplerParams(
        repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=0.7, logit_bias=((9, 2.5), (3, -1.0))
    )
    expected = logits.astype(np.float64)
    for token in {*prompt, *output}:
        expected[token] = expected[token] / 1.4 if expected[token] > 0 else expected[token] * 1.4
    for token in set(output):
        expected[token] -= 0.3 * output.count(token) + 0.7
    expected[9] += 2.5
    expected[3] -= 1.0
    adjust(logits, params, None, np.array(prompt + output, np.int32), len(prompt), frozenset({0}))
    assert logits == pytest.approx(expected, abs=1e-5)


def test_presence_and_frequency_ignore_the_prompt():
    logits = np.zeros(10, np.float32)
    adjust(logits, SamplerParams(presence_penalty=1.0), None, np.array([1, 2, 3], np.int32), 2, frozenset())
    assert logits.tolist() == [0, 0, 0, -1, 0, 0, 0, 0, 0, 0]


def test_a_token_biased_twice_gets_both():
    logits = np.zeros(4, np.float32)
    adjust(
        logits, SamplerParams(logit_bias=((1, 2.0), (1, 3.0))), None, np.array([0], np.int32), 1, frozenset()
    )
    assert logits.tolist() == [0, 5, 0, 0]
