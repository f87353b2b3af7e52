"""Every field of a request that clients of the Responses API may send, and what becomes of it: the one list,
in the words of `request_fields`. `docs/responses.md` is printed from it, and requests are refused by it. What
else is refused in a chat is refused here too.

Sources: openai-python's `types/responses/response_create_params.py` and what it names, vLLM's
`entrypoints/openai/responses/protocol.py`.

    python -m octavo.server.dialects.responses_fields > docs/responses.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from octavo.server.field_list import Field, FieldList, FieldsAt, Place
from octavo.server.request_fields import OPENAI_FIELDS

_PLACES: Final[Mapping[Place, str]] = {
    Place.RESPONSES: "/v1/responses",
    Place.RESPONSES_TEXT: "`text`",
    Place.REASONING: "`reasoning`",
}
_TOP, _TEXT, _REASONING = (Place.RESPONSES,), (Place.RESPONSES_TEXT,), (Place.REASONING,)

# Given to the chat path as they are.
PASSED: Final[tuple[str, ...]] = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "repeat_penalty", "logit_bias", "min_tokens", "ignore_eos", "stop"),
    *("stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "allowed_token_ids"),
    *("bad_words", "speculate", "priority", "timeout", "queue_timeout", "ttft_timeout"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("chat_template_kwargs", "allow_control_tokens", "enable_thinking", "max_thinking_tokens"),
    *("thinking_token_budget", "reasoning_budget_tokens"),
)

_BY_KEY = "told again; a tenant is known by its key"
_OF_CHAT = "use /v1/chat/completions"
_APART = "thinking is always told apart"

_HEAD: Final = """# The Responses API

```console
$ OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python -c '
import openai
client = openai.OpenAI()
first = client.responses.create(model="smollm2-135m", input="Who was Aldus Manutius?")
more = client.responses.create(model="smollm2-135m", input="And when?", previous_response_id=first.id)
print(first.output_text, more.output_text, more.usage, sep="\\n")'
```

`POST /v1/responses` is translated into what `/v1/chat/completions` does. `GET` and `DELETE
/v1/responses/{id}`, `POST /v1/responses/{id}/cancel` and `GET /v1/responses/{id}/input_items` are about
responses that were stored. Those of other tenants are not found.

- **A stored response** is a conversation and a hold on the names of its blocks. One that names it by
  `previous_response_id` goes on from its tokens, as often as wanted: the branches hold the blocks together.
  `usage` tells `input_tokens_details.cached_tokens`, which were not computed again, and `reused_tokens`,
  which were not tokenised again. Where what is sent does not extend what was said (other `instructions`, say,
  which are not inherited, or calls that the template writes otherwise than the model), the conversation is
  tokenised as a whole, and `usage.fallback` says why.
- **Kept** are up to 1,000 responses of a tenant, of 64 MiB of JSON together, each with all that was said
  before it: the one used longest ago gives way, never one that runs. They live as long as sessions
  (`session_ttl`) after they were last gone on from, and with a disk cache a restart finds them again. Where
  the budget of pins is full, blocks of those used longest ago are let go for what is newer: going on from
  them computes what is not cached any more. A session is not a response, nor the other way round.
- **With `store` false** nothing is kept; `previous_response_id` may still name what is stored.
- **Items** have ids of their response. `item_reference` finds those that are stored, without
  their logprobs; all items together have no more characters than a context could hold. A `reasoning` item has
  what the model thought as `content`; `encrypted_content` is never given, and cannot be read.
- **Tools.** A `custom` tool is offered as a function of one string, and its calls are `custom_tool_call`
  items; its grammar is told to the model and not enforced. Functions of a `namespace` are offered as
  `NAMESPACE__NAME`, and their calls tell both names. `web_search`, `tool_search`, `local_shell` and
  `image_generation`, which agents offer beside their own, are left out, and named in the answer's `metadata`
  as `tools_left_out`; other hosted tools are refused. An image in a tool's output becomes a sentence that
  says so.
- **Cancelling** works while a response runs; a client that leaves cancels it too. What
  it has said stays. A stream of it ends with `response.incomplete`, in which `status` is `cancelled`.
- **Failing** in a stream is told by `error`, then `response.failed`.

## Fields

