"""What a sampled token depends on, and that it follows the distribution that was asked for."""

import math
from dataclasses import replace

import numpy as np
import pytest

from octavo import _native
from octavo.params import SamplerParams
from octavo.sampling.logprobs import logprobs_of
from octavo.sampling.masks import masks_of
from octavo.sampling.sampler import SampledToken, SampleFailure, Sampler, SampleRow, gumbel_noise

VOCAB = 300
EOS = 2
GREEDY = SamplerParams(temperature=0.0)


def row(params=GREEDY, *, seed=7, choice=0, prompt=(1, 5, 9), output=()):
    history = np.array([*prompt, *output], np.int32)
    return SampleRow(params, masks_of(params), seed, choice, len(prompt), history)


def logits_of(rng, rows=1, vocab=VOCAB):
    return rng.normal(0.0, 2.0, (rows, vocab)).astype(np.float32)


def sample(logits, rows):
    return Sampler(logits.shape[1], frozenset({EOS})).sample(logits, rows)


def random_params(rng):
    return SamplerParams(
        temperature=float(rng.choice([0.0, 0.3, 1.0, 1.7])),
        top_k=int(rng.choice([0, 1, 5, 50, 10_000])),
        top_p=float(rng.choice([1.0, 0.9, 0.1])),
        min_p=float(rng.choice([0.0, 0.05])),
        repetition_penalty=float(rng.choice([1.0, 1.3])),
        frequency_penalty=float(rng.choice([0.0, 0.5])),
        presence_penalty=float(rng.choice([0.0, -0.5])),
        logit_bias=((3, 5.0), (8, -100.0)) if rng.random() < 0.3 else (),
        min_tokens=int(rng.choice([0, 3])),
        allowed_token_ids=random_ids(rng, 40) if rng.random() < 0.3 else None,
        banned_sequences=random_sequences(rng) if rng.random() < 0.5 else (),
        logprobs=[None, 0, 5][int(rng.integers(3))],
    )


def random_ids(rng, count, vocab=VOCAB):
    return tuple(int(token) for token in rng.integers(0, vocab, count))


def random_sequences(rng, vocab=VOCAB):
    return tuple(random_ids(rng, int(rng.integers(1, 5)), vocab) for _ in range(rng.integers(1, 20)))


def chi_square_limit(freedom):
    """The 99.99 % point, by the cube of a normal (Wilson and Hilferty 1931)."""
    spread = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - spread + 3.72 * math.sqrt(spread)) ** 3


# -- the generator -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, expected):
    words = _native.philox(tuple(counter), tuple(key))
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_noise_is_standard_gumbel():
    noise = gumbel_noise(seed=1, choice=0, position=0, size=200_000).astype(np.float64)
    assert np.isfinite(noise).all()
    assert abs(noise.mean() - 0.5772157) < 0.015
    assert abs(noise.var() - math.pi**2 / 6) < 0.03


def test_noise_differs_in_seed_choice_and_position_and_does_not_depend_on_the_vocabulary():
    base = gumbel_noise(5, 1, 10, VOCAB)
    for other in [(6, 1, 10), (5, 2, 10), (5, 1, 11), (-5, 1, 10), (5 + 2**40, 1, 10)]:
        assert not np.array_equal(base, gumbel_noise(*other, VOCAB)), other
    assert np.array_equal(base, gumbel_noise(5, 1, 10, VOCAB + 37)[:VOCAB])


# -- the distribution ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_frequencies_follow_the_softmax(temperature):
    rng = np.random.default_rng(3)
    logits = rng.normal(0.0, 1.0, (1, 20)).astype(np.float32)
    weights = np.exp(logits[0].astype(np.float64) / temperature)
    expected = weights / weights.sum()
    draws = 6000
    params = SamplerParams(temperature=temperature)
    sampler = Sampler(20, frozenset())
    counts = np.zeros(20)
    for position in range(draws):
        history = np.zeros(position % 50 + 1, np.int32)
        [token] = sampler.sample(logits, [SampleRow(params, None, position // 50, 0, 1, history)])
        counts[token.token] += 1
    chi_square = float(((counts - draws * expected) ** 2 / (draws * expected)).sum())
    assert chi_square < chi_square_limit(19), (chi_square, counts)


def test_filtered_frequencies_follow_the_renormalised_softmax():
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.06, 0.04]], np.float32))
    params = SamplerParams(top_k=4, top_p=0.85)
    counts = np.zeros(5)
    for seed in range(3000):
        [token] = sample(logits, [row(params, seed=seed)])
        counts[token.token] += 1
    # Of the four kept by top-k (0.96 in all), 0.4 + 0.3 + 0.2 crosses 0.85 of it.
    expected = np.array([0.4, 0.3, 0.2]) / 0.9 * 3000
    assert counts[3:].sum() == 0
    assert ((counts[:3] - expected) ** 2 / expected).sum() < chi_square_limit(2)


