"""A tokenizer with a chat template, for the tiny model."""

from __future__ import annotations

from tests.engine.served import LetterTokenizer

from octavo.errors import InvalidRequest
from octavo.text.control import RenderedText
from octavo.tools.thinking import THINK, ThinkingFormat
from octavo.types import ChatMessage, ChatOptions


class Template:
    """Renders a chat as its contents; refuses an empty one."""

    thinks = False
    source = "the contents"

    @property
    def thinking_format(self) -> ThinkingFormat | None:
        """As most models mark it, where it thinks."""
        return THINK if self.thinks else None

    def __init__(self) -> None:
        self.seen: list[ChatOptions] = []

    def render(self, messages: list[ChatMessage], options: ChatOptions) -> RenderedText:
        self.seen.append(options)
        if not messages:
            raise InvalidRequest("an empty chat", param="messages")
        return RenderedText("".join(message.content for message in messages))


class TalkingTokenizer(LetterTokenizer):
    """With a chat template."""

    def __init__(self) -> None:
        self.chat_template = Template()  # type: ignore[assignment]
