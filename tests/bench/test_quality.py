"""Quality is measured over the right tokens, from the right base, and agrees with a plain computation."""

import json

import numpy as np
import pytest
from tests.tiny import VOCAB, over_weights_of, request, tiny_engine, tiny_model

from octavo.bench.quality import (
    BASE,
    CHUNK,
    NUM_SCORED,
    StorageChoice,
    chunks_of,
    divergence,
    log_softmax,
    score,
    subject_of,
)
from octavo.bench.text import sample_text
from octavo.cli.bench_quality import run, save_text, table_of
from octavo.errors import ConfigError
from octavo.kernels.native_ops import NativeOps

pytestmark = pytest.mark.full


class Letters:
    """Token t is the letter t; with a begin token if wanted."""

    def __init__(self, begin=()):
        self.begin = list(begin)

    def encode(self, text, add_bos=True):
        return self.begin + [ord(letter) % VOCAB for letter in text]


class Loaded:
    def __init__(self, model, tokenizer=None):
        self.model, self.tokenizer = model, tokenizer or Letters()


def tokens(seed=0):
    return np.random.default_rng(seed).integers(2, VOCAB, CHUNK).astype(np.int32)


def subject(weights="f32", kind=None, kv="f32"):
    ops = NativeOps(weights)
    model = tiny_model(over_weights_of(kind, NativeOps(weights)) if kind else ops)
    return subject_of(StorageChoice(weights, kv), ops, Loaded(model))


def test_log_probabilities_are_those_that_the_engine_gives():
    own, chunk = subject(), tokens()
    score(own, [], chunk)
    engine = tiny_engine(NativeOps(), num_blocks=64)
    engine.scheduler.submit(request(1, chunk[: CHUNK - 1].tolist(), 1, prompt_logprobs=0))
    told = []
    while not engine.idle:
        for update in engine.step():
            told += [each.logprob for each in update.prompt_logprobs]
    # The prompt's logprobs begin with its second token; the last of the chunk did not fit the context.
    assert np.allclose([-loss for loss in own.losses[:-1]], told[CHUNK // 2 :], atol=1e-4)


def test_the_base_does_not_differ_from_itself():
    base, same = subject(), subject()
    for seed in range(2):
        score(base, [same], tokens(seed))
    for quality in (base.quality(), same.quality()):
        assert (quality.chunks, quality.scored_tokens) == (2, 2 * NUM_SCORED)
        assert (quality.divergence_mean, quality.divergence_p99) == (0.0, 0.0)
        assert quality.top1_agreement == 1.0
    assert base.quality().perplexity == same.quality().perplexity


def test_fewer_bits_diverge_more():
    base, eight, four = subject(), subject("auto", "Q8_0"), subject("auto", "Q4_0")
    score(base, [eight, four], tokens())
    fine, coarse = eight.quality(), four.quality()
    assert 0 < fine.divergence_mean < coarse.divergence_mean
    assert fine.divergence_mean <= fine.divergence_p99
    assert 1 >= fine.top1_agreement > coarse.top1_agreement
    assert coarse.weight_bytes < fine.weight_bytes < base.quality().weight_bytes


def test_kv_of_fewer_bits_diverges():
    base, sixteen, eight = subject(), subject(kv="bf16"), subject(kv="int8")
    score(base, [sixteen, eight], tokens())
    for quality in (sixteen.quality(), eight.quality()):
        assert 0 < quality.divergence_mean < 0.1
    assert sixteen.quality().kv == "bf16"


def test_divergence_of_two_coins():
    half, tilted = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    expected = 0.5 * np.log(2) + 0.5 * np.log(2 / 3)
    assert divergence(half, tilted) == pytest.approx(expected)
    assert divergence(half, half) == 0
    assert np.allclose(log_softmax(np.array([[1000, 1000]], np.float32)), half)


def test_chunks_are_whole_begin_as_the_model_wants_and_are_as_many_as_asked():
    text = "".join(chr(33 + i % 50) for i in range(3 * CHUNK - 2))
    plain = list(chunks_of(Loaded(None), text, 0))
    assert [chunk.tolist() for chunk in plain] == [
        Letters().encode(text[i * CHUNK : (i + 1) * CHUNK]) for i in (0, 1)
    ]
    begun = list(chunks_of(Loaded(None, Letters(begin=[1])), text, 2))
    # The begin token takes the place of a chunk's first, as llama-perplexity has it.
    assert [chunk[0] for chunk in begun] == [1, 1]
    assert begun[1][1:].tolist() == [1, *Letters().encode(text)][CHUNK + 1 : 2 * CHUNK]
    assert len(list(chunks_of(Loaded(None), text, 1))) == 1


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="512 or more"):
        list(chunks_of(Loaded(None), "short", 0))
    with pytest.raises(ConfigError, match="--text"):
        sample_text(tmp_path / "missing")
    with pytest.raises(ConfigError, match="q9"):
        run(None, None, ["q9"], ["f32"], None, 1, None, as_json=True)
    with pytest.raises(ConfigError, match="--kv is f32,f4"):
        run(None, None, ["f32"], ["f32", "f4"], None, 1, None, as_json=True)


def test_the_text_is_written_as_it_is_measured(tmp_path, capsys):
    target, again = tmp_path / "text", tmp_path / "again"
    save_text(None, target)
    save_text(target, again)
    assert target.read_bytes() == again.read_bytes()
    assert sample_text(target).digest == sample_text(None).digest
    assert sample_text(None).digest in capsys.readouterr().out
    assert not target.read_text().endswith("\n")


def test_a_row_for_each_choice():
    base = subject()
    score(base, [], tokens())
    assert table_of([base.quality()] * 2, sample_text(None)).row_count == 2


@pytest.mark.real_model
def test_the_default_model_loses_little_as_integers(capsys):
    run(None, None, ["f32", "auto"], ["f32"], None, 1, None, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["weights"] for line in lines] == ["f32", "auto"]
    assert lines[0]["kv"] == BASE.kv
    assert lines[0]["divergence_mean"] == 0
    assert all(0 < line["divergence_mean"] < 0.02 for line in lines[1:])
    assert all(line["top1_agreement"] > 0.9 for line in lines[1:])
    assert all(line["perplexity"] == pytest.approx(lines[0]["perplexity"], rel=0.02) for line in lines[1:])