def test_choices_and_positions_are_independent_draws():
    logits = np.zeros((1, 4), np.float32)
    table = np.zeros((4, 4))
    for seed in range(2000):
        [first], [second] = (sample(logits, [row(SamplerParams(), seed=seed, choice=c)]) for c in (0, 1))
        table[first.token, second.token] += 1
    assert ((table - 125.0) ** 2 / 125.0).sum() < chi_square_limit(15)


# -- exactness -----------------------------------------------------------------------------------------------
def test_a_row_gives_the_same_bits_in_any_batch():
    rng = np.random.default_rng(11)
    rows = [
        row(
            random_params(rng),
            seed=int(rng.integers(2**40)),
            choice=i % 3,
            output=rng.integers(0, VOCAB, i % 5),
        )
        for i in range(40)
    ]
    logits = logits_of(rng, 40)
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(40)]
    order = rng.permutation(40)
    shuffled = sample(logits[order], [rows[i] for i in order])
    for place, i in enumerate(order):
        assert repr(shuffled[place]) == repr(alone[i])


def test_logits_are_not_changed_by_sampling():
    rng = np.random.default_rng(5)
    logits = logits_of(rng, 6)
    before = logits.copy()
    sample(logits, [row(random_params(rng), output=(4, 4)) for _ in range(6)])
    assert np.array_equal(logits, before)


def test_greedy_takes_the_lowest_id_of_equals():
    logits = np.zeros((2, VOCAB), np.float32)
    logits[1, [250, 70, 71]] = 3.0
    assert [token.token for token in sample(logits, [row(), row()])] == [0, 70]


def test_greedy_with_an_adjustment_takes_the_lowest_id_of_equals():
    logits = np.zeros((1, VOCAB), np.float32)
    params = replace(GREEDY, logit_bias=((90, 2.0), (40, 2.0)))
    assert sample(logits, [row(params)])[0].token == 40


def test_a_tiny_temperature_is_the_argmax_and_no_nan():
    rng = np.random.default_rng(8)
    logits = logits_of(rng) * 1000
    [token] = sample(logits, [row(SamplerParams(temperature=1e-30))])
    assert token.token == int(logits.argmax())


# -- lengths and failures ------------------------------------------------------------------------------------
def test_min_tokens_forbids_every_end_until_enough_output():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, EOS], logits[0, 9], logits[0, 8] = 9.0, 8.0, 7.0
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(9,))
    chosen = [sample(logits, [row(params, output=(5,) * done)])[0].token for done in range(3)]
    assert chosen == [8, 8, EOS]


def test_ignore_eos_does_not_hide_the_eos_token():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, EOS] = 9.0
    params = replace(GREEDY, ignore_eos=True, min_tokens=4)
    assert sample(logits, [row(params)])[0].token == EOS


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_poisoned_row_fails_alone(poison):
    rng = np.random.default_rng(2)
    logits = logits_of(rng, 3)
    logits[1, 77] = poison
    first, bad, last = sample(logits, [row(), row(SamplerParams()), row(SamplerParams(logprobs=3))])
    assert isinstance(bad, SampleFailure)
    assert "NaN" in bad.reason
    assert isinstance(first, SampledToken)
    assert isinstance(last, SampledToken)
    assert len(last.top) == 3


def test_a_row_with_nothing_left_fails():
    logits = np.full((2, VOCAB), -np.inf, np.float32)
    logits[1, EOS] = 0.0
    first, second = sample(logits, [row(), row(replace(GREEDY, min_tokens=1))])
    assert isinstance(first, SampleFailure)
    assert isinstance(second, SampleFailure)
    assert "min_tokens" in second.reason


# -- masks ---------------------------------------------------------------------------------------------------
def allowed_next(params, output, vocab):
    """Stupidly: each token on its own, each sequence compared whole."""
    tokens = set(range(vocab)) if params.allowed_token_ids is None else set(params.allowed_token_ids)
    return [
        t
        for t in sorted(tokens)
        if not any(
            len(sequence) <= len(output) + 1 and (*output[len(output) + 1 - len(sequence) :], t) == sequence
            for sequence in params.banned_sequences
        )
    ]