Printed by `python -m octavo.server.dialects.responses_fields`, from the list that the server goes by. *Done*:
as in OpenAI's API, or as the note says. *Refused*: it would change the answer and is not built; 400 with the
code `unsupported_parameter`, except where its value asks for what happens anyway. *Ignored*: it changes no
answer. What else [a chat refuses](compatibility.md) is refused here too; other fields are let through.
"""

_AT = FieldsAt(_TOP)
_done, _refused, _ignored = _AT.done, _AT.refused, _AT.ignored

_FIELDS: Final[tuple[Field, ...]] = (
    # -- what was said ---------------------------------------------------------------------------------------
    _done("model", "the served model's name; may be left out"),
    _done("input", "text, or items: message, calls and their outputs, reasoning, item_reference"),
    _done("instructions", "the first system message"),
    _done("previous_response_id", "a stored response that has ended"),
    _done("truncation", "disabled; auto: the oldest messages, but system's, are left out until it fits"),
    _refused("conversation", "use previous_response_id"),
    _refused("prompt", "put the text of the template into input and instructions"),
    _refused("context_management", "use truncation", []),
    _refused("messages", "use input"),
    # -- the answer ------------------------------------------------------------------------------------------
    _done("max_output_tokens", "with what was thought; cut to the context"),
    _done("text"),
    _done("format", "text, json_object, json_schema", _TEXT),
    _ignored("verbosity", "ask for it in instructions", _TEXT),
    _done("reasoning"),
    _done("effort", "given to the template; none: enable_thinking false too", _REASONING),
    _done("summary", "what was thought is told whole, as content of the reasoning item", _REASONING),
    _done("generate_summary", "the older name of summary", _REASONING),
    _refused("context", "send the reasoning items that shall count", "auto", places=_REASONING),
    _refused("mode", "leave it out", "standard", places=_REASONING),
    _done("tools", "up to 512: function, custom, namespace; those of the list below are left out"),
    _done("tool_choice", "none, auto, required, a function, a custom tool, or allowed_tools"),
    _done("parallel_tool_calls", "default true: up to 16 calls in an answer"),
    _ignored("max_tool_calls", "it counts calls of hosted tools, of which there are none"),
    _done("include", "message.output_text.logprobs; the others have nothing to tell here"),
    _done("top_logprobs", "0 to 20, with include message.output_text.logprobs"),
    _done("stream"),
    _done("stream_options", "with stream; include_obfuscation is ignored, events are not padded"),
    _refused("background", "stream, or wait; what was stored can be retrieved afterwards", False),
    _ignored("background_options", "means nothing without background"),
    _refused("moderation", "leave it out"),
    _ignored("image", "images are refused, so it has nothing to act on"),
    # -- what is kept, and for whom --------------------------------------------------------------------------
    _done("store", "default true"),
    _done("metadata", "up to 16 pairs of strings, of 64 and 512 characters"),
    _done("user", _BY_KEY),
    _done("safety_identifier", _BY_KEY),
    _done("prompt_cache_key", "told again; equal prefixes are always reused"),
    _ignored("prompt_cache_options", "equal prefixes are always reused"),
    _ignored("prompt_cache_retention", "equal prefixes are always reused"),
    _ignored("service_tier", "see priority"),
    _ignored("access_programs", "there are none"),
    _ignored("request_id", "see the header X-Octavo-Request"),
    # -- as in a chat ----------------------------------------------------------------------------------------
    *(_done(name, "as in a chat") for name in PASSED),
    _done("cache_salt", "as in a chat; with store false and without previous_response_id"),
    # -- names that a chat knows, and that mean something else here, or nothing ------------------------------
    _refused("max_tokens", "use max_output_tokens"),
    _refused("max_completion_tokens", "use max_output_tokens"),
    _refused("response_format", "use text.format"),
    _refused("json_schema", "use text.format"),
    _refused("grammar", "use structured_outputs"),
    _refused("regex", "use structured_outputs"),
    _refused("ebnf", "use structured_outputs"),
    _refused("reasoning_effort", "use reasoning.effort"),
    _ignored("verbosity", "ask for it in instructions"),
    _refused("include_reasoning", "leave reasoning items out of what you show", True),
    _refused("separate_reasoning", _APART, True),
    _refused("reasoning_format", _APART, "auto", "deepseek"),
    _refused("logprobs", "use include with message.output_text.logprobs", False),
    _refused("n", "send the request again, with another seed", 1),
    _refused("session", "use previous_response_id"),
    _refused("use_beam_search", _OF_CHAT, False),
    _refused("beam_width", _OF_CHAT),
    _refused("length_penalty", _OF_CHAT, 1.0),
    _refused("early_stopping", _OF_CHAT, False),
    _refused("prompt_logprobs", _OF_CHAT),
    _refused("return_token_ids", _OF_CHAT, False),
    _refused("continue_final_message", _OF_CHAT, False),
    _refused("add_generation_prompt", _OF_CHAT, True),
    _refused("enable_response_messages", "use input_items", False),
    _refused("previous_input_messages", "use input", []),
)


RESPONSES_FIELDS: Final = FieldList(
    _HEAD, _PLACES, _FIELDS, besides={Place.RESPONSES: OPENAI_FIELDS.refused_at(Place.CHAT)}
)


if __name__ == "__main__":
    sys.stdout.write(RESPONSES_FIELDS.page())
