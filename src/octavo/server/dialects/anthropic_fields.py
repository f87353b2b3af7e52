"""Every field of a request that clients of Anthropic's API may send, and what becomes of it: the one list,
in the words of `request_fields`. `docs/anthropic.md` is printed from it, and requests are refused by it.

What a value must look like is in the other files of this dialect. Source: anthropic-sdk-python's
`types/message_create_params.py`, `types/beta/message_create_params.py`, and the blocks and tools they name.

    python -m octavo.server.dialects.anthropic_fields > docs/anthropic.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from octavo.server.field_list import Field, FieldList, FieldsAt, Place

_PLACES: Final[Mapping[Place, str]] = {
    Place.MESSAGES: "/v1/messages",
    Place.COUNT_TOKENS: "/v1/messages/count_tokens",
    Place.BLOCK: "a block",
    Place.TOOL: "`tools[]`",
    Place.OUTPUT_CONFIG: "`output_config`",
}
_ANSWER, _BOTH = (Place.MESSAGES,), (Place.MESSAGES, Place.COUNT_TOKENS)
_BLOCK, _TOOL, _OUTPUT = (Place.BLOCK,), (Place.TOOL,), (Place.OUTPUT_CONFIG,)

_REUSED = "equal prefixes are always reused"
_BY_KEY = "a tenant is known by its key"

_HEAD: Final = """# Anthropic's API

```console
$ ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_API_KEY=none python -c '
import anthropic
print(anthropic.Anthropic().messages.create(model="smollm2-135m", max_tokens=50,
    messages=[{"role": "user", "content": "Who was Aldus Manutius?"}]).content[0].text)'
```

`/v1/messages` and `/v1/messages/count_tokens` are translated into what `/v1/chat/completions` does, and
`/v1/models` has the fields that Anthropic's clients look for. A key goes into `x-api-key` or
`Authorization`. The headers `anthropic-version` and `anthropic-beta` may have any value. Errors have that
API's shape, also on routes below `/v1/messages` that do not exist.

- **Messages** of one role that follow each other are one turn, with an empty line between them; text
  blocks of one message follow each other as they are. A user message with results of tools becomes a
  message for each result, and a user message of its text. A last message of the assistant is begun, and
  the answer goes on with it.
- **Thinking** is told where `thinking` asks for it, as it is. Elsewhere the chat template is told
  `enable_thinking` false, and what a model thinks all the same is left out. Thinking of earlier turns is
  given to the template; signatures are not looked at, and always `unsigned`.
- **Calls** follow their `input_schema`. One that `max_tokens` cuts has in `input` what of it was
  complete, as Anthropic's SDKs read the pieces of a stream; what cannot be read so is `{}`.
- **Stop reasons**: `end_turn`, `max_tokens`, `stop_sequence`, `tool_use`; `model_context_window_exceeded`
  where `max_tokens` is more than the context has room for; `pause_turn` where a deadline of the server
  passed.
- **Usage**: `input_tokens` are those that were computed, `cache_read_input_tokens` those that were not;
  nothing is paid for what is kept, so `cache_creation_input_tokens` is 0.

## Fields

