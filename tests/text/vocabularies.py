"""Small vocabularies of the known kinds, trained on a few lines, and texts to try them with."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from octavo.text.pre_tokenizers import LLAMA3, QWEN2

CORPUS = [
    "The quick brown fox jumps over the lazy dog; it's 12345 o'clock, they'll say, isn't it?",
    "Paging the cache: every block holds sixteen tokens, and a table says where each block is.",
    "  def step(self, now):\n        return [x**2 for x in range(1000)]  # 3.14\r\n\t\tdone",
    "L'été, déjà vu, naïve façade; Straße, Ärger; 世界和平, こんにちは, привет мир 🙂👍🏽 ½ ٣",
] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def random_texts(count=200, seed=5):
    """Unicode from everywhere, without surrogates, and words of the corpus in odd company."""
    generator = random.Random(seed)
    words = " ".join(CORPUS[:4]).split(" ")
    for _ in range(count):
        parts = [
            generator.choice(
                [
                    generator.choice(words),
                    " " * generator.randrange(4),
                    "\n" * generator.randrange(3),
                    str(generator.randrange(10**6)),
                    chr(
                        generator.choice(
                            [*range(32, 0x600), *range(0x4E00, 0x4E80), *range(0x1F600, 0x1F640)]
                        )
                    ),
                    generator.choice(SPECIAL),
                ]
            )
            for _ in range(generator.randrange(1, 12))
        ]
        yield "".join(parts)


def byte_level_reference(pre, normalizer=None, ignore_merges=False):
    """A BPE tokenizer trained on the corpus, as a tokenizer.json would describe it."""
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def gguf_metadata(backend, pre, **more):
    """The same vocabulary as a GGUF file would hold it."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tuple(token.encode() for token in tokens),
        "tokenizer.ggml.merges": tuple(merge.encode() for merge in merges),
        "tokenizer.ggml.token_type": np.array([3 if token in SPECIAL else 1 for token in tokens], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
    } | more


def digits_then_words():
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def split_by(pattern):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


REFERENCES = {
    "smollm": lambda: byte_level_reference(digits_then_words()),
    "gpt-2": lambda: byte_level_reference(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama-bpe": lambda: byte_level_reference(split_by(LLAMA3), ignore_merges=True),
    "qwen2": lambda: byte_level_reference(split_by(QWEN2), normalizers.NFC()),
}


def sentencepiece_vocabulary(prefix):
    """SentencePiece's own tokenizer, and its vocabulary as a GGUF file would hold it; with `prefix` a space
    is put in front of every text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=480,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(theirs.vocab_size())
    types = [
        2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i) else 1
        for i in ids
    ]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tuple(theirs.id_to_piece(i).encode() for i in ids),
        "tokenizer.ggml.scores": np.array([theirs.get_score(i) for i in ids], np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.bos_token_id": theirs.bos_id(),
        "tokenizer.ggml.eos_token_id": theirs.eos_id(),
        "tokenizer.ggml.unknown_token_id": theirs.unk_id(),
    }
    return theirs, metadata
