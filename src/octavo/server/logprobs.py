"""Tokens as clients get them: log-probabilities in three shapes (chat, completions, and vLLM's
prompt_logprobs), or their ids alone.

JSON has no infinity: a logprob of -inf is sent as -9999, as OpenAI does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.engine.outputs import TokenInfo
from octavo.server.errors import JsonObject

_LOGPROB_MIN = -9999.0


def token_text(data: bytes) -> str:
    """A token as text; incomplete characters are written as bytes, so that no two tokens look alike."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokens: Iterable[TokenInfo]) -> JsonObject:
    """The `logprobs` of a chat choice or chunk."""
    content = [
        _chat_entry(info.data, info.logprob)
        | {"top_logprobs": [_chat_entry(data, logprob) for _, data, logprob in info.top]}
        for info in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenInfo], offset: int) -> JsonObject:
    """The `logprobs` of a completion choice or chunk whose first token begins at character `offset` of the
    text.

    The sampled token is always in `top_logprobs`, which may therefore have one more than requested.
    """
    offsets: list[int] = []
    tops: list[dict[str, float] | None] = []
    for info in tokens:
        offsets.append(offset)
        offset += characters_begun(info.data)
        if info.logprob is None:
            tops.append(None)
        else:
            top = {token_text(data): _finite(logprob) for _, data, logprob in info.top}
            tops.append(top | {token_text(info.data): _finite(info.logprob)})
    return {
        "tokens": [token_text(info.data) for info in tokens],
        "token_logprobs": [None if info.logprob is None else _finite(info.logprob) for info in tokens],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def prompt_logprobs(tokens: Iterable[TokenInfo]) -> list[JsonObject | None]:
    """vLLM's shape: per prompt token, token id -> logprob, rank (if known), text; null for the first."""
    return [None if info.logprob is None else _prompt_entry(info, info.logprob) for info in tokens]


def ids_of(tokens: Iterable[TokenInfo]) -> list[int]:
    """The token ids alone."""
    return [info.token for info in tokens]


def characters_begun(data: bytes) -> int:
    """How many characters begin in these bytes of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


def _chat_entry(data: bytes, logprob: float | None) -> JsonObject:
    value = None if logprob is None else _finite(logprob)
    return {"token": token_text(data), "logprob": value, "bytes": list(data)}


def _prompt_entry(info: TokenInfo, own_logprob: float) -> JsonObject:
    entry: JsonObject = {str(info.token): _ranked(own_logprob, None, info.data)}
    for rank, (token, data, logprob) in enumerate(info.top, start=1):
        entry[str(token)] = _ranked(logprob, rank, data)
    return entry


def _ranked(logprob: float, rank: int | None, data: bytes) -> JsonObject:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": token_text(data)}


def _finite(logprob: float) -> float:
    return max(logprob, _LOGPROB_MIN)
