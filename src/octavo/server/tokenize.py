"""POST /tokenize and /detokenize, GET /tokenizer_info: the model's tokenizer for clients without one, in
vLLM's formats (lm-eval's `RemoteTokenizer` expects these).

A text that is too long for the context is refused before it is encoded, as prompts are. Answers may still
have millions of tokens, so they are written in pieces, and other streams run in between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequest
from octavo.server.body import read_json, validate
from octavo.server.errors import JsonObject, json_response
from octavo.server.generation import Edge
from octavo.server.logprobs import token_text
from octavo.server.openai_schema import DetokenizeBody, ModelBounds, TokenizeBody, check_options
from octavo.server.prompts import chat_messages, chat_options, token_ids
from octavo.server.tenant import tenant_of

_PIECE = 4096  # tokens: some milliseconds


async def tokenize(edge: Edge, request: Request) -> Response:
    """POST /tokenize: the tokens of a prompt, with the model's begin token, if any, or of a chat."""
    body = validate(TokenizeBody, await read_json(edge, request))
    edge.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("allowed: exactly one of prompt and messages", param="prompt")
    tokens = await (_of_chat if body.prompt is None else _of_prompt)(edge, request, body)
    ids, strings = await json_array(tokens, int), "null"
    if body.return_token_strs:
        strings = await json_array(tokens, lambda token: token_text(edge.model.token_bytes(token)))
    text = (
        f'{{"count":{len(tokens)},"max_model_len":{edge.model.context_length},"tokens":{ids},'
        f'"token_strs":{strings}}}'
    )
    return Response(text.encode(), media_type="application/json")


def check_tokenize(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `tokenize` would raise for the body alone."""
    body = validate(TokenizeBody, raw)
    if body.messages is not None:
        chat_messages(body.messages, model.context_length)
    check_options(body)


def check_detokenize(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `detokenize` would raise for the body alone."""
    _token_ids(validate(DetokenizeBody, raw), model)


async def detokenize(edge: Edge, request: Request) -> Response:
    """POST /detokenize: the text of tokens, including special ones; incomplete characters become U+FFFD."""
    body = validate(DetokenizeBody, await read_json(edge, request))
    edge.check_model(body.model)
    tokens = _token_ids(body, edge.model)
    data = bytearray()
    for start in range(0, len(tokens), _PIECE):
        data += b"".join(map(edge.model.token_bytes, tokens[start : start + _PIECE]))
        await asyncio.sleep(0)
    return json_response({"prompt": data.decode(errors="replace")})


async def tokenizer_info(edge: Edge, request: Request) -> Response:
    """GET /tokenizer_info: the fields of a tokenizer_config.json."""
    return json_response(edge.model.tokenizer_info())


def _token_ids(body: DetokenizeBody, model: ModelBounds) -> tuple[int, ...]:
    if not isinstance(body.tokens, list):
        raise InvalidRequest("tokens is missing or no list; allowed: a list of token ids", param="tokens")
    return token_ids(body.tokens, "tokens", model)


async def _of_prompt(edge: Edge, request: Request, body: TokenizeBody) -> list[int]:
    return await edge.model.encode(
        body.prompt or "", tenant=tenant_of(request), add_special_tokens=body.add_special_tokens is not False
    )


async def _of_chat(edge: Edge, request: Request, body: TokenizeBody) -> list[int]:
    if body.add_special_tokens:
        raise InvalidRequest(
            "add_special_tokens is true; allowed with messages: false (the template writes its own)",
            param="add_special_tokens",
        )
    messages = chat_messages(body.messages, edge.model.context_length)
    return await edge.model.encode_chat(messages, chat_options(request, body), tenant=tenant_of(request))


async def json_array(tokens: Sequence[int], spell: Callable[[int], object]) -> str:
    """The tokens as a JSON array, each converted by `spell`."""
    pieces = []
    for start in range(0, len(tokens), _PIECE):
        piece = [spell(token) for token in tokens[start : start + _PIECE]]
        pieces.append(json.dumps(piece, ensure_ascii=False, separators=(",", ":"))[1:-1])
        await asyncio.sleep(0)
    return f"[{','.join(pieces)}]"