def test_masked_rows_equal_a_softmax_over_the_tokens_that_are_left():
    """A row with masks draws what a row would whose other logits had been -inf from the beginning."""
    rng = np.random.default_rng(21)
    vocab, met = 6, {"banned by a longer sequence": 0, "nothing left": 0}
    for case in range(2000):
        params = SamplerParams(
            temperature=float(rng.choice([0.0, 0.7])),
            top_k=int(rng.choice([0, 3])),
            allowed_token_ids=random_ids(rng, 4, vocab) if rng.random() < 0.6 else None,
            banned_sequences=random_sequences(rng, vocab) if rng.random() < 0.9 else (),
        )
        plain = replace(params, allowed_token_ids=None, banned_sequences=())
        output = random_ids(rng, int(rng.integers(0, 6)), vocab)
        logits = logits_of(rng, vocab=vocab)
        left = allowed_next(params, output, vocab)
        [drawn] = sample(logits, [row(params, seed=case, output=output)])
        if not left:
            assert isinstance(drawn, SampleFailure)
            assert not drawn.is_poisoned
            met["nothing left"] += 1
            continue
        masked = np.full_like(logits, -np.inf)
        masked[0, left] = logits[0, left]
        assert drawn.token == sample(masked, [row(plain, seed=case, output=output)])[0].token
        longer = [sequence for sequence in params.banned_sequences if len(sequence) > 1]
        without = replace(params, banned_sequences=tuple(longer))
        met["banned by a longer sequence"] += allowed_next(without, output, vocab) != allowed_next(
            replace(params, banned_sequences=()), output, vocab
        )
    assert min(met.values()) > 50, met


def test_the_prompt_completes_no_banned_sequence():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 9], logits[0, 8] = 9.0, 8.0
    params = replace(GREEDY, banned_sequences=((4, 9),))
    assert sample(logits, [row(params, prompt=(1, 4))])[0].token == 9
    assert sample(logits, [row(params, prompt=(1, 4), output=(4,))])[0].token == 8


def test_a_mask_wins_over_bias_and_hides_no_raw_logprob():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, EOS] = 9.0
    params = replace(
        GREEDY,
        allowed_token_ids=(7, 30, 8),
        banned_sequences=((8,),),
        logit_bias=((8, 100.0), (11, 100.0)),
        logprobs=1,
    )
    [token] = sample(logits, [row(params)])
    assert token.token == 7
    assert token.top[0][0] == EOS
    assert token == logprobs_of(logits, [7], 1)[0]


@pytest.mark.full
def test_banned_sequences_forbid_what_transformers_forbids():
    """`NoBadWordsLogitsProcessor`, given the output alone."""
    import torch
    import transformers

    rng = np.random.default_rng(5)
    for _ in range(300):
        vocab, sequences = 12, random_sequences(rng, 12)
        output = random_ids(rng, int(rng.integers(1, 6)), vocab)
        processor = transformers.NoBadWordsLogitsProcessor([list(s) for s in sequences], eos_token_id=vocab)
        scores = processor(torch.tensor([output]), torch.zeros(1, vocab))[0].numpy()
        params = replace(GREEDY, banned_sequences=sequences)
        ours = np.zeros(vocab, np.float32)
        masks_of(params).apply(ours, np.array(output, np.int32))
        assert np.array_equal(ours, scores)


# -- logprobs ------------------------------------------------------------------------------------------------
def test_logprobs_are_those_of_the_raw_logits():
    rng = np.random.default_rng(4)
    logits = logits_of(rng, 4)
    params = SamplerParams(temperature=0.3, top_k=5, repetition_penalty=1.5, logprobs=4)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for index, token in enumerate(sample(logits, [row(params, seed=i) for i in range(4)])):
        assert token.logprob == pytest.approx(exact[index, token.token], abs=1e-5)
        likeliest = np.argsort(-exact[index])[:4]
        assert [t for t, _ in token.top] == likeliest.tolist()
        assert [p for _, p in token.top] == pytest.approx(exact[index, likeliest].tolist(), abs=1e-5)


def test_prompt_logprobs_equal_sampled_logprobs():
    rng = np.random.default_rng(6)
    logits = logits_of(rng, 5)
    sampled = sample(logits, [row(replace(GREEDY, logprobs=3))] * 5)
    assert logprobs_of(logits, [token.token for token in sampled], 3) == tuple(sampled)


def test_the_likeliest_are_ordered_by_id_among_equals():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [200, 50]] = 1.0
    [token] = logprobs_of(logits, [0], 4)
    assert [t for t, _ in token.top] == [50, 200, 0, 1]


def test_logprobs_that_were_not_asked_for_are_nan():
    rng = np.random.default_rng(1)
    [token] = sample(logits_of(rng), [row()])
    assert math.isnan(token.logprob)
    assert token.top == ()
