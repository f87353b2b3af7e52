"""Every field of a request that clients of OpenAI, vLLM, llama-server or SGLang may send, and what becomes of
it: the one list. `docs/compatibility.md` is printed from it, and requests are refused by it.

What a value must look like is said by the bodies of `openai_schema`. Sources: openai-python's
types, vLLM's `entrypoints/openai/*/protocol.py` and `entrypoints/serve/tokenize/protocol.py`, llama.cpp's
`tools/server` (its schema and README), SGLang's `entrypoints/openai/protocol.py`.

    python -m octavo.server.request_fields > docs/compatibility.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from octavo.server.field_list import Field, FieldList, Place, Treatment

_OWNERS: Final[Mapping[str, str]] = {
    "O": "OpenAI",
    "V": "vLLM",
    "L": "llama-server",
    "S": "SGLang",
    "X": "Octavo",
}
_PLACES: Final[Mapping[Place, str]] = {
    Place.CHAT: "/v1/chat/completions",
    Place.COMPLETIONS: "/v1/completions",
    Place.TOKENIZE: "/tokenize",
    Place.DETOKENIZE: "/detokenize",
    Place.EMBEDDINGS: "/v1/embeddings",
    Place.STREAM_OPTIONS: "`stream_options`",
    Place.MESSAGE: "`messages[]`",
}
_CHAT, _TEXT, _BOTH = (Place.CHAT,), (Place.COMPLETIONS,), (Place.CHAT, Place.COMPLETIONS)
_TOKENS, _TEMPLATED = (Place.TOKENIZE,), (Place.CHAT, Place.TOKENIZE)
_STREAM, _MESSAGE = (Place.STREAM_OPTIONS,), (Place.MESSAGE,)
_EMBED, _RUNS = (Place.EMBEDDINGS,), (Place.CHAT, Place.COMPLETIONS, Place.EMBEDDINGS)
_ALL = (Place.CHAT, Place.COMPLETIONS, Place.TOKENIZE, Place.DETOKENIZE, Place.EMBEDDINGS)

_NO_TOOLS = "use tools on /v1/chat/completions"
_OF_CHAT = "use /v1/chat/completions"
_AS_INPUT = "use input: a chat's text, or its tokens of POST /tokenize"
_SAMPLER = "use temperature, top_k, top_p, min_p"
_MEDIA = "images and sound are refused, so it has nothing to act on"

_HEAD: Final = """# Fields of a request

```console
$ python -m octavo.server.request_fields > docs/compatibility.md
```

