"""One turn of a session: what is asked of the model, and what was said in the end.

    said     T, the token ids so far, as they were sent and generated
    D        the bytes that T stands for, special tokens written out
    prompt   T + encode(rest)          where the rendered messages are D + rest
             encode(rendered)          where they are not: the fallback, which is told

Text that is rendered and tokenised again does not become the tokens that were generated, so T is never
tokenised again: its blocks are found by their names, all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from octavo.engine.outputs import Delta
from octavo.engine.requests import encode_rendered
from octavo.text.control import Rendered
from octavo.text.tokenizer import Tokenizer
from octavo.types import FinishReason


@dataclass(frozen=True, slots=True)
class Composed:
    """A turn's prompt. `reused` tokens of it were not tokenised again; `fallback` says why there are none."""

    tokens: tuple[int, ...]
    reused: int
    fallback: str = ""


def compose(tokenizer: Tokenizer, said: Sequence[int], rendered: Rendered) -> Composed:
    """The prompt of the next turn, whose chat is `rendered`. Raises InvalidRequest as encoding does.
    O(tokens)."""
    if not said or not _is_unicode(rendered.text):  # what is none is refused there
        return Composed(tuple(encode_rendered(tokenizer, rendered)), 0)
    beginning = b"".join(map(tokenizer.token_bytes, said))
    reason = _difference(tokenizer, said, beginning, rendered)
    if not reason:
        rest = rendered.after(len(beginning))
        more = [] if rest is None else encode_rendered(tokenizer, rest)
        if rest is None:
            reason = "what was said ends inside a character, or inside a control token"
        elif b"".join(map(tokenizer.token_bytes, more)) == rest.text.encode():
            return Composed((*said, *more), len(said))
        reason = reason or "this tokenizer cannot go on in the middle of a text"
    return Composed(tuple(encode_rendered(tokenizer, rendered)), 0, reason)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _difference(tokenizer: Tokenizer, said: Sequence[int], beginning: bytes, rendered: Rendered) -> str:
    """Why the messages do not go on with what was said, whose bytes are `beginning`; "" if they do."""
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
    """The control tokens in what was said, each with the byte where it begins."""
    found, place = [], 0
    for token in said:
        data = tokenizer.token_bytes(token)
        if token in tokenizer.control_ids:
            found.append((place, data.decode()))
        place += len(data)
    return found


@dataclass(slots=True)
class TurnRecorder:
    """Follows the deltas of a turn on their way to the client. When it ends well, `say` gets all tokens that
    were said (the prompt, and of the output those whose text the client got), and how many of their leading
    blocks all tenants share. Where a stop string ended it, `stop` is called before, because the engine will
    see a request that was cancelled. However it ends, `end` is called last."""

    prompt: tuple[int, ...]
    token_bytes: Callable[[int], bytes]
    say: Callable[[list[int], int], None]
    end: Callable[[], None] = lambda: None
    stop: Callable[[int], None] = lambda num_tokens: None
    taken: Future[int] | None = None  # done before the first delta: the number of shared blocks
    _tokens: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        """The next delta, before it is read."""
        self._tokens += [info.token for info in delta.tokens]
        self._text.append(delta.text)
        if delta.finish is None:
            return
        if delta.finish in (FinishReason.STOP, FinishReason.LENGTH):  # else nothing has changed
            said = [*self.prompt, *self._told()]
            if isinstance(delta.stop, str):
                self.stop(len(said))
            self.say(said, 0 if self.taken is None else self.taken.result())
        self.end()

    def _told(self) -> list[int]:
        """The tokens whose bytes begin the text that was told: no end token, and nothing of a stop string."""
        text, place = "".join(self._text).encode(), 0
        for count, token in enumerate(self._tokens):
            data = self.token_bytes(token)
            if not data or not text.startswith(data, place):
                return self._tokens[:count]
            place += len(data)
        return self._tokens
