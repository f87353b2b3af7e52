"""Folders without a tokenizer.json give the ids of transformers, and of tiktoken's algorithm, on 2,000
texts."""

from __future__ import annotations

import base64
import itertools
import json
import unicodedata
from pathlib import Path

import pytest
import tokenizers
import transformers
from tests.text.hard_texts import hard_texts
from tests.text.vocabularies import REFERENCES, SPECIAL, gguf_metadata, split_by
from tokenizers import models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter

from octavo.errors import BadModelFile, ModelNotFound, UnsupportedModel
from octavo.text.byte_level import byte_level_bytes, byte_level_letters
from octavo.text.pre_tokenizers import LLAMA3, QWEN2
from octavo.text.tokenizer import Tokenizer, ends_of_turn

pytestmark = pytest.mark.full

GLM = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|observation|>",
)


def write(folder, **files):
    """Files by their name, with "__" for the dot; objects become JSON."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def ranks_of(pattern):
    """A vocabulary as tiktoken has it: the bytes of a token, and its rank."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = split_by(pattern)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(hard_texts(400, seed=1), trainer)
    return {byte_level_bytes(token): rank for token, rank in backend.get_vocab().items()}


def ranks_text(ranks):
    ordered = sorted(ranks.items(), key=lambda pair: pair[1])
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ordered)


def merged(ranks, word):
    """tiktoken's algorithm, the slow way: of neighbours that make a token, the first of the lowest rank."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [(ranks.get(a + b), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        found = [pair for pair in pairs if pair[0] is not None]
        if not found:
            return [ranks[part] for part in parts]
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def by_ranks(ranks, pattern, text):
    cut = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated").pre_tokenize_str(text)
    return [token for word, _ in cut for token in merged(ranks, word.encode())]


class Converter(TikTokenConverter):
    """transformers' own, which reads the file with a library that is not here."""

    @staticmethod
    def load_tiktoken_bpe(path):
        lines = [line.split() for line in Path(path).read_bytes().splitlines()]
        return {base64.b64decode(token): int(rank) for token, rank in lines}