What becomes of each field that clients of OpenAI, vLLM, llama-server or SGLang may send, printed from the
list that the server goes by. *Done*: as there, or as the note says. *Refused*: it would change the answer
and is not built; 400 with the code `unsupported_parameter`, except where its value asks for what happens
anyway. *Ignored*: it changes no answer. Fields that none of them has are let through.
"""


def _done(name: str, owners: str, note: str = "", places: tuple[Place, ...] = _BOTH) -> Field:
    return Field(name, places, owners, Treatment.DONE, note)


def _refused(
    name: str, owners: str, note: str, *harmless: object, places: tuple[Place, ...] = _BOTH
) -> Field:
    return Field(name, places, owners, Treatment.REFUSED, note, (None, *harmless))


def _ignored(name: str, owners: str, note: str, places: tuple[Place, ...] = _BOTH) -> Field:
    return Field(name, places, owners, Treatment.IGNORED, note)


_FIELDS: Final[tuple[Field, ...]] = (
    # -- the prompt ------------------------------------------------------------------------------------------
    _done("model", "OVLSX", "the served model's name; may be left out", _ALL),
    _done("messages", "OVLS", "text only", _TEMPLATED),
    _done("prompt", "OVLS", "text, token ids, or a list of either", _TEXT),
    _done("prompt", "V", "text", _TOKENS),
    _done("tokens", "V", "up to the context", (Place.DETOKENIZE,)),
    _done("input", "OVLS", "up to 2,048 texts, or token ids of so many, each up to the context", _EMBED),
    _refused("content", "L", "use input", places=_EMBED),
    _refused("messages", "OVLS", "use /v1/chat/completions", places=_TEXT),
    _refused("messages", "V", _AS_INPUT, places=_EMBED),
    _refused("prompt", "OVLS", "use messages, or /v1/completions", places=_CHAT),
    _refused("input_ids", "S", "use /v1/completions with token ids as prompt"),
    _refused("prompt_embeds", "V", "use prompt", [], places=_TEXT),
    _done("suffix", "OVS", "text behind the answer, where the model has fill-in-the-middle tokens", _TEXT),
    _refused("input_prefix", "L", "use prompt", "", places=_TEXT),
    _refused("input_suffix", "L", "use prompt", "", places=_TEXT),
    _refused("input_extra", "L", "use prompt", [], places=_TEXT),
    _refused("system_prompt", "L", "use a system message", ""),
    _refused("image_data", "L", "this model reads text only", []),
    _refused("documents", "V", "use a message, or chat_template_kwargs where the template reads them", []),
    _refused("truncate_prompt_tokens", "V", "shorten the prompt; POST /tokenize counts its tokens"),
    _ignored("truncation_side", "V", "means nothing without truncate_prompt_tokens"),
    _done("truncate_prompt_tokens", "V", "so many of each input are taken; -1: the context", _EMBED),
    _done("truncation_side", "V", "right keeps the beginning (the default), left the end", _EMBED),
    _done("add_special_tokens", "V", "default true", _EMBED),
    _done(
        "add_special_tokens", "V", "default true; with messages false, the template writes its own", _TOKENS
    ),
    _refused("add_special_tokens", "V", "use token ids of POST /tokenize", True, places=_TEXT),
    _refused("add_special_tokens", "V", "the template writes its own begin token", False, places=_CHAT),
    _done("add_generation_prompt", "V", "default true, without continue_final_message", _TEMPLATED),
    _done("continue_final_message", "VLS", "the answer goes on with the last message", _TEMPLATED),
    _done("chat_template_kwargs", "VLS", "up to 64 variables for the template", _TEMPLATED),
    _done(
        "allow_control_tokens", "X", "operators only: text of messages may become control tokens", _TEMPLATED
    ),
    _refused("add_generation_prompt", "V", _AS_INPUT, False, places=_EMBED),
    _refused("continue_final_message", "V", _AS_INPUT, False, places=_EMBED),
    _refused("chat_template_kwargs", "V", _AS_INPUT, {}, places=_EMBED),
    _refused("chat_template", "V", _AS_INPUT, places=_EMBED),
    _refused("add_generation_prompt", "V", "use /v1/chat/completions", True, False, places=_TEXT),
    _refused("continue_final_message", "VLS", "use /v1/chat/completions", False, places=_TEXT),
    _refused("chat_template_kwargs", "VLS", "use /v1/chat/completions", {}, places=_TEXT),
    _refused(
        "allow_control_tokens", "X", "a raw prompt may hold control tokens anyway", True, False, places=_TEXT
    ),
    _refused(
        "chat_template", "V", "use the model's own with chat_template_kwargs", places=(*_BOTH, *_TOKENS)
    ),
    _refused("generation_prompt", "L", "use add_generation_prompt or continue_final_message", ""),
    _refused("task", "S", "use a message", places=_CHAT),
    _done("return_token_strs", "V", "the text of each token", _TOKENS),
    # -- how much, how many ----------------------------------------------------------------------------------
    _done("max_tokens", "OVLS", "cut to the context; completions: default 16, 0 with echo scores the prompt"),
    _done("max_completion_tokens", "OVLS", "the newer name of max_tokens, which wins", _CHAT),
    _refused("max_completion_tokens", "L", "use max_tokens", places=_TEXT),
    _refused("n_predict", "L", "use max_tokens"),
    _done("min_tokens", "VS", "not where a grammar leads the whole answer"),
    _done("n", "OVLS", "up to max_seqs, 64 at most"),
    _refused("n_cmpl", "L", "use n", 1),
    _done("best_of", "OVS", "so many choices are made, the n likeliest per token returned; no stream", _TEXT),
    _refused("best_of", "VS", "use n, or best_of on /v1/completions", 1, places=_CHAT),
    _done("echo", "OVS", "the prompt comes before the text", _TEXT),
    _refused("echo", "VL", "the client has the message; put it before the answer", False, places=_CHAT),
    _done("stream", "OVLS"),
    _done("stream_options", "OVLS", "with stream"),
    _done("include_usage", "OVLS", "a last chunk with the usage", _STREAM),
    _done("continuous_usage_stats", "VS", "the usage so far in every chunk", _STREAM),
    _ignored("include_obfuscation", "O", "chunks are not padded", _STREAM),
    _ignored("stream_interval", "V", "a chunk per token: the text is the same"),
    _ignored("sse_ping_interval", "L", "comments in a stream are no part of the answer"),
    # -- sampling --------------------------------------------------------------------------------------------
    _done("temperature", "OVLS", "default 1; 0 is greedy"),
    _done("top_p", "OVLS", "0 takes the likeliest token"),
    _done("top_k", "VLS", "0 or -1 keeps all"),
    _done("min_p", "VLS"),
    _done("presence_penalty", "OVLS"),
    _done("frequency_penalty", "OVLS"),
    _done("repetition_penalty", "VS"),
    Field("repeat_penalty", _BOTH, "L", Treatment.ALIAS, "repetition_penalty, over prompt and output"),
    _refused("repeat_last_n", "L", "penalties look at everything; leave it out", -1),
    _refused("penalize_nl", "L", "use logit_bias", True),
    _done("logit_bias", "OVLS", "token id -> -100 to 100"),
    _done("seed", "OVLS"),
    _done("allowed_token_ids", "V", "not where a grammar leads the whole answer"),
    _done("bad_words", "V", "up to 64 words of 256 characters; a grammar has the last word"),
    _done("priority", "VS", "lower runs earlier, as in vLLM", _RUNS),
    _done("use_beam_search", "V"),
    _done("length_penalty", "V", "with use_beam_search"),
    _done("beam_width", "X", "with use_beam_search; default n, at least 2"),
    _done("early_stopping", "X", 'with use_beam_search: false, true or "never"'),
    _refused("typical_p", "L", _SAMPLER, 1),
    _refused("tfs_z", "L", _SAMPLER, 1),
    _refused("top_n_sigma", "L", _SAMPLER, -1, 0),
    _refused("xtc_probability", "L", _SAMPLER, 0),
    _ignored("xtc_threshold", "L", "means nothing without xtc_probability"),
    _refused("mirostat", "L", _SAMPLER, 0),
    _ignored("mirostat_tau", "L", "means nothing without mirostat"),
    _ignored("mirostat_eta", "L", "means nothing without mirostat"),
    _refused("dynatemp_range", "L", "use temperature", 0),
    _ignored("dynatemp_exponent", "L", "means nothing without dynatemp_range"),
    _refused("adaptive_target", "L", _SAMPLER, -1),
    _ignored("adaptive_decay", "L", "means nothing without adaptive_target"),
    _refused("dry_multiplier", "L", "use repetition_penalty, presence_penalty or frequency_penalty", 0),
    _ignored("dry_base", "L", "means nothing without dry_multiplier"),
    _ignored("dry_allowed_length", "L", "means nothing without dry_multiplier"),
    _ignored("dry_penalty_last_n", "L", "means nothing without dry_multiplier"),
    _ignored("dry_sequence_breakers", "L", "means nothing without dry_multiplier"),
    _refused("samplers", "L", "their order is fixed: penalties, temperature, top_k, top_p, min_p", []),
    _refused("min_keep", "L", _SAMPLER, 0, 1),
    _refused("n_indent", "L", "ask for it in the prompt", 0),
    _ignored("backend_sampling", "L", "where a token is drawn does not change which"),
    _refused("watermarking", "V", "leave it out", False),
    _refused("repetition_detection", "V", "use stop, max_tokens or repetition_penalty"),
    _refused("logits_processors", "V", "use logit_bias", []),
    _refused("custom_logit_processor", "S", "use logit_bias", "", []),
    _refused("custom_params", "S", "leave it out", {}),
    _refused("vllm_xargs", "V", "leave it out", {}),
    # -- the end ---------------------------------------------------------------------------------------------
    _done("stop", "OVLS", "up to 16 strings of 256 characters"),
    _done("stop_token_ids", "VS", "up to 64"),
    _done("ignore_eos", "VLS"),
    _done("include_stop_str_in_output", "V"),
    _refused("no_stop_trim", "S", "use include_stop_str_in_output", False),
    _refused("stop_regex", "S", "use stop", "", []),
    _done("speculate", "X", "false: no token of it is guessed; the answer is the same"),
    _done("timeout", "X", "seconds until the last token", _RUNS),
    _done("queue_timeout", "X", "seconds until it is admitted", _RUNS),
    _done("ttft_timeout", "X", "seconds until the first token", _RUNS),
    _refused("t_max_predict_ms", "L", "use timeout, in seconds", -1, 0),
    # -- what is told ----------------------------------------------------------------------------------------
    _done("logprobs", "OVLS", "chat: true or false; completions: 0 to 20"),
    _done("top_logprobs", "OVLS", "0 to 20, with logprobs true", _CHAT),
    _refused("top_logprobs", "L", "use logprobs, which is a number here", places=_TEXT),
    _refused("n_probs", "L", "use logprobs (chat: with top_logprobs)", 0),
    _refused("post_sampling_probs", "L", "use logprobs, of the raw distribution", False),
    _refused("logprob_token_ids", "V", "use logprobs", []),
    _done("prompt_logprobs", "V", "0 to 20, without stream"),
    _done("return_token_ids", "VS", "prompt_token_ids and token_ids, in vLLM's places"),
    _refused("return_prompt_token_ids", "S", "use return_token_ids", False),
    _refused("return_tokens", "L", "use return_token_ids", False),
    _refused("return_tokens_as_token_ids", "V", "use return_token_ids", False),
    _refused("return_prompt_text", "V", "use return_token_ids and POST /detokenize", False),
    _done("skip_special_tokens", "VS", "default true"),
    _ignored("spaces_between_special_tokens", "V", "special tokens are written as they are"),
    _refused("return_meta_info", "S", "leave it out; usage tells what was counted", False),
    _refused("return_cached_tokens_details", "S", "use usage.prompt_tokens_details", False),
    _refused("return_hidden_states", "S", "leave it out", False),
    _refused("return_routed_experts", "S", "leave it out", False),
    _ignored("routed_experts_start_len", "S", "means nothing without return_routed_experts"),
    _ignored("routed_experts_prompt_start", "V", "routed experts are not told"),
    _ignored("return_token_offsets", "V", "vLLM ignores it on these routes too"),
    _ignored("return_mm_kwargs", "V", "vLLM ignores it on these routes too"),
    _refused("timings_per_token", "L", "use usage, and GET /metrics", False),
    _refused("return_progress", "L", "use GET /v1/requests/{id}", False),
    _refused("verbose", "L", "use GET /v1/requests/{id}", False),
    _refused("response_fields", "L", "pick fields from the whole answer", []),
    # -- embeddings ------------------------------------------------------------------------------------------
    _done("encoding_format", "OVLS", "float, the default, or base64: float32, little-endian", _EMBED),
    _done("dimensions", "OVS", "the first so many numbers, normalised behind the cut", _EMBED),
    _done("pooling", "X", "last or mean; default: the setting pooling", _EMBED),
    _done("normalize", "V", "default true", _EMBED),
    Field("use_activation", _EMBED, "V", Treatment.ALIAS, "normalize"),
    _refused("embd_normalize", "L", "use normalize", 2, places=_EMBED),
    _refused("embed_dtype", "V", "vectors are float32", "float32", places=_EMBED),
    _refused("endianness", "V", "vectors are little-endian", "little", "native", places=_EMBED),
    _refused("padding", "V", "inputs are never padded", "do_not_pad", places=_EMBED),
    _refused("embed_overrides", "S", "use input", [], places=_EMBED),
    # -- formats, tools, reasoning, media --------------------------------------------------------------------
    _done("response_format", "OVLS", "text, json_object, json_schema; llama-server's `schema` too"),
    _done("structured_outputs", "V", "one of json, json_object, regex, choice, grammar"),
    _refused("structural_tag", "V", "use response_format, or structured_outputs"),
    _done("guided_json", "V"),
    _done("guided_regex", "V"),
    _done("guided_choice", "V"),
    _done("guided_grammar", "V", "EBNF as llama.cpp writes it, or Lark"),
    _ignored("guided_decoding_backend", "V", "there is one"),
    _refused("guided_whitespace_pattern", "V", "JSON has a space behind commas and colons, and no other"),
    _done("json_schema", "LS"),
    _done("grammar", "L", "GBNF"),
    _done("regex", "S"),
    _done("ebnf", "S"),
    _refused("grammar_lazy", "L", "the grammar holds from the first token on", False),
    _ignored("grammar_type", "L", "told by which field it is in"),
    _refused("grammar_triggers", "L", "the grammar holds from the first token on", []),
    _ignored("preserved_tokens", "L", "special tokens are never text of a grammar"),
    _done("tools", "OVLS", "up to 512 functions", _TEMPLATED),
    _done("tool_choice", "OVLS", "none, auto, required, a function, or allowed_tools", _CHAT),
    _refused("tools", "OVLS", _NO_TOOLS, [], places=_TEXT),
    _refused("tool_choice", "OVLS", _NO_TOOLS, "none", "auto", places=_TEXT),
    _refused("functions", "O", "use tools", []),
    _refused("function_call", "O", "use tool_choice", "none", "auto"),
    _done("parallel_tool_calls", "OVLS", "default true: up to 16 calls in an answer", _CHAT),
    _ignored("parse_tool_calls", "L", "calls are always parsed where there are tools"),
    _refused("chat_format", "L", "leave it out"),
    _refused("chat_parser", "L", "leave it out", ""),
    _done("reasoning_effort", "OVS", "given to the template; none: enable_thinking false too", _TEMPLATED),
    _done("enable_thinking", "X", "given to the template, as in chat_template_kwargs", _TEMPLATED),
    _done("max_thinking_tokens", "X", "then the thinking is closed; means nothing to other models", _CHAT),
    Field("thinking_token_budget", _CHAT, "V", Treatment.ALIAS, "max_thinking_tokens; -1: none"),
    Field("reasoning_budget_tokens", _CHAT, "L", Treatment.ALIAS, "max_thinking_tokens; -1: none"),
    _done("reasoning_format", "L", "none: the thinking stays in the text", _CHAT),
    _done("separate_reasoning", "S", "default true; false: the thinking stays in the text", _CHAT),
    _done("include_reasoning", "V", "default true; false: the thinking is left out", _CHAT),
    _refused("reasoning", "S", "use reasoning_effort", {}),
    _refused("reasoning_effort", "OVS", _OF_CHAT, places=_TEXT),
    _refused("max_thinking_tokens", "X", _OF_CHAT, places=_TEXT),
    _refused("thinking_token_budget", "V", _OF_CHAT, -1, places=_TEXT),
    _refused("reasoning_budget_tokens", "L", _OF_CHAT, -1, places=_TEXT),
    _refused("reasoning_format", "L", _OF_CHAT, "none", "auto", places=_TEXT),
    _refused("separate_reasoning", "S", _OF_CHAT, False, places=_TEXT),
    _refused("include_reasoning", "V", _OF_CHAT, True, places=_TEXT),
    _ignored("stream_reasoning", "S", "thinking is always streamed"),
    _ignored("reasoning_control", "L", "the budget is max_thinking_tokens"),
    _ignored("reasoning_budget_start_tag", "L", "told by the template"),
    _ignored("reasoning_budget_end_tag", "L", "told by the template"),
    _ignored("reasoning_budget_end_tags", "L", "told by the template"),
    _refused("reasoning_budget_message", "L", "leave it out", ""),
    _ignored("verbosity", "O", "ask for it in a message"),
    _refused("modalities", "O", "this model writes text only", ["text"]),
    _refused("audio", "O", "this model writes text only"),
    _refused("web_search_options", "O", "put what was found into a message"),
    _refused("moderation", "O", "leave it out"),
    _ignored("media_io_kwargs", "V", _MEDIA, (*_BOTH, *_TOKENS, *_EMBED)),
    _ignored("mm_processor_kwargs", "V", _MEDIA, (*_BOTH, *_TOKENS, *_EMBED)),
    _ignored("images_config", "S", _MEDIA),
    _ignored("max_dynamic_patch", "S", _MEDIA),
    _ignored("min_dynamic_patch", "S", _MEDIA),
    _ignored("use_audio_in_video", "S", _MEDIA),
    # -- memory, sessions, adapters, where it runs -----------------------------------------------------------
    _done("cache_salt", "VS", "1 to 256 characters; joins the tenant's; not with a session or a pin", _RUNS),
    _refused("extra_key", "S", "use cache_salt", "", []),
    _done("session", "X", '"new", or the id of one', _CHAT),
    _refused("session", "X", "use /v1/chat/completions", places=(*_TEXT, *_EMBED)),
    _refused("session_params", "S", "use session on /v1/chat/completions", {}),
    _ignored("session_id", "VS", "a name for routing; see session"),
    _ignored("cache_prompt", "L", "equal prefixes are always reused, and the answer is the same"),
    _ignored("n_cache_reuse", "L", "only equal prefixes are reused"),
    _ignored("n_keep", "L", "nothing is ever shifted out of the context"),
    _ignored("n_discard", "L", "nothing is ever shifted out of the context"),
    _ignored("id_slot", "L", "there are no slots"),
    _ignored("prediction", "O", "a guess to make it faster"),
    _ignored("ngram_corpus_id", "S", "a guess to make it faster"),
    _refused("lora", "L", "there are no adapters; serve a merged model", []),
    _refused("lora_path", "S", "there are no adapters; serve a merged model", "", [], places=_RUNS),
    _refused("kv_transfer_params", "V", "prompt and output run in one engine; leave it out"),
    _refused("ec_transfer_params", "V", "prompt and output run in one engine; leave it out"),
    _refused("bootstrap_host", "S", "prompt and output run in one engine; leave it out"),
    _refused("bootstrap_port", "S", "prompt and output run in one engine; leave it out"),
    _refused("bootstrap_room", "S", "prompt and output run in one engine; leave it out"),
    _ignored("data_parallel_rank", "S", "there is one engine"),
    _ignored("routed_dp_rank", "S", "there is one engine"),
    _ignored("disagg_prefill_dp_rank", "S", "there is one engine"),
    # -- who asks --------------------------------------------------------------------------------------------
    _ignored("user", "OVS", "a tenant is known by its key", _RUNS),
    _ignored("safety_identifier", "O", "a tenant is known by its key"),
    _ignored("metadata", "O", "nothing is stored"),
    _ignored("store", "O", "nothing is stored"),
    _ignored("service_tier", "O", "see priority"),
    _ignored("prompt_cache_key", "O", "equal prefixes are always reused"),
    _ignored("prompt_cache_options", "O", "equal prefixes are always reused"),
    _ignored("prompt_cache_retention", "O", "equal prefixes are always reused"),
    _ignored("request_id", "V", "see the header X-Octavo-Request", _RUNS),
    _ignored("rid", "S", "see the header X-Octavo-Request", _RUNS),
    _ignored("custom_labels", "S", "they label metrics"),
    # -- a message -------------------------------------------------------------------------------------------
    _done("role", "OVLS", "system, developer (as system), user, assistant, tool", _MESSAGE),
    _done("content", "OVLS", "text, or text parts", _MESSAGE),
    _done("name", "OVLS", "given to the template", _MESSAGE),
    _done("tool_calls", "OVLS", "of an assistant", _MESSAGE),
    _refused("function_call", "O", "use tool_calls", {}, places=_MESSAGE),
    _refused("tools", "S", "use the request's tools", [], places=_MESSAGE),
    _done("tool_call_id", "OVLS", "of a tool", _MESSAGE),
    _refused("refusal", "O", "put its text into content", "", places=_MESSAGE),
    _refused("audio", "O", "put its text into content", places=_MESSAGE),
    _done("reasoning_content", "VLS", "of an assistant: given to the template", _MESSAGE),
    Field("reasoning", _MESSAGE, "V", Treatment.ALIAS, "reasoning_content"),
    _ignored("annotations", "O", "they are told to people, not to models", _MESSAGE),
)


OPENAI_FIELDS: Final = FieldList(_HEAD, _PLACES, _FIELDS, owners=_OWNERS)


if __name__ == "__main__":
    sys.stdout.write(OPENAI_FIELDS.page())
