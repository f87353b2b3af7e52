"""One turn of a conversation: its stream for the client, and its tokens at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.engine.outputs import Delta
from octavo.engine.stream import DeltaStream
from octavo.types import FinishReason


@dataclass(frozen=True, slots=True)
class Turn:
    """An accepted turn."""

    session_id: str
    prompt: tuple[int, ...]
    reused_tokens: int  # of the prompt: not tokenised again
    fallback: str  # why no tokens were reused, though there were earlier turns
    stream: DeltaStream

    def to_json(self) -> dict[str, object]:
        """The answer's field about its session."""
        shown: dict[str, object] = {"id": self.session_id, "reused_tokens": self.reused_tokens}
        return shown | ({"fallback": self.fallback} if self.fallback else {})


@dataclass(slots=True)
class TurnRecorder:
    """Follows the deltas of a turn to the client. If it ends well, `say` gets all tokens (the prompt, and the
    output tokens whose text the client received), and the number of leading blocks that all tenants share. If
    a stop string ended it, `stop` first gets the request's id and the number of these tokens, because the
    engine will see a cancelled request. `end` is always called last."""

    prompt: tuple[int, ...]
    token_bytes: Callable[[int], bytes]
    say: Callable[[list[int], int], None]
    stop: Callable[[int, int], None]
    end: Callable[[], None]
    _tokens: list[int] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)

    def take(self, stream: DeltaStream, delta: Delta) -> None:
        """The next delta, before the client reads it."""
        self._tokens += [info.token for info in delta.tokens]
        self._text.append(delta.text)
        if delta.finish is None:
            return
        if delta.finish in (FinishReason.STOP, FinishReason.LENGTH):  # else the conversation does not change
            said = [*self.prompt, *self._tokens_of_text()]
            if isinstance(delta.stop, str):
                self.stop(stream.request_id, len(said))
            self.say(said, stream.num_shared)
        self.end()

    def _tokens_of_text(self) -> list[int]:
        """The tokens whose bytes begin the client's text: no end token, and nothing of a stop string.
        string."""
        text, place = "".join(self._text).encode(), 0
        for count, token in enumerate(self._tokens):
            data = self.token_bytes(token)
            if not data or not text.startswith(data, place):
                return self._tokens[:count]
            place += len(data)
        return self._tokens
