"""Every cut that a GGUF file can name gives the ids of transformers, whose tokenizers are described here as
the models' own tokenizer.json describe them, or are transformers' own classes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import transformers
from tests.text.hard_texts import hard_texts
from tests.text.vocabularies import CORPUS, REFERENCES, SPECIAL, gguf_metadata
from tokenizers import models, pre_tokenizers, trainers

from octavo.errors import UnsupportedModel
from octavo.fields import Fields
from octavo.text import pre_tokenizers as ours_module
from octavo.text.gguf_vocabulary import check_vocabulary
from octavo.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.text.tokenizer import Tokenizer

pytestmark = pytest.mark.full

TEXTS = hard_texts(extra=tuple(SPECIAL))
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = _BYTES | {"use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NEMO = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str, *, removed: bool = False) -> dict[str, object]:
    """A cut of tokenizer.json; some models throw away what is between matches, where nothing is."""
    behaviour = (
        {"behavior": "Removed", "invert": True} if removed else {"behavior": "Isolated", "invert": False}
    )
    return {"type": "Split", "pattern": {"Regex": pattern}, **behaviour}


_CJK = split("[一-龥ࠀ-一가-퟿]+")
# What tokenizer.json of each family has between normalizer and model.
CHAINS: dict[str, list[dict[str, object]]] = {
    "smollm": [_DIGITS, _GPT2],
    "starcoder": [_DIGITS, _GPT2],
    "refact": [_DIGITS, _GPT2],
    "llama-bpe": [split(_CL100K), _BYTES],
    "falcon3": [split(_CL100K), _BYTES],
    "glm4": [split(_CL100K), _BYTES],
    "dbrx": [split(_CL100K, removed=True), _BYTES],
    "smaug-bpe": [split(_CL100K), _BYTES],
    "gpt-4o": [split(_O200K), _BYTES],
    "llama4": [split(_O200K, removed=True), _BYTES],
    "tekken": [split(_NEMO), _BYTES],
    "deepseek-llm": [
        split("[\r\n]"),
        split(ours_module._DEEPSEEK_LLM[1]),  # its letters have a test of their own
        split("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        split("\\s+$"),
        _CJK,
        _DIGITS,
        _BYTES,
    ],
    "deepseek-coder": [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), _CJK, _DIGITS, _BYTES],
    "deepseek-v3": [
        split(r"\p{N}{1,3}"),
        split("[一-龥぀-ゟ゠-ヿ]+"),
        split(
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
        ),
        _BYTES,
    ],
    "superbpe": [split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"), _BYTES],
}
CLASSES = {
    "gpt-2": transformers.GPT2Tokenizer,
    "phi-2": transformers.CodeGenTokenizer,
    "olmo": transformers.GPTNeoXTokenizer,
    "mpt": transformers.GPTNeoXTokenizer,
    "command-r": transformers.CohereTokenizer,
    "qwen2": transformers.Qwen2Tokenizer,
    "deepseek-r1-qwen": transformers.Qwen2Tokenizer,
    "qwen35": transformers.models.qwen3_5.Qwen3_5Tokenizer,
}
# Names whose cut is another's, whole.
SAME = {"default": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "chatglm-bpe": "glm4"}


def trained(pre: pre_tokenizers.PreTokenizer, normalizer: object = None) -> tokenizers.Tokenizer:
    """A vocabulary of what the cut leaves together."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([*CORPUS, *hard_texts(300, seed=1)], trainer)
    return backend


def transformers_own(name: str) -> transformers.PreTrainedTokenizerFast:
    """As `transformers` has it: by its class, or from a tokenizer.json."""
    if name in CLASSES:
        empty = CLASSES[name]().backend_tokenizer
        state = json.loads(trained(empty.pre_tokenizer, empty.normalizer).to_str())["model"]
        merges = [tuple(merge) for merge in state["merges"]]
        made = CLASSES[name](vocab=state["vocab"], merges=merges)
        made.add_special_tokens({"additional_special_tokens": SPECIAL})
        return made
    chain = {"type": "Sequence", "pretokenizers": CHAINS[name]}
    state = json.loads(tokenizers.Tokenizer(models.BPE()).to_str()) | {"pre_tokenizer": chain}
    state = json.loads(trained(tokenizers.Tokenizer.from_str(json.dumps(state)).pre_tokenizer).to_str())
    state["model"]["ignore_merges"] = PRE_TOKENIZERS[name].ignore_merges
    state["decoder"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(state))
    )


