"""Our tokenizers give the ids and bytes of the reference ones: transformers, tokenizers, SentencePiece."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.text.vocabularies import (
    CORPUS,
    REFERENCES,
    digits_then_words,
    gguf_metadata,
    random_texts,
    sentencepiece_vocabulary,
)
from tokenizers import decoders, models, pre_tokenizers, processors

from octavo.errors import BadModelFile, InvalidRequest, ModelNotFound, UnsupportedModel
from octavo.text.byte_level import byte_level_bytes
from octavo.text.chat import ChatTemplate
from octavo.text.pre_tokenizers import LLAMA3, QWEN2
from octavo.text.tokenizer import Tokenizer

texts = st.text(max_size=60) | st.text("ab 12'llst\n\t é世🙂▁<|>", max_size=60)


@pytest.fixture(scope="module", params=REFERENCES)
def pair(request):
    """(reference, ours) of one pre-tokenizer."""
    reference = REFERENCES[request.param]()
    return reference, Tokenizer.from_gguf(gguf_metadata(reference, request.param), "test")


@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_a_vocabulary_from_gguf_gives_the_references_ids(pair, text):
    reference, ours = pair
    assert ours.encode(text, add_bos=False) == reference.encode(text, add_special_tokens=False).ids


def test_random_unicode_gives_the_references_ids_and_text(pair):
    reference, ours = pair
    for text in random_texts():
        ids = ours.encode(text, add_bos=False)
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ids) == reference.decode(ids), text


@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_token_bytes_put_together_are_the_text(pair, text):
    reference, ours = pair
    expected = reference.normalizer.normalize_str(text) if reference.normalizer else text
    ids = ours.encode(text, add_bos=False)
    assert b"".join(map(ours.token_bytes, ids)) == expected.encode()


@pytest.mark.parametrize(
    "pattern,text,pieces",
    [
        (LLAMA3, "I'LL pay 12345 a!!\n\n  ok",
         ["I", "'LL", " pay", " ", "123", "45", " a", "!!\n\n", " ", " ok"]),
        (QWEN2, "year 2024\n\tx", ["year", " ", "2", "0", "2", "4", "\n", "\tx"]),
    ],
)  # fmt: skip
def test_patterns_cut_where_their_models_do(pattern, text, pieces):
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    assert [piece for piece, _ in split.pre_tokenize_str(text)] == pieces


def test_digits_stand_alone_with_smollm():
    ours = Tokenizer.from_gguf(gguf_metadata(REFERENCES["smollm"](), "smollm"), "test")
    ids = ours.encode("12345", add_bos=False)
    assert [ours.token_bytes(token) for token in ids] == [b"1", b"2", b"3", b"4", b"5"]


def test_begin_and_stop_tokens_of_a_gguf():
    reference = REFERENCES["gpt-2"]()
    plain = Tokenizer.from_gguf(gguf_metadata(reference, "gpt-2"), "test")
    begins = Tokenizer.from_gguf(
        gguf_metadata(reference, "gpt-2", **{"tokenizer.ggml.add_bos_token": True}), "test"
    )
    assert plain.encode("a")[0] != 1
    assert begins.encode("a")[0] == 1
    assert begins.encode("a", add_bos=False)[0] != 1
    assert plain.stop_ids == {0, 2}  # the end-of-sequence token, and <|im_end|>
    assert plain.special_ids == {0, 1, 2}
    assert plain.decode([1, *plain.encode("hi", add_bos=False), 2]) == "hi"
    assert plain.vocab_size == reference.get_vocab_size()
    assert plain.token_bytes(10**9) == plain.token_bytes(-1) == b""


def test_byte_letters_cover_every_byte_once():
    letters = pre_tokenizers.ByteLevel.alphabet()
    assert sorted(byte_level_bytes(letter) for letter in letters) == [bytes([byte]) for byte in range(256)]
    assert byte_level_bytes("世") == "世".encode()


def test_a_lone_surrogate_is_an_invalid_request(pair):
    with pytest.raises(InvalidRequest, match="Unicode"):
        pair[1].encode("a\ud800")


@pytest.mark.parametrize(
    "changed,error,message",
    [
        ({"tokenizer.ggml.tokens": ()}, BadModelFile, "tokens is missing"),
        ({"tokenizer.ggml.tokens": (b"a", b"a")}, BadModelFile, "names 1 tokens twice"),
        ({"tokenizer.ggml.tokens": (b"a", b"\xff")}, BadModelFile, "not UTF-8"),
        ({"tokenizer.ggml.merges": (b"nope nope",)}, BadModelFile, "merges"),
        ({"tokenizer.ggml.merges": (b"alone",)}, BadModelFile, "merges"),
        ({"tokenizer.ggml.token_type": np.zeros(3, np.int32)}, BadModelFile, "token_type"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, BadModelFile, "eos_token_id is 1000000"),
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedModel, "tokenizer model 'rwkv'"),
        ({"tokenizer.ggml.pre": "unheard-of"}, UnsupportedModel, "pre-tokenizer 'unheard-of'"),
        ({"tokenizer.ggml.model": "llama"}, BadModelFile, "scores"),
    ],
)
def test_unsound_vocabularies_are_refused_by_name(changed, error, message):
    metadata = gguf_metadata(REFERENCES["gpt-2"](), "gpt-2")
    with pytest.raises(error, match=message):
        Tokenizer.from_gguf(metadata | changed, "test")


# -- SentencePiece ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no-prefix"])
def piece_pair(request):
    """(SentencePiece's own, ours), with and without a space put in front of every text."""
    theirs, metadata = sentencepiece_vocabulary(request.param)
    return theirs, Tokenizer.from_gguf(metadata, "test")


def test_sentencepiece_ids_and_text_are_the_references(piece_pair):
    theirs, ours = piece_pair
    for text in itertools.chain(CORPUS[:4], random_texts(seed=9)):
        ids = ours.encode(text, add_bos=False)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == text
        assert ours.encode(text) == [theirs.bos_id(), *ids]


def test_sentencepiece_byte_tokens_are_single_bytes(piece_pair):
    theirs, ours = piece_pair
    assert ours.token_bytes(theirs.piece_to_id("<0xE4>")) == b"\xe4"
    assert ours.token_bytes(theirs.piece_to_id("▁the")) == b" the"
    assert ours.encode("<0xE4>", add_bos=False) == theirs.encode("<0xE4>")
    assert theirs.piece_to_id("<0xE4>") not in ours.encode("<0xE4>", add_bos=False)


# -- folders ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder as transformers saves it, whose tokenizer puts a begin token in front."""
    import transformers

    backend = REFERENCES["gpt-2"]()
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    fast.chat_template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    fast.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.full
def test_a_folder_gives_transformers_ids(folder):
    import transformers

    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ours = Tokenizer.from_folder(folder)
    for text in random_texts(50):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_bos=False) == theirs.encode(text, add_special_tokens=False)
    assert (ours.bos_id, ours.eos_id, ours.stop_ids) == (1, 2, {2})


