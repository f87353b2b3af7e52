"""`truncation: auto`: the oldest messages are left out until the rest, and its answer, fit the context.

system  user  assistant  user  assistant  tool  user        what was said
system                   user  assistant  tool  user        kept: it begins with a message of the user
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.outputs import ChatMessage
from octavo.errors import RequestTooLarge
from octavo.serving.client import EngineClient
from octavo.types import ChatOptions

_SHARE_OF_AN_ANSWER = 8  # of the context, one eighth, where the client does not say how long it may be


async def fitting(
    model: EngineClient,
    messages: Sequence[ChatMessage],
    options: ChatOptions,
    max_output_tokens: int | None,
    tenant: str,
) -> Sequence[ChatMessage]:
    """The messages, or as many of the newest as fit; system messages stay. Where not even the last ones fit,
    those, which will be refused. O(log messages) renderings."""
    wanted = max_output_tokens or 0
    if not 0 < wanted < model.context_length:  # none is given, or it is no more than a bound
        wanted = model.context_length // _SHARE_OF_AN_ANSWER
    limit = model.context_length - max(1, wanted)

    async def fits(kept: Sequence[ChatMessage]) -> bool:
        try:
            return len(await model.encode_chat(kept, options, tenant=tenant)) <= limit
        except RequestTooLarge:
            return False

    cuts = [place for place, message in enumerate(messages) if message.role == "user" and place > 0]
    if not cuts or await fits(messages):
        return messages
    low, high = 0, len(cuts) - 1  # the first cut that fits is in [low, high], or none does
    while low < high:
        middle = (low + high) // 2
        if await fits(_cut(messages, cuts[middle])):
            high = middle
        else:
            low = middle + 1
    return _cut(messages, cuts[low])


def _cut(messages: Sequence[ChatMessage], place: int) -> list[ChatMessage]:
    return [one for index, one in enumerate(messages) if index >= place or one.role == "system"]