def test_ranks_give_the_ids_of_transformers_and_of_tiktokens_algorithm(tmp_path):
    ranks = ranks_of(LLAMA3)
    write(tmp_path, tokenizer__model=ranks_text(ranks), config__json={"model_type": "llama"})
    ours, texts = Tokenizer.from_folder(tmp_path), hard_texts(extra=("<|eot_id|>", "<|begin_of_text|>"))
    names = [ours._backend.id_to_token(i) for i in range(len(ranks), ours.vocab_size)]
    theirs = Converter(str(tmp_path / "tokenizer.model"), LLAMA3, extra_special_tokens=names).converted()
    assert len(names) == 256
    for text in texts:
        ids = ours.encode(text, add_bos=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, text
        assert b"".join(map(ours.token_bytes, ids)) == text.encode()
        if "<|" not in text:
            assert ids == by_ranks(ranks, LLAMA3, text), text
    begin = len(ranks)
    assert ours.encode("")[:1] == [begin]
    assert [ours._backend.token_to_id(name) - begin for name in ("<|eom_id|>", "<|eot_id|>")] == [8, 9]
    assert ours.stop_ids == {begin + 1, begin + 8, begin + 9}


def test_qwen_1s_ranks_are_of_composed_text_and_bring_its_special_tokens(tmp_path):
    ranks = ranks_of(QWEN2)
    write(tmp_path, qwen__tiktoken=ranks_text(ranks), config__json={"model_type": "qwen"})
    ours = Tokenizer.from_folder(tmp_path)
    for text in hard_texts(500):
        composed = unicodedata.normalize("NFC", text)
        assert ours.encode(text) == by_ranks(ranks, QWEN2, composed), text
    assert ours._backend.token_to_id("<|im_end|>") == len(ranks) + 2
    assert ours.vocab_size == len(ranks) + 208


def test_glm_4_begins_texts_with_its_two_tokens_and_ends_where_another_speaks(tmp_path):
    ranks = ranks_of(LLAMA3)
    added = {str(len(ranks) + i): {"content": name, "special": True} for i, name in enumerate(GLM)}
    settings = {"added_tokens_decoder": added, "eos_token": "<|endoftext|>"}
    write(tmp_path, tokenizer__model=ranks_text(ranks), tokenizer_config__json=settings)
    write(tmp_path, config__json={"model_type": "glm4"})
    ours = Tokenizer.from_folder(tmp_path)
    ids = {name: len(ranks) + i for i, name in enumerate(GLM)}
    assert ours.encode("a")[:2] == [ids["[gMASK]"], ids["<sop>"]]
    assert ours.encode("a", add_bos=False) == by_ranks(ranks, LLAMA3, "a")
    assert ours.stop_ids == {ids["<|endoftext|>"], ids["<|user|>"], ids["<|observation|>"]}


@pytest.mark.parametrize("add_bos", [True, False])
def test_vocab_json_with_merges_gives_transformers_ids(tmp_path, add_bos):
    model = json.loads(REFERENCES["gpt-2"]().to_str())["model"]
    merges = "#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in model["merges"])
    named = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": add_bos, **named}
    write(tmp_path, vocab__json=model["vocab"], merges__txt=merges, tokenizer_config__json=settings)
    ours, theirs = Tokenizer.from_folder(tmp_path), transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    for text in hard_texts(extra=tuple(SPECIAL)):
        assert ours.encode(text) == theirs.encode(text), text
    assert ours.stop_ids == {2}
    assert ours.special_ids == {0, 1, 2}


def test_a_tokenizer_json_inside_a_gguf_is_used_where_there_are_no_tokens():
    backend = REFERENCES["qwen2"]()
    inside = {"tokenizer.huggingface.json": backend.to_str(), "tokenizer.ggml.eos_token_id": 2}
    ours = Tokenizer.from_gguf(inside, "test")
    for text in hard_texts(500, extra=tuple(SPECIAL)):
        assert ours.encode(text) == backend.encode(text).ids
    assert ours.stop_ids == {2}
    assert ours.special_ids == {0, 1, 2}
    with pytest.raises(BadModelFile, match=r"tokenizer.huggingface.json is not a sound tokenizer"):
        Tokenizer.from_gguf({"tokenizer.huggingface.json": "{"}, "test")


@pytest.mark.parametrize(
    "names, ends",
    [
        (("<|end|>", "<|user|>", "<|assistant|>"), {"<|end|>"}),  # Phi
        (("<|end|>", "<|return|>", "<|call|>", "<|start|>"), {"<|return|>", "<|call|>"}),  # gpt-oss
        (
            ("[gMASK]", "<|user|>", "<|observation|>", "<|assistant|>"),
            {"<|user|>", "<|observation|>"},
        ),  # GLM-4
        (("<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>"), {"<|eot_id|>", "<|eom_id|>"}),  # Llama 3
        (("<start_of_turn>", "<end_of_turn>"), {"<end_of_turn>"}),  # Gemma
        (("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"), {"<|end_of_text|>"}),  # Granite
        (("<s>", "</s>", "[INST]"), {"</s>"}),  # Llama 2, Mistral
        (("<|im_start|>", "<|im_end|>"), {"<|im_end|>"}),
    ],
)
def test_a_turn_ends_with_the_tokens_of_its_family(names, ends):
    backend = tokenizers.Tokenizer(models.BPE())
    backend.add_special_tokens(list(names))
    special = {backend.token_to_id(name) for name in names}
    assert {backend.id_to_token(i) for i in ends_of_turn(backend, special)} == ends
    assert ends_of_turn(backend, set()) == set()  # an ordinary token of that name is text


def test_a_gguf_of_glm_4_begins_like_its_tokenizer():
    backend = REFERENCES["llama-bpe"]()
    metadata = gguf_metadata(backend, "glm4")
    names = (b"[gMASK]", b"<sop>")
    metadata["tokenizer.ggml.tokens"] = (*names, *metadata["tokenizer.ggml.tokens"][2:])
    metadata["general.architecture"] = "glm4"
    assert Tokenizer.from_gguf(metadata, "test").encode("a")[:2] == [0, 1]


@pytest.mark.parametrize(
    "files, error, message",
    [
        ({"tekken__json": {}}, ModelNotFound, r"allowed instead: tokenizer.model, .* \(not tekken.json\)"),
        ({"tokenizer__model": "\x00"}, BadModelFile, "neither SentencePiece's nor a list of ranks"),
        ({"tokenizer__model": "IQ== 0\nIg== 2\n"}, BadModelFile, "do not have the ranks 0 to 1"),
        ({"tokenizer__model": "IQ== 0\nIg==\n"}, BadModelFile, "line 2 is not a token in base64"),
        ({"tokenizer__model": "IQ== 0\nIg= 1\n"}, BadModelFile, "line 2 is not base64"),
        (
            {"tokenizer__model": "IQ== 0\n"},
            UnsupportedModel,
            "how a text is cut, nor does model_type 'new'; allowed:",
        ),
        (
            {"tokenizer__model": "IQ== 0\n", "config__json": {"model_type": "gpt_oss"}},
            UnsupportedModel,
            "no special tokens",
        ),
        (
            {"vocab__json": {"a": "b"}, "merges__txt": ""},
            BadModelFile,
            "not an object of tokens and their ids",
        ),
        (
            {"vocab__json": {"a": 0}, "merges__txt": "a b c\n", "config__json": {"model_type": "opt"}},
            BadModelFile,
            "merge 'a b c' is not two tokens",
        ),
        (
            {
                "vocab__json": {"a": 0},
                "merges__txt": "",
                "config__json": {"model_type": "opt"},
                "added_tokens__json": {"<x>": 7},
            },
            BadModelFile,
            "added token '<x>' has id 7, where 1 is next",
        ),
    ],
)
def test_folders_that_cannot_be_read_are_refused_by_name(tmp_path, files, error, message):
    write(tmp_path, **({"config__json": {"model_type": "new"}} | files))
    with pytest.raises(error, match=message):
        Tokenizer.from_folder(tmp_path)


def test_letters_and_bytes_are_each_others_inverse():
    every = bytes(range(256))
    assert byte_level_bytes(byte_level_letters(every)) == every