@pytest.mark.full
def test_all_end_tokens_of_the_generation_configuration_stop(folder):
    (folder / "config.json").write_text('{"eos_token_id": 5}')
    assert Tokenizer.from_folder(folder).stop_ids == {5}
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    assert Tokenizer.from_folder(folder).stop_ids == {0, 2}
    (folder / "generation_config.json").write_text('{"eos_token_id": ["x"]}')
    with pytest.raises(BadModelFile, match="eos_token_id"):
        Tokenizer.from_folder(folder)


@pytest.mark.full
def test_the_chat_template_of_a_folder_is_found_wherever_it_stands(folder):
    template = Tokenizer.from_folder(folder).chat_template
    assert isinstance(template, ChatTemplate)
    assert (template.bos, template.eos) == ("<|im_start|>", "<|im_end|>")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"chat_template": [{"name": "default", "template": "D"}]}))
    assert Tokenizer.from_folder(folder).chat_template.source == "D"
    path.write_text(json.dumps(kept | {"chat_template": None}))
    assert Tokenizer.from_folder(folder).chat_template is None


def test_a_sentencepiece_folder_strips_the_first_space(tmp_path):
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={"<unk>": 0, "▁a": 1, "▁b": 2, "<0x0A>": 3}, merges=[], byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_folder(tmp_path)
    assert ours.strips_leading_space
    assert ours.decode([1, 2, 3]) == backend.decode([1, 2, 3]) == "a b\n"


def test_unsound_folders_are_refused(tmp_path):
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(BadModelFile, match="not a sound tokenizer"):
        Tokenizer.from_folder(tmp_path)
    tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="decoder"):
        Tokenizer.from_folder(tmp_path)


# -- the default model -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def default_pair(default_gguf):
    """(transformers', ours); theirs with the digit splitting that its GGUF converter drops put back."""
    import transformers

    from octavo.model.files.gguf import read_gguf

    theirs = transformers.AutoTokenizer.from_pretrained(default_gguf.parent, gguf_file=default_gguf.name)
    theirs.backend_tokenizer.pre_tokenizer = digits_then_words()
    return theirs, Tokenizer.from_gguf(read_gguf(default_gguf).metadata, str(default_gguf))


@pytest.mark.full
@pytest.mark.real_model
def test_the_default_model_gives_transformers_ids_and_text(default_pair):
    theirs, ours = default_pair
    for text in itertools.chain(CORPUS[:4], random_texts(500)):
        ids = ours.encode(text, add_bos=False)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids, clean_up_tokenization_spaces=False)
    assert ours.stop_ids == {2}
    assert ours.vocab_size == 49152


@pytest.mark.full
@pytest.mark.real_model
def test_the_default_models_chats_equal_transformers(default_pair):
    from octavo.types import ChatMessage, ChatOptions

    theirs, ours = default_pair
    for plain in (
        [{"role": "user", "content": "Hi"}],
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": " 1\n"},
            {"role": "assistant", "content": "é"},
        ],
    ):
        messages = [ChatMessage(message["role"], message["content"]) for message in plain]
        for generation in (True, False):
            text = ours.chat_template.render(messages, ChatOptions(generation)).text
            assert text == theirs.apply_chat_template(plain, tokenize=False, add_generation_prompt=generation)
            assert ours.encode(text, add_bos=False) == theirs.encode(text, add_special_tokens=False)
