"""SentencePiece's vocabularies, from GGUF metadata and from `tokenizer.model`, give SentencePiece's own ids
on 2,000 texts each, and transformers' where that has rules of its own."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pytest
import sentencepiece
import transformers
from tests.text.hard_texts import hard_texts
from tests.text.vocabularies import CORPUS

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.sentencepiece import merges_from_scores
from octavo.text.sentencepiece_file import pieces_of
from octavo.text.tokenizer import Tokenizer

pytestmark = pytest.mark.full

TEXTS = hard_texts()
OWN = ("▁▁", "▁▁▁▁", "\n\n", "<b>", "▁x▁y")  # user-defined pieces
# Kind, a space in front, spaces collapsed, user-defined pieces, the character map, bytes for what is unknown.
CASES = {
    "bpe": ("bpe", True, False, (), "identity", True),
    "bpe-no-bytes": ("bpe", True, False, (), "identity", False),
    "bpe-nfkc": ("bpe", True, False, (), "nfkc", True),
    "bpe-own": ("bpe", True, False, OWN, "identity", True),
    "bpe-collapsed-own": ("bpe", False, True, OWN, "identity", True),
    "bpe-bare": ("bpe", False, False, OWN, "identity", True),
    "unigram": ("unigram", True, False, (), "identity", True),
    "unigram-nfkc": ("unigram", True, True, (), "nfkc", False),
    "unigram-own": ("unigram", True, False, OWN, "identity", True),
    "unigram-bare": ("unigram", False, False, (), "identity", True),
}


def train(kind, prefix, collapsed, own, rule, has_bytes, **more):
    """The bytes of a model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type=kind,
        vocab_size=480 if has_bytes else 260,
        hard_vocab_limit=False,
        byte_fallback=has_bytes,
        normalization_rule_name=rule,
        remove_extra_whitespaces=collapsed,
        add_dummy_prefix=prefix,
        user_defined_symbols=list(own),
        minloglevel=2,
        **more,
    )
    return model.getvalue()


def gguf_of(data, **more):
    """The same vocabulary as a GGUF file has it."""
    pieces = pieces_of(data, "m")
    return {
        "tokenizer.ggml.model": "t5" if pieces.is_unigram else "llama",
        "tokenizer.ggml.tokens": tuple(token.encode() for token in pieces.tokens),
        "tokenizer.ggml.scores": pieces.scores,
        "tokenizer.ggml.token_type": pieces.types,
        "tokenizer.ggml.unknown_token_id": pieces.unknown,
        "tokenizer.ggml.add_space_prefix": pieces.prefix.value != "none",
        "tokenizer.ggml.remove_extra_whitespaces": pieces.collapses_spaces,
        "tokenizer.ggml.precompiled_charsmap": np.frombuffer(pieces.charsmap, np.uint8),
    } | more


def score(pieces, ids):
    return sum(float(pieces.scores[i]) for i in ids)


@pytest.fixture(scope="module", params=CASES)
def trained(request, tmp_path_factory):
    """(SentencePiece's own, the bytes, ours from a folder) of a case."""
    data = train(*CASES[request.param])
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer.model").write_bytes(data)
    return sentencepiece.SentencePieceProcessor(model_proto=data), data, Tokenizer.from_folder(folder)


def test_a_file_gives_sentencepieces_ids_on_2000_texts(trained):
    theirs, data, ours = trained
    pieces, expected = pieces_of(data, "m"), theirs.encode(TEXTS)
    found = [ours.encode(text, add_bos=False) for text in TEXTS]
    wrong = [index for index, ids in enumerate(found) if ids != expected[index]]
    # Where two ways are equally likely, SentencePiece decides by the rounding of its 32-bit sums.
    ties = [i for i in wrong if abs(score(pieces, found[i]) - score(pieces, expected[i])) < 1e-3]
    assert [TEXTS[i] for i in wrong if i not in ties] == []
    assert len(ties) <= (20 if pieces.is_unigram else 0)


def test_a_gguf_gives_the_same_ids_as_the_file(trained):
    _, data, ours = trained
    gguf = Tokenizer.from_gguf(gguf_of(data), "test")
    # What stands between control tokens there is text of its own, so pieces of the model's own are apart.
    texts = [text for text in TEXTS if not any(piece.replace("▁", " ") in text for piece in OWN)]
    assert [gguf.encode(text, add_bos=False) for text in texts[:500]] == [
        ours.encode(text, add_bos=False) for text in texts[:500]
    ]


def test_text_comes_back_whole_and_in_pieces(trained):
    theirs, _, ours = trained
    for text in TEXTS[:500]:
        ids = theirs.encode(text)
        streamed = IncrementalDetokenizer(
            ours.token_bytes, ours.special_ids, strip_leading_space=ours.strips_leading_space
        )
        whole = ours.decode(ids)
        assert "".join(map(streamed.push, ids)) + streamed.finish() == whole
        if theirs.unk_id() not in ids and not whole.startswith((" ", "▁")) and "▁" not in text:
            assert whole == theirs.decode(ids)


