"""Whatever a tokenizer.json does costs a process and is told in words; what a text becomes is bounded."""

from __future__ import annotations

import base64
import contextlib
import json
import resource

import pytest
import tokenizers
from tests.text.vocabularies import byte_level_reference, random_texts
from tokenizers import Regex, models, normalizers, pre_tokenizers

from octavo.errors import BadModelFile, ConfigError, InvalidRequest
from octavo.text import growth, tokenizer_json
from octavo.text.encoding import panics_as
from octavo.text.growth import Growth, growth_of, normalizer_growth
from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def sound():
    backend = byte_level_reference(pre_tokenizers.ByteLevel(add_prefix_space=False))
    return json.loads(backend.to_str())


def load(tmp_path, description):
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    return Tokenizer.from_folder(tmp_path)


def replacing(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def in_row(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


def charsmap(trie_bytes, texts):
    data = trie_bytes.to_bytes(4, "little") + b"\xff" * trie_bytes + b"\0".join(texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


HOSTILE = {
    "doubled 40 times": ("normalizer", in_row(*[replacing({"String": "a"}, "aa")] * 40)),
    "doubled by expressions": ("normalizer", in_row(*[replacing({"Regex": "(?=b)"}, "b")] * 40)),
    "doubled in sequences": ("normalizer", in_row(*[in_row(replacing({"String": "a"}, "aa"))] * 40)),
    "empty patterns": ("normalizer", in_row(*[replacing({"String": ""}, "x")] * 40)),
    "a long text in front": ("normalizer", {"type": "Prepend", "prepend": "x" * 50_000_000}),
    "a long text for each": ("normalizer", replacing({"String": "e"}, "x" * 50_000_000)),
    "a map to a long text": ("normalizer", charsmap(1024, [b"x" * 1_000_000])),
    "a map that ends early": ("normalizer", charsmap(1024, [])),
    "a map of nothing": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "many tokens around": (
        "post_processor",
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}] * 100_000
            + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": [2], "tokens": ["<|im_end|>"]}},
        },
    ),
    "a text three times": (
        "post_processor",
        {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 3,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {},
        },
    ),
    "an expression without end": (
        "pre_tokenizer",
        {"type": "Split", "pattern": {"Regex": "(a|a)*$"}, "behavior": "Isolated", "invert": False},
    ),
    "an expression that looks at all of the text each time": (
        "pre_tokenizer",
        {"type": "Split", "pattern": {"Regex": r"a+(?=\d)"}, "behavior": "Isolated", "invert": False},
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tokenizer_is_refused_in_words_and_costs_the_server_nothing(kind, sound, tmp_path):
    part, description = HOSTILE[kind]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadModelFile, match=r"tokenizer\.json is not a sound tokenizer: "):
        load(tmp_path, sound | {part: description})
    written = (tmp_path / "tokenizer.json").stat().st_size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (64 << 10) + 4 * written // 1024


@pytest.mark.parametrize("name", ["unk_token", "continuing_subword_prefix", "end_of_word_suffix"])
def test_a_long_word_that_is_copied_for_each_piece_is_refused(name, sound, tmp_path):
    model = sound["model"] | {name: "x" * 1_000_000}
    with pytest.raises(BadModelFile, match="not a sound tokenizer"):
        load(tmp_path, sound | {"model": model})


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", "[" * 100_000, '{"model": {"type": "BPE", "vocab": [], "merges": []}}']
)
def test_what_is_no_tokenizer_is_reported_in_words(text, tmp_path):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(BadModelFile, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_tokenizer_that_ends_its_process_is_reported(sound, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_json, "MEMORY_MAX", 1 << 20)
    monkeypatch.setattr(tokenizer_json, "MEMORY_PER_BYTE", 0)
    with pytest.raises(BadModelFile, match=r"tokenizer\.json is not a sound tokenizer: "):
        load(tmp_path, sound)


def test_a_tokenizer_that_takes_too_long_is_reported(sound, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_json, "SECONDS_MAX", 0.0)
    with pytest.raises(BadModelFile, match=r"took more than 0 s|ended the process"):
        load(tmp_path, sound)


def test_where_no_process_can_be_started_that_is_reported(sound, tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError("no memory")

    monkeypatch.setattr(tokenizer_json, "HelperProcess", refuse)
    with pytest.raises(ConfigError, match=r"did not start: no memory"):
        load(tmp_path, sound)


def test_a_text_that_could_become_too_long_is_refused_before_it_does(sound, tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "CHARS_MAX", 1000)
    tokenizer = load(
        tmp_path, sound | {"normalizer": in_row(replacing({"String": "a"}, "aaaa"), {"type": "NFKC"})}
    )
    assert tokenizer.encode("b" * 250)
    with pytest.raises(
        InvalidRequest, match=r"has 251 characters, of which .* could make 1,004; allowed: up to 1,000"
    ):
        tokenizer.encode("b" * 251)
    with pytest.raises(InvalidRequest, match="could make 3,600"):
        tokenizer.encode("é" * 50)
    with pytest.raises(InvalidRequest, match="could make 1,004"):
        tokenizer.encode_parts(["b" * 100, "<|im_end|>", "b" * 141])


NORMALIZERS = [
    normalizers.NFC(),
    normalizers.NFD(),
    normalizers.NFKC(),
    normalizers.NFKD(),
    normalizers.Lowercase(),
    normalizers.StripAccents(),
    normalizers.Nmt(),
    normalizers.Strip(),
    normalizers.BertNormalizer(),
    normalizers.ByteLevel(),
    normalizers.Prepend("__"),
    normalizers.Replace(" ", "▁"),
    normalizers.Replace("e", "ee"),
    normalizers.Replace("the", "ﷺﷺﷺ"),
    normalizers.Replace(Regex(" {2,}"), " "),
    normalizers.Replace(Regex("(?=o)"), "oo"),
    normalizers.Replace("", "x"),
]


@pytest.mark.parametrize("second", NORMALIZERS, ids=str)
@pytest.mark.parametrize("first", NORMALIZERS, ids=str)
def test_no_text_becomes_longer_than_its_bound(first, second):
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([first, second])
    bound = growth_of(backend)
    for text in [*random_texts(40), "ﷺ" * 9, "ΐ" * 9, "İ" * 9, "the" * 9, "oe" * 9, "  e  "]:
        times = bound.of_ascii if text.isascii() else bound.of_any
        with contextlib.suppress(InvalidRequest), panics_as(InvalidRequest, text):  # as some of these do
            assert len(backend.normalizer.normalize_str(text)) <= times * len(text)


def test_what_models_have_makes_texts_little_longer():
    llama = in_row({"type": "Prepend", "prepend": "▁"}, replacing({"String": " "}, "▁"))
    assert normalizer_growth(llama) == Growth(2.0, 2.0)
    assert normalizer_growth({"type": "NFC"}) == Growth(1.0, 4.0)
    assert normalizer_growth(in_row({"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"})).of_any <= 18