@pytest.mark.parametrize("name", [*CHAINS, *CLASSES])
def test_a_cut_gives_transformers_ids_on_2000_texts(name):
    theirs = transformers_own(name)
    ours = Tokenizer.from_gguf(gguf_metadata(theirs.backend_tokenizer, name), "test")
    encoded = theirs.backend_tokenizer.encode_batch_fast(TEXTS, add_special_tokens=False)
    assert [ours.encode(text, add_bos=False) for text in TEXTS] == [one.ids for one in encoded]
    decoded = theirs.backend_tokenizer.decode_batch([one.ids for one in encoded[:500]])
    assert [ours.decode(one.ids) for one in encoded[:500]] == decoded


def test_every_name_is_compared_or_stands_for_one_that_is():
    assert {*CHAINS, *CLASSES, *SAME} == set(PRE_TOKENIZERS)
    for name, other in SAME.items():
        assert PRE_TOKENIZERS[name] == PRE_TOKENIZERS[other]


def test_the_letters_of_deepseeks_first_cut_are_its_makers():
    """The class is long, and has letters that look alike: its code points are those of the published one."""
    pattern = ours_module._DEEPSEEK_LLM[1]
    assert hashlib.sha256(pattern.encode()).hexdigest()[:16] == "38fd0b5eb7e66ecf"


def test_a_cut_that_is_not_known_is_refused_with_those_that_are():
    metadata = gguf_metadata(trained(pre_tokenizers.ByteLevel()), "falcon")
    with pytest.raises(UnsupportedModel, match=r"pre-tokenizer 'falcon'; allowed: gpt-2, .*, superbpe"):
        Tokenizer.from_gguf(metadata, "test")


def test_without_patterns_the_cut_is_gpt_2s():
    backend = tokenizers.Tokenizer(models.BPE())
    ours_module.set_byte_level(backend, PreTokenizer())
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("it's 12 x")] == [
        "it",
        "'s",
        "Ġ12",
        "Ġx",
    ]


def test_the_documentation_names_every_cut():
    text = (Path(__file__).parents[2] / "docs" / "chat.md").read_text()
    told = text[text.index("(`tokenizer.ggml.pre`): ") + 24 : text.index(". Any other is refused")].split()
    assert [name.rstrip(",") for name in told] == list(PRE_TOKENIZERS)


def older_file(architecture: str, *tokens: bytes) -> dict[str, object]:
    """Metadata from before files said how texts are cut."""
    metadata = gguf_metadata(REFERENCES["qwen2"](), "", **{"general.architecture": architecture})
    metadata["tokenizer.ggml.tokens"] = (*metadata["tokenizer.ggml.tokens"], *tokens)
    types = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = np.append(types, [3] * len(tokens)).astype(np.int32)
    del metadata["tokenizer.ggml.pre"]
    return metadata


@pytest.mark.parametrize(
    "architecture,tokens,cut",
    [
        ("gpt2", (), "gpt-2"),
        ("gptneox", (), "olmo"),
        ("starcoder2", (), "starcoder"),
        ("qwen2", (), "qwen2"),
        ("llama", (b"<|begin_of_text|>",), "llama-bpe"),
    ],
)
def test_an_older_file_is_cut_as_its_architecture_leaves_no_doubt(architecture, tokens, cut):
    metadata = older_file(architecture, *tokens)
    facts = check_vocabulary(Fields("old", metadata))
    assert (facts.name, facts.doubt) == (f"byte-level BPE, cut as {cut}", "")
    ours = Tokenizer.from_gguf(metadata, "old")
    told = Tokenizer.from_gguf(metadata | {"tokenizer.ggml.pre": cut}, "new")
    assert all(ours.encode(text) == told.encode(text) for text in TEXTS[:200])


def test_an_older_file_whose_cut_nothing_shows_is_in_doubt_and_says_so():
    metadata = older_file("llama")
    assert "tokenizer.ggml.pre" in check_vocabulary(Fields("old", metadata)).doubt
    assert Tokenizer.from_gguf(metadata, "old").encode("a 123", add_bos=False)
    known = check_vocabulary(Fields("new", metadata | {"tokenizer.ggml.pre": "smollm"}))
    assert known.doubt == ""
