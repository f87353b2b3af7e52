"""Encodes a chat whose control tokens are known by position, with a tokenizer that has no others.

    "", "<|im_start|>", "user\\na<|im_end|>b", "<|im_end|>", "\\n"
    "<5fe3..000001>user\\na<|im_end|>b<5fe3..000002>\\n"        each at its place, under a secret name
    [1, ..., ..., 2, ...]                                    one call, then the names' ids are mapped back

It shares the model, the normalizer and the pre-tokenizer of the ordinary tokenizer, so it costs almost
nothing. One call encodes all parts, so that rules for the beginning of a text apply only there, as with the
ordinary tokenizer.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import AddedToken

from octavo.errors import InvalidRequest
from octavo.text.encoding import encode_text


class AliasEncoder:
    """`controls` are the control tokens with their texts; other added tokens are unchanged. Immutable: any
    thread may use it."""

    def __init__(self, backend: tokenizers.Tokenizer, controls: Mapping[int, str]) -> None:
        secret = secrets.token_hex(16)
        self._backend = tokenizers.Tokenizer(backend.model)
        if backend.normalizer is not None:
            self._backend.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._backend.pre_tokenizer = backend.pre_tokenizer
        added = backend.get_added_tokens_decoder()
        # The first and the last character stay: they decide whether a token is between words.
        self._aliases = {text: f"{text[0]}{secret}{i:06x}{text[-1]}" for i, text in controls.items()}
        names = {
            i: self._aliases[token.content] if i in controls else token.content for i, token in added.items()
        }
        self._backend.add_tokens([_renamed(token, names[i]) for i, token in added.items()])
        own = {i: self._backend.token_to_id(name) for i, name in names.items()}
        self._original = {mine: i for i, mine in own.items() if mine is not None and mine != i}
        # The unknown token replaces text without a spelling, so it is no control token.
        unknown = getattr(backend.model, "unk_token", None)
        self._unknown = None if unknown is None else backend.token_to_id(unknown)
        self._ids = {text: i for i, text in controls.items()}

    def encode(self, parts: Sequence[str]) -> list[int]:
        """The ids of text, control token, text, ... Raises InvalidRequest if the model's own pieces turn text
        into a control token, and for text that is not Unicode."""
        text = "".join(self._aliases[part] if index % 2 else part for index, part in enumerate(parts))
        original = self._original
        encoded = [original.get(token, token) for token in encode_text(self._backend, text)]
        wanted = [self._ids[part] for part in parts[1::2]]
        controls = frozenset(self._ids.values())
        found = [token for token in encoded if token in controls]
        if self._unknown is not None and self._unknown not in wanted:
            found = [token for token in found if token != self._unknown]
        if found != wanted:
            raise InvalidRequest(
                "the messages have text that this model's vocabulary turns into control tokens, which cannot "
                "be distinguished; leave it out, or give allow_control_tokens",
                param="messages",
            )
        return encoded


def _renamed(token: AddedToken, name: str) -> AddedToken:
    """A token under another name, and not special."""
    return AddedToken(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
