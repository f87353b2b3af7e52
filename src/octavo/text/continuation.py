"""The tokens of a rendered chat, and of a conversation's next turn without tokenising the earlier ones again.

    T        the tokens of the conversation so far: sent and generated
    D        the bytes of T, special tokens written out
    prompt   T + encode(rest)          where the rendered messages are D + rest
             encode(rendered)          otherwise: the fallback, with its reason

Rendering and tokenising the text again may not give the generated tokens, so T is never tokenised again: all
its blocks are found by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.text.control import RenderedText
from octavo.text.tokenizer import Tokenizer


def encode_rendered(tokenizer: Tokenizer, rendered: RenderedText) -> list[int]:
    """The token ids of a rendered chat; the template writes its own begin token."""
    if rendered.parts is not None:
        return tokenizer.encode_parts(rendered.parts)
    return tokenizer.encode(rendered.text, add_bos=False)


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """A turn's prompt. `reused` of its tokens were not tokenised again; `fallback`: why there are none."""

    tokens: tuple[int, ...]
    reused: int
    fallback: str = ""


def compose(tokenizer: Tokenizer, said: Sequence[int], rendered: RenderedText) -> TurnPrompt:
    """The prompt of the next turn, whose chat is `rendered`. Raises InvalidRequest as encoding does.
    O(tokens)."""
    if not said or not _is_unicode(rendered.text):  # encoding refuses other text
        return TurnPrompt(tuple(encode_rendered(tokenizer, rendered)), 0)
    beginning = b"".join(map(tokenizer.token_bytes, said))
    reason = _difference(tokenizer, said, beginning, rendered)
    if not reason:
        rest = rendered.after(len(beginning))
        more = [] if rest is None else encode_rendered(tokenizer, rest)
        if rest is None:
            reason = "what was said ends inside a character, or inside a control token"
        elif b"".join(map(tokenizer.token_bytes, more)) == rest.text.encode():
            return TurnPrompt((*said, *more), len(said))
        reason = reason or "this tokenizer cannot go on in the middle of a text"
    return TurnPrompt(tuple(encode_rendered(tokenizer, rendered)), 0, reason)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _difference(tokenizer: Tokenizer, said: Sequence[int], beginning: bytes, rendered: RenderedText) -> str:
    """Why the messages do not continue the conversation, whose bytes are `beginning`; "" if they do."""
    data = rendered.text.encode()
    if not data.startswith(beginning):
        same = next((i for i, (a, b) in enumerate(zip(data, beginning, strict=False)) if a != b), len(data))
        place = f"{same:,} of {len(beginning):,} bytes"
        return f"the messages do not extend what was said: they differ after {place}"
    if len(data) == len(beginning):
        return "the messages add nothing to what was said"
    if rendered.parts is not None and rendered.controls(len(beginning)) != _controls(tokenizer, said):
        return "the messages have control tokens elsewhere than what was said"
    return ""


def _controls(tokenizer: Tokenizer, said: Sequence[int]) -> list[tuple[int, str]]:
    """The control tokens of the conversation, each with the byte where it begins."""
    found, place = [], 0
    for token in said:
        data = tokenizer.token_bytes(token)
        if token in tokenizer.control_ids:
            found.append((place, data.decode()))
        place += len(data)
    return found