Printed by `python -m octavo.server.dialects.anthropic_fields`, from the list that the server goes by.
*Done*: as there, or as the note says. *Refused*: it would change the answer and is not built; 400, except
where its value asks for what happens anyway. *Ignored*: it changes no answer. Fields that are not listed
are let through.
"""

_AT = FieldsAt(_BOTH)
_done, _refused, _ignored = _AT.done, _AT.refused, _AT.ignored

_FIELDS: Final[tuple[Field, ...]] = (
    _done("model", "the served model's name; may be left out"),
    _done("messages", "of the roles user, assistant, system"),
    _done("system", "text, or text blocks"),
    _done("max_tokens", "must be given; an answer ends at the end of the context all the same", _ANSWER),
    _done("stop_sequences", "up to 16, of up to 256 characters", _ANSWER),
    _done("stream", "", _ANSWER),
    _done("temperature", "0 to 1; default 1", _ANSWER),
    _done("top_p", "", _ANSWER),
    _done("top_k", "", _ANSWER),
    _done("tools", "up to 512, of the type custom; others are refused by their type"),
    _done("tool_choice", "auto, any, tool, none; disable_parallel_tool_use"),
    _done("thinking", "enabled with budget_tokens, adaptive, disabled; display summarized or omitted"),
    _done("output_config", "effort, format"),
    _done("output_format", "the older name of output_config.format"),
    _refused("container", "there is no code execution; leave it out"),
    _refused("mcp_servers", "call them in the client, and give what they offer as tools", []),
    _done("context_management", "edits that change nothing: clear_thinking, keep all; others are refused"),
    _refused("compaction", "shorten the messages in the client"),
    _refused("thread", "nothing is stored; send the messages"),
    _refused("diagnostics", "read usage.cache_read_input_tokens"),
    _refused("inference_geo", "the model runs where the server does; leave it out", "global"),
    _ignored("cache_control", _REUSED),
    _ignored("metadata", _BY_KEY),
    _ignored("user_profile_id", _BY_KEY),
    _ignored("service_tier", "it is about when, not what"),
    _ignored("speed", "it is about when, not what"),
    _ignored("billing_policy", "nothing is billed"),
    _ignored("fallbacks", "this model refuses nothing by a stop reason"),
    _ignored("fallback_credit_token", "nothing is billed"),
    # -- a block of content ----------------------------------------------------------------------------------
    _done("type", "user: text, tool_result; assistant: text, tool_use, thinking, redacted_thinking", _BLOCK),
    _done("text", "", _BLOCK),
    _done("id", "of tool_use", _BLOCK),
    _done("name", "of tool_use", _BLOCK),
    _done("input", "of tool_use", _BLOCK),
    _done("tool_use_id", "of tool_result: the id of a tool_use before it", _BLOCK),
    _done("content", "of tool_result: text, or text blocks; images and documents become a sentence", _BLOCK),
    _done("is_error", "of tool_result: its text begins with `Error: `", _BLOCK),
    _done("thinking", "given to the template, most of which leave out what is old", _BLOCK),
    _ignored("signature", "thinking is text here, and needs no proof", _BLOCK),
    _ignored("data", "of redacted_thinking: nothing here can read it", _BLOCK),
    _ignored("cache_control", _REUSED, _BLOCK),
    _ignored("citations", "they are told to people, not to models", _BLOCK),
    _ignored("caller", "the call and its result are the same", _BLOCK),
    _refused("toolset_name", "there are no toolsets; use tools", places=_BLOCK),
    # -- a tool ----------------------------------------------------------------------------------------------
    _done("type", "custom", _TOOL),
    _done("name", "1 to 128 letters, digits, _ and -", _TOOL),
    _done("description", "", _TOOL),
    _done("input_schema", "a JSON schema; lenient where strict is not true", _TOOL),
    _done("strict", "what cannot be followed of its schema is refused", _TOOL),
    _refused("input_examples", "put them into the description", [], places=_TOOL),
    _refused("defer_loading", "the model is told of all tools", False, places=_TOOL),
    _refused("allowed_callers", "there is no code execution; leave it out", ["direct"], places=_TOOL),
    _ignored("cache_control", _REUSED, _TOOL),
    _ignored("eager_input_streaming", "input is always streamed as it comes", _TOOL),
    # -- output_config ---------------------------------------------------------------------------------------
    _done("effort", "given to the template as reasoning_effort", _OUTPUT),
    _done("format", "json_schema; what cannot be followed of it is refused", _OUTPUT),
    _refused("task_budget", "use max_tokens, or thinking.budget_tokens", places=_OUTPUT),
)


ANTHROPIC_FIELDS: Final = FieldList(_HEAD, _PLACES, _FIELDS)


if __name__ == "__main__":
    sys.stdout.write(ANTHROPIC_FIELDS.page())