def test_begin_and_end_tokens_of_a_file_without_others_are_its_own(trained):
    theirs, _, ours = trained
    assert (ours.bos_id, ours.eos_id) == (theirs.bos_id(), theirs.eos_id())
    assert ours.encode("a")[0] == theirs.bos_id()
    assert ours.stop_ids == {theirs.eos_id()}


# -- Hugging Face's own rules ----------------------------------------------------------------------------


ADDED = {"content": "<|im_end|>", "special": True, "rstrip": True}


def test_a_llama_folder_gives_transformers_ids_on_2000_texts(tmp_path):
    data = train(*CASES["bpe"])
    pieces, count = pieces_of(data, "m"), len(pieces_of(data, "m").tokens)
    settings = {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {str(count): ADDED}}
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = Tokenizer.from_folder(tmp_path)
    ids = {token: index for index, token in enumerate(pieces.tokens)}
    merges = merges_from_scores(pieces.tokens, pieces.scores, ids, pieces.types == 1)
    theirs = transformers.LlamaTokenizer(vocab=ids, merges=merges)
    theirs.add_special_tokens({"additional_special_tokens": [transformers.AddedToken(**ADDED)]})
    for text in hard_texts(extra=("<|im_end|>", "<s>")):
        assert ours.encode(text, add_bos=False) == theirs.encode(text, add_special_tokens=False), text
    assert ours.encode("a<|im_end|> b")[-2:] == theirs.encode("a<|im_end|> b", add_special_tokens=False)[-2:]


def test_a_gemma_folder_has_no_space_in_front_and_its_own_turns(tmp_path):
    own = ("<start_of_turn>", "<end_of_turn>", *OWN)
    control = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    data = train("bpe", False, False, own, "identity", True, **control)
    (tmp_path / "tokenizer.model").write_bytes(data)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 5]}')
    ours, theirs = (
        Tokenizer.from_folder(tmp_path),
        sentencepiece.SentencePieceProcessor(model_proto=data),
    )
    for text in hard_texts(500, extra=own):
        assert ours.encode(text) == [2, *theirs.encode(text)], text
    assert theirs.id_to_piece(5) == "<end_of_turn>"
    assert ours.stop_ids == {1, 5}
    assert ours.token_bytes(theirs.piece_to_id("▁▁▁▁")) == b"    "


def test_phi_3_takes_the_blanks_behind_its_control_tokens():
    data = train(*CASES["bpe"], control_symbols=["<|user|>", "<|end|>"])
    spelt = sentencepiece.SentencePieceProcessor(model_proto=data)
    end, first = spelt.piece_to_id("<|end|>"), spelt.encode("a")
    phi = Tokenizer.from_gguf(gguf_of(data, **{"general.architecture": "phi3"}), "test")
    assert phi.encode("<|end|> \n a", add_bos=False) == [end, *first]
    assert phi.stop_ids == {end, spelt.piece_to_id("</s>")}
    assert Tokenizer.from_gguf(gguf_of(data), "test").encode("<|end|> a", add_bos=False) != [end, *first]


# -- what is wrong with a file ---------------------------------------------------------------------------


def test_300_damaged_files_are_refused_or_read_and_never_worse():
    data, generator = train(*CASES["bpe"]), random.Random(3)
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(generator.randrange(1, 6)):
            damaged[generator.randrange(min(len(damaged), 4000))] = generator.randrange(256)
        damaged = damaged[: generator.randrange(1, len(damaged))] if generator.random() < 0.5 else damaged
        try:
            pieces = pieces_of(bytes(damaged), "m")
        except (BadModelFile, UnsupportedModel):
            continue
        assert len(pieces.tokens) == len(pieces.scores) == len(pieces.types)


@pytest.mark.parametrize(
    "data, error, message",
    [
        (b"", BadModelFile, "no pieces"),
        (b"\x0a\xff\xff\xff\xff\x0f", BadModelFile, "where 0 are left"),
        (b"\x0a\x80", BadModelFile, "not a sound SentencePiece model"),
        (b"\x0a\x03\x0a\x01\xff", BadModelFile, "not UTF-8"),
        (b"\x0b", BadModelFile, "wire type 3"),
        (b"\x0a\x03\x0a\x01a\x12\x02\x18\x03", UnsupportedModel, "model_type 3"),
        (b"\x0a\x03\x0a\x01a\x12\x03\xc0\x01\x01", UnsupportedModel, "spaces behind words"),
    ],
)
def test_what_is_no_such_model_is_refused_by_name(data, error, message):
    with pytest.raises(error, match=message):
        pieces_of(data, "m")


def test_tokens_too_long_to_have_parts_are_refused_at_once():
    metadata = gguf_of(train(*CASES["bpe"]))
    tokens = (*metadata["tokenizer.ggml.tokens"][:-1], b"a" * 40_000)
    with pytest.raises(BadModelFile, match="tokens of up to 40,000 characters"):
        Tokenizer.from_gguf(metadata | {"tokenizer.ggml.tokens": tokens}, "test")
