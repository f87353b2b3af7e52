"""Texts that tokenizers find hard, the same ones every time: Unicode of all planes, digits of many scripts,
all kinds of space, code, marks on letters, emoji, control tokens, nothing at all."""

from __future__ import annotations

import random

NUM_TEXTS = 2000
_WORDS = (
    *("the", "quick", "brown", "fox", "HelloWorld", "camelCase", "XMLHttpRequest", "naïve", "Straße"),
    *("don't", "they'LL", "I'M", "WE'VE", "it's", "'tis", "isn't", "été", "déjà", "ΣΊΣΥΦΟΣ", "Ὀδυσσεύς"),
    *("привет", "мир", "שלום", "مرحبا", "नमस्ते", "สวัสดี", "こんにちは", "カタカナ", "世界和平", "안녕하세요"),
    *("e\u0301te\u0301", "A\u030a", "ﬁne", "ﬀ", "½", "³", "Ⅷ", "№5", "㈱", "ｆｕｌｌ", "ǅ", "ʰa"),
)
_CODE = (
    "def f(x):\n    return x**2  # ok",
    "for (int i=0;i<10;++i) {\n\t\tsum += a[i];\r\n}",
    '{"a": [1, 2.50, null], "b": "\\n"}',
    "https://example.org/a?b=c&d=%20#e",
    "<div class='x'>&nbsp;</div>",
    "C:\\temp\\x.txt",
    "a_b->c::d() || !e",
)
_SPACES = (
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u200b",
    "\x0b",
    "        ",
)
_DIGITS = ("1", "12", "123", "1234", "1234567890", "3.14", "1,000", "٣٤٥", "१२३", "①②", "𝟘𝟙", "x86_64")
_MARKS = (
    "!!!",
    "...",
    "?!",
    "—",
    "«»",
    "、。",
    "！？",
    "$€£",
    "+=",
    "^~`|",
    "/",
    "//",
    "\\",
    "©®",
    "…",
    "▁",
    "<0x41>",
)
_EMOJI = ("🙂", "👍🏽", "👩‍👩‍👧", "🇫🇷", "❤️", "🦙")


def hard_texts(count: int = NUM_TEXTS, seed: int = 27, extra: tuple[str, ...] = ()) -> list[str]:
    """Of which the first are whole classes by themselves; `extra` are mixed in, such as control tokens."""
    generator = random.Random(seed)
    kinds = [_WORDS, _WORDS, _CODE, _SPACES, _SPACES, _DIGITS, _MARKS, _EMOJI, *([extra] if extra else [])]
    texts = ["", *_SPACES, *_CODE, *_DIGITS, *_MARKS, *_EMOJI, *_WORDS, *extra]
    while len(texts) < count:
        parts = [
            _any_character(generator)
            if generator.random() < 0.15
            else generator.choice(generator.choice(kinds))
            for _ in range(generator.randrange(1, 10))
        ]
        texts.append(generator.choice(("", " ")).join(parts))
    return texts[:count]


def _any_character(generator: random.Random) -> str:
    """Of the whole of Unicode, of which the first plane comes most often; no surrogates."""
    low, high = generator.choice(((32, 0x250), (0x250, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000)))
    return chr(generator.randrange(low, high))
