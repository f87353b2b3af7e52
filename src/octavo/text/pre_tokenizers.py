"""The pre-tokenizers of byte-level vocabularies, by the names in GGUF files (`tokenizer.ggml.pre`). They
decide which text can be one token, and must match the model's training.

    text -> NFC, if the model needs it -> cut by each pattern in turn -> digits apart -> bytes as letters

Source: the models' own tokenizer.json; the names are llama.cpp's. The patterns are those of the models, not
llama.cpp's versions of them for an engine without \\p{M} and (?i: ).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
# Marks belong to the letters before them.
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# A word is capitals and then small letters, so CamelCase is two; with GPT-4o's, a contraction belongs to it.
_BEFORE, _UPPER, _LOWER = r"[^\r\n\p{L}\p{N}]?", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_MARKS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_BEFORE}[{_UPPER}]*[{_LOWER}]+|{_BEFORE}[{_UPPER}]+[{_LOWER}]*|\p{{N}}|{_MARKS_AND_SPACES}"
_GPT4O = (
    rf"{_BEFORE}[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?|{_BEFORE}[{_UPPER}]+[{_LOWER}]*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_MARKS_AND_SPACES}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEEPSEEK_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK)
# The letters of alphabets with capitals, as the model's authors listed them.
_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇ"
    "Ꞌ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    _DEEPSEEK_CJK,
)
# Words may be joined to longer tokens; digits are counted off from the right, three by three.
_SUPERBPE = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Without `patterns` it is GPT-2's own, which is built into the library."""

    patterns: tuple[str, ...] = ()
    digits_apart: bool = False
    compose: bool = False  # Unicode NFC first
    ignore_merges: bool = False  # a piece that is a token is kept whole, without merging
    add_bos: bool = False  # the default of the file's setting


_LLAMA = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
_CL100K = PreTokenizer((LLAMA3,))
_DIGITS = PreTokenizer(digits_apart=True)
_QWEN = PreTokenizer((QWEN2,), compose=True)
_O200K = PreTokenizer((_GPT4O,), ignore_merges=True)
_GLM = PreTokenizer((LLAMA3,), ignore_merges=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        "gpt-2": PreTokenizer(),
        "default": PreTokenizer(),  # files from before the key existed; that of the first BPE models
        "phi-2": PreTokenizer(),
        "olmo": PreTokenizer(compose=True),  # OLMo 1, GPT-NeoX
        "mpt": PreTokenizer(compose=True),
        "smollm": _DIGITS,
        "starcoder": _DIGITS,
        "refact": _DIGITS,  # Granite 3
        "command-r": PreTokenizer(digits_apart=True, compose=True),
        "llama-bpe": _LLAMA,
        "llama3": _LLAMA,
        "llama-v3": _LLAMA,
        "falcon3": _LLAMA,
        "dbrx": _CL100K,  # OLMo 2, Phi-4, Granite 4
        "smaug-bpe": _CL100K,
        "chatglm-bpe": _GLM,
        "glm4": _GLM,
        "qwen2": _QWEN,
        "deepseek-r1-qwen": _QWEN,
        "qwen35": PreTokenizer((_QWEN35,), compose=True),
        "gpt-4o": _O200K,  # gpt-oss, Phi-4-mini
        "llama4": _O200K,
        "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
        "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM, digits_apart=True),
        "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER, digits_apart=True),
        "deepseek-v3": PreTokenizer(_DEEPSEEK3),
        "superbpe": PreTokenizer(_SUPERBPE),
    }
)


def set_byte_level(backend: tokenizers.Tokenizer, pre: PreTokenizer) -> None:
    """Give a tokenizer of byte-level letters its normalizer, pre-tokenizer and decoder."""
    if pre.compose:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated", invert=False) for pattern in pre.patterns
    ]
    if pre.digits_apart:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pre.patterns))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
