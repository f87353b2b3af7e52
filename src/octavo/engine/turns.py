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
from dataclasses import dataclass, field

from octavo.engine.outputs import Delta
from octavo.engine.requests import render_chat
from octavo.text.tokenizer import Tokenizer
from octavo.types import ChatMessage, FinishReason


@dataclass(frozen=True, slots=True)
class Composed:
    """A turn's prompt. `reused` tokens of it were not tokenised again; `fallback` says why there are none."""

    tokens: tuple[int, ...]
    reused: int
    fallback: str = ""


def compose(
    tokenizer: Tokenizer,
    said: Sequence[int],
    messages: Sequence[ChatMessage],
    check_length: Callable[[str], None] = lambda text: None,
) -> Composed:
    """The prompt of the next turn. Raises InvalidRequest as rendering does, and what `check_length` raises.
    O(tokens)."""
    text = render_chat(tokenizer, messages)
    check_length(text)
    if not said:
        return Composed(tuple(tokenizer.encode(text, add_bos=False)), 0)
    rendered = text.encode()
    beginning = b"".join(map(tokenizer.token_bytes, said))
    reason = ""
    if not rendered.startswith(beginning):
        same = next(
            (i for i, (a, b) in enumerate(zip(rendered, beginning, strict=False)) if a != b), len(rendered)
        )
        reason = (
            f"the messages do not extend what was said: they differ after {same:,} of {len(beginning):,} "
            "bytes"
        )
    elif len(rendered) == len(beginning):
        reason = "the messages add nothing to what was said"
    else:
        rest = rendered[len(beginning) :]
        try:
            more = tokenizer.encode(rest.decode(), add_bos=False)
        except UnicodeDecodeError:
            more, reason = [], "what was said ends inside a character"
        if more and b"".join(map(tokenizer.token_bytes, more)) == rest:
            return Composed((*said, *more), len(said))
        reason = reason or "this tokenizer cannot go on in the middle of a text"
    return Composed(tuple(tokenizer.encode(text, add_bos=False)), 0, reason)


@dataclass(slots=True)
class TurnRecorder:
    """Follows the deltas of a turn on their way to the client. When it ends well, `say` gets all tokens that
    were said: the prompt, and of the output those whose text the client was told. Where a stop string ended
    it, `stop` is told before, because the engine will see a request that was cancelled. However it ends,
    `end` is told last."""

    prompt: tuple[int, ...]
    token_bytes: Callable[[int], bytes]
    say: Callable[[list[int]], None]
    stop: Callable[[int], None] = lambda num_told: None
    end: Callable[[], None] = lambda: None
    _tokens: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)

    def take(self, delta: Delta) -> None:
        """The next delta, before anybody reads it."""
        self._tokens += [info.token for info in delta.tokens]
        self._text.append(delta.text)
        if delta.finish is None:
            return
        if delta.finish in (FinishReason.STOP, FinishReason.LENGTH):  # else nothing has changed
            said = [*self.prompt, *self._told()]
            if isinstance(delta.stop, str):
                self.stop(len(said))
            self.say(said)
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
