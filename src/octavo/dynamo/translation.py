"""Translates Dynamo's requests for the engine, and the engine's deltas for Dynamo. It imports no Dynamo.

Unsupported fields are refused by name. Fields that the frontend handles, such as detokenization, are ignored.
The frontend also finds stop strings, but the engine handles them too: it then stops at once and reports the
exact usage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from octavo.engine.outputs import Delta, TokenInfo
from octavo.errors import InvalidRequest, RequestFailed, require_range, shown
from octavo.grammar import Grammar, GrammarKind, of_choices, of_schema, of_text
from octavo.params import PRIORITY_MAX, SamplerParams
from octavo.tools.thinking import ThinkingFormat
from octavo.types import FinishReason, Request

Fields = Mapping[str, object]
Chunk = dict[str, object]

# The fields of `SamplerParams`, by Dynamo's names.
_SAMPLED = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "allowed_token_ids")},
    **{name: name for name in ("max_tokens", "min_tokens", "stop", "ignore_eos")},
    **{name: name for name in ("logprobs", "prompt_logprobs", "skip_special_tokens")},
    "include_stop_str_in_output": "include_stop",
    "bad_words_token_ids": "banned_sequences",
}
_STOP_TOKENS = ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden")
_READ = {*_SAMPLED, *_STOP_TOKENS, "guided_decoding", "max_thinking_tokens"}
_OF_FRONTEND = {"formatted_prompt", "return_tokens_as_token_ids", "detokenize"}
# Values that equal the engine's behaviour.
_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
}
_INSTEAD = {
    "n": "1: the frontend reads one output per request; send several requests",
    "best_of": "1",
    "use_beam_search": "false, or Octavo's own server",
    "whitespace_pattern": "none: JSON has a space behind commas and colons, and no other",
    "structural_tag": "a grammar",
    "lora_name": "none: there are no adapters",
}
_GROUPS = ("sampling_options", "stop_conditions", "output_options")
# Features of other workers: separate prefill, images and sounds, embeddings as prompts.
_NOT_BUILT = (
    *("prefill_result", "bootstrap_info", "multi_modal_data", "mm_processor_kwargs"),
    *("encoder_result", "prompt_embeds", "batch_token_ids"),
)
_GUIDED_BACKEND = "backend"  # the grammar library: Octavo has one
_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "cancelled",
}


def request_of(given: Fields, thinking: ThinkingFormat | None, context_length: int) -> Request:
    """The engine's request. `thinking`: the model's format of thinking. Raises InvalidRequest."""
    for name in _NOT_BUILT:
        if given.get(name):
            raise _refusal(name, "given")
    routing, extra = _group(given, "routing"), _group(given, "extra_args")
    if routing.get("lora_name"):
        raise _refusal("lora_name", routing["lora_name"])
    fields = {name: value for group in _GROUPS for name, value in _group(given, group).items()}
    fields |= _group(extra, "sampling_options")
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, value in fields.items():
        if name not in _READ | _OF_FRONTEND and value not in _HARMLESS.get(name, ()):
            raise _refusal(name, value)
    prompt = tuple(cast(Sequence[int], given.get("token_ids") or ()))
    params = {ours: _exact(fields[name]) for name, ours in _SAMPLED.items() if name in fields}
    room = context_length - len(prompt)
    if isinstance(most := params.get("max_tokens"), int) and 1 <= room < most:
        del params["max_tokens"]  # as in vLLM: to the end of the context
    stops = [token for name in _STOP_TOKENS for token in cast(Sequence[int], fields.get(name, ()))]
    params["stop_token_ids"] = tuple(dict.fromkeys(stops))
    params["grammar"] = _grammar(_group(fields, "guided_decoding"))
    if thinking is not None and "max_thinking_tokens" in fields:
        params["thinking"] = thinking.leading(cast(int, fields["max_thinking_tokens"]))
    salt = routing.get("cache_salt") or _group(extra, "nvext").get("cache_salt") or ""
    rank = cast(int, routing.get("priority") or 0)
    require_range("priority", rank, -PRIORITY_MAX, PRIORITY_MAX, whole=True)
    return Request(
        prompt=prompt,
        params=SamplerParams(**params),  # type: ignore[arg-type]  # it checks them
        priority=rank,
        cache_salt=cast(str, salt),
    )


def chunk_of(delta: Delta, params: SamplerParams, of_prompt: Sequence[TokenInfo]) -> Chunk:
    """A delta as a chunk for the frontend. `of_prompt`: with prompt logprobs, the prompt's tokens so far,
    from the second on; the last chunk has them. Raises InvalidRequest or RequestFailed for a delta of a
    failure."""
    if delta.finish is FinishReason.DEAD_END:
        raise InvalidRequest(delta.error)
    if delta.finish is not None and delta.finish not in _FINISH:
        raise RequestFailed(delta.error or f"the request ended with {delta.finish}")
    chunk: Chunk = {"token_ids": [info.token for info in delta.tokens], "index": 0}
    if params.logprobs is not None and delta.tokens:
        chunk["log_probs"] = [info.logprob for info in delta.tokens]
        if params.logprobs:
            chunk["top_logprobs"] = [list(_tops(info)) for info in delta.tokens]
    if delta.finish is not None:
        if params.prompt_logprobs is not None:  # the first token has no prediction
            chunk["engine_data"] = {"prompt_logprobs": [None, *map(_predicted, of_prompt)]}
        usage = delta.usage
        chunk["finish_reason"] = _FINISH[delta.finish]
        chunk["completion_usage"] = {
            "prompt_tokens": usage.num_prompt,
            "completion_tokens": usage.num_output,
            "total_tokens": usage.num_prompt + usage.num_output,
            "prompt_tokens_details": {"cached_tokens": usage.num_cached},
        }
    return chunk


def _tops(info: TokenInfo) -> Iterator[Fields]:
    """The likeliest tokens by rank, without texts, which the frontend adds."""
    for rank, (token, _, logprob) in enumerate(info.top, 1):
        yield {"rank": rank, "token_id": token, "token": None, "logprob": logprob}


def _predicted(info: TokenInfo) -> Fields:
    """Logprobs of a prompt's token and of the likeliest ones, by the token's id as text."""
    return {
        str(token): {"logprob": logprob, "decoded_token": data.decode(errors="replace")}
        for token, data, logprob in ((info.token, info.data, info.logprob), *info.top)
    }


def _grammar(guided: Fields) -> Grammar | None:
    """The grammar of an output, from the one field that is set. Raises InvalidRequest."""
    found = {name: value for name, value in guided.items() if value is not None and name != _GUIDED_BACKEND}
    if not found:
        return None
    if len(found) > 1:
        raise InvalidRequest(
            f"guided_decoding has {' and '.join(found)}; allowed: one", param="guided_decoding"
        )
    ((name, value),) = found.items()
    param = f"guided_{name}"
    match name:
        case "json":
            return of_schema(value, param)
        case "choice":
            return of_choices(value, param)
        case "regex":
            return of_text(GrammarKind.REGEX, value, param)
        case "grammar":
            is_gbnf = isinstance(value, str) and "::=" in value
            return of_text(GrammarKind.GBNF if is_gbnf else GrammarKind.LARK, value, param)
    raise _refusal(name, value)


def _group(given: Fields, name: str) -> Fields:
    """An object of the request; empty if it is missing."""
    group = given.get(name) or {}
    if not isinstance(group, Mapping):
        raise InvalidRequest(f"{name} is {shown(group)}; allowed: an object", param=name)
    return group


def _exact(value: object) -> object:
    """A number as the client wrote it: the frontend rounds floats to 32 bits."""
    return float(str(np.float32(value))) if isinstance(value, float) and math.isfinite(value) else value


def _refusal(name: str, value: object) -> InvalidRequest:
    instead = _INSTEAD.get(name, "leave it out")
    return InvalidRequest(
        f"{name} is {shown(value)}, which Octavo does not support; allowed: {instead}", param=name
    )
