"""The model's tokenizer for programs: the part of transformers' interface that prompts need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from octavo.api.prompts import chat_options, listed_chats, read_chat
from octavo.errors import InvalidRequest, as_tokens, shown
from octavo.params import TOKENS_MAX
from octavo.text.tokenizer import Tokenizer


class TokenizerView:
    """The result of `LLM.get_tokenizer`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: dict[str, int] = {}  # made on first use

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids, with the begin token if the model has one. Raises InvalidRequest."""
        if not isinstance(text, str):
            raise InvalidRequest(f"text is {shown(text)}; allowed: a string", param="text")
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids. Raises InvalidRequest."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        tokens = as_tokens("token_ids", ids, TOKENS_MAX, of="number of token_ids")
        return self._tokenizer.decode(tokens, skip_special_tokens)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> str | list[int]:
        """One chat rendered by the model's own template: token ids, or text. Raises InvalidRequest."""
        options = chat_options(add_generation_prompt, continue_final_message, chat_template_kwargs, tools)
        chats = listed_chats(conversation)
        if len(chats) != 1:
            raise InvalidRequest(
                f"conversation is {len(chats)} chats; allowed: one, a list of messages", param="conversation"
            )
        read = read_chat(chats[0], options, self._tokenizer)
        return list(read.tokens) if tokenize else read.text or ""

    def get_vocab(self) -> dict[str, int]:
        """Tokens as the files spell them, and their ids."""
        if not self._vocabulary:
            self._vocabulary = self._tokenizer.vocabulary()
        return self._vocabulary

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of a token as the files spell it; None if there is none."""
        return self.get_vocab().get(token)

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self._tokenizer.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text."""
        return self._tokenizer.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text."""
        return self._tokenizer.eos_id

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text, as text."""
        return self._text_of(self._tokenizer.bos_id)

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text, as text."""
        return self._text_of(self._tokenizer.eos_id)

    @property
    def all_special_ids(self) -> list[int]:
        """Tokens without text in an answer."""
        return sorted(self._tokenizer.special_ids)

    @property
    def chat_template(self) -> str | None:
        """The template's source."""
        template = self._tokenizer.chat_template
        return None if template is None else template.source

    def _text_of(self, token: int | None) -> str | None:
        return None if token is None else self._tokenizer.token_bytes(token).decode("utf-8", "replace")
