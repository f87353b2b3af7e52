"""Every field of a request that clients of Ollama may send, and what becomes of it: the one list, in the
words of `request_fields`. `docs/ollama.md` is printed from it, and requests are refused by it.

What a value must look like is in the other files of this dialect. Sources: ollama's `api/types.go`, of today
and of the releases that still had mirostat and its like; ollama-python's `_types.py`.

    python -m octavo.server.dialects.ollama_fields > docs/ollama.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from octavo.server.field_list import Field, FieldList, FieldsAt, Place

_PLACES: Final[Mapping[Place, str]] = {
    Place.OLLAMA_CHAT: "/api/chat",
    Place.OLLAMA_GENERATE: "/api/generate",
    Place.OLLAMA_OPTIONS: "`options`",
    Place.OLLAMA_MESSAGE: "`messages[]`",
    Place.OLLAMA_EMBED: "/api/embed",
    Place.OLLAMA_EMBEDDINGS: "/api/embeddings",
    Place.OLLAMA_SHOW: "/api/show",
}
_CHAT, _TEXT, _BOTH = (
    (Place.OLLAMA_CHAT,),
    (Place.OLLAMA_GENERATE,),
    (Place.OLLAMA_CHAT, Place.OLLAMA_GENERATE),
)
_OPTIONS, _MESSAGE, _SHOW = (Place.OLLAMA_OPTIONS,), (Place.OLLAMA_MESSAGE,), (Place.OLLAMA_SHOW,)
_EMBED, _OLD = (Place.OLLAMA_EMBED,), (Place.OLLAMA_EMBEDDINGS,)
_VECTORS = (*_EMBED, *_OLD)
_ALL = (*_BOTH, *_VECTORS, *_SHOW)

_SAMPLER = "use temperature, top_k, top_p, min_p"
_IMAGES = "this model writes text only"
_OF_PENALTIES = "; without repeat_penalty, presence_penalty and frequency_penalty any number"
_AT_START = "the server was told at its start"
_NO_DRIFT = "nothing is ever shifted out of the context"

_HEAD: Final = """# Ollama's API

```console
$ OLLAMA_HOST=http://127.0.0.1:8000 python -c '
import ollama
print(ollama.chat("smollm2-135m", [{"role": "user", "content": "Who was Aldus Manutius?"}]).message.content)'
```

`/api/chat` and `/api/generate` are translated into what `/v1/chat/completions` does; a prompt with `raw`,
or for a model without a chat template, into what `/v1/completions` does. They answer in lines of JSON
unless `stream` is false. `/api/tags`, `/api/show` and `/api/ps` tell of the one model that is
served, whose name may have `:latest` behind it; `/api/version` of the Ollama whose API this is, because
some clients want one as new. Errors are `{"error": "message"}`, also on routes below
`/api/` that do not exist, and as the last line of a stream. A key goes into `Authorization` or `x-api-key`.
`/` says `Ollama is running`, but to browsers, which are sent to the [map](see.md).

- **Sampling** is Ollama's where `options` do not say: temperature 0.8, top_k 40, top_p 0.9, no penalty.
  Penalties look at the whole prompt and output, not at the last 64 tokens.
- **`num_predict`** is by default what the context has room for. A prompt that does not fit is refused with
  400, and nothing is cut from it; `num_ctx` changes nothing.
- **Thinking** comes as `thinking`, whatever `think` is; where that is left out, the model's template
  decides.
- **Calls** come whole, when the next thing begins, with ids. One that is cut before its end is text, at the
  end of the content. Tools may be given to every model that has a chat template. A result finds its call by
  `tool_call_id`, or by `tool_name`, or is that of the first call without one.
- **A last message of the assistant** is begun, and the answer goes on with it.
- **Figures** are measured. `prompt_eval_count` counts the whole prompt, cached or not;
  `prompt_eval_duration` is from the request's arrival to the first token, and `eval_duration` from there to
  the last. Nothing is loaded for a request, and nothing is unloaded: `keep_alive` 0 without messages is
  answered, and the model stays. `size` is that of the weights as they are held, `digest` the hash that
  names them, `modified_at` when the server began, `expires_at` the end of all days. What is not known
  (`format`, `license`, `modelfile`) is left out.
- **`done_reason`** is `stop`, `length`, `load` or `unload`; `timeout` where a deadline of the server
  passed.
- **`/api/pull`, `/api/push`, `/api/create`, `/api/copy`, `/api/delete`** are refused: a server has one
  model, which is given to `octavo serve`.

## Fields

Printed by `python -m octavo.server.dialects.ollama_fields`, from the list that the server goes by. *Done*:
as there, or as the note says. *Refused*: it would change the answer and is not built; 400, except where its
value asks for what happens anyway. *Ignored*: it changes no answer. Fields that are not listed are let
through.
"""

_AT = FieldsAt(_BOTH)
_done, _refused, _ignored = _AT.done, _AT.refused, _AT.ignored

_FIELDS: Final[tuple[Field, ...]] = (
    _done("model", "the served model's name, with `:latest` or without", _ALL),
    _done("name", "the older name of model", _SHOW),
    _done("messages", "text only; none of them asks that the model be there", _CHAT),
    _done("tools", "up to 512 functions", _CHAT),
    _done("prompt", "none asks that the model be there", _TEXT),
    _done("system", "a system message before the prompt", _TEXT),
    _done("raw", "the prompt is no chat's message", _TEXT),
    _done("stream", "default true"),
    _done("format", "`json`, or a JSON schema; what cannot be followed of it is refused"),
    _done("options", "see below"),
    _done("think", "true, false, low, medium, high, max; given to the template"),
    _done("keep_alive", "0 without messages or prompt: the answer is `unload`, and the model stays"),
    _done("logprobs", "of the raw distribution"),
    _done("top_logprobs", "0 to 20, with logprobs"),
    _done("suffix", "text behind the answer, where the model has fill-in-the-middle tokens", _TEXT),
    _refused("template", "use raw; `octavo serve` takes the model's own", "", places=_TEXT),
    _refused("context", "use /api/chat, with the messages so far", [], places=_TEXT),
    _refused("images", "this model reads text only", [], places=_TEXT),
    _refused("width", _IMAGES, 0, places=_TEXT),
    _refused("height", _IMAGES, 0, places=_TEXT),
    _refused("steps", _IMAGES, 0, places=_TEXT),
    _refused("_debug_render_only", "use POST /tokenize", False),
    _ignored("truncate", "a prompt that does not fit is refused with either"),
    _ignored("shift", "an answer ends where the context does"),
    # -- options ---------------------------------------------------------------------------------------------
    _done("num_ctx", "more than the context is the context; changes nothing", _OPTIONS),
    _done("num_predict", "0 and less: up to the end of the context, where more ends too", _OPTIONS),
    _done("temperature", "0 to 2; default 0.8", _OPTIONS),
    _done("top_k", "default 40; 0 keeps all", _OPTIONS),
    _done("top_p", "default 0.9", _OPTIONS),
    _done("min_p", "", _OPTIONS),
    _done("seed", "-1: any", _OPTIONS),
    _done("stop", "a string, or up to 16 of up to 256 characters", _OPTIONS),
    _done("repeat_penalty", "over prompt and output", _OPTIONS),
    _done("presence_penalty", "", _OPTIONS),
    _done("frequency_penalty", "", _OPTIONS),
    _done("repeat_last_n", "0: no penalties; otherwise they look at everything", _OPTIONS),
    _refused("penalize_newline", "leave it out", True, places=_OPTIONS),
    _refused("typical_p", _SAMPLER, 1, places=_OPTIONS),
    _refused("tfs_z", _SAMPLER, 1, places=_OPTIONS),
    _refused("mirostat", _SAMPLER, 0, places=_OPTIONS),
    _ignored("mirostat_tau", "means nothing without mirostat", _OPTIONS),
    _ignored("mirostat_eta", "means nothing without mirostat", _OPTIONS),
    _ignored("num_keep", _NO_DRIFT, _OPTIONS),
    _ignored("draft_num_predict", "guesses change no answer", _OPTIONS),
    _ignored("num_batch", "how many tokens a step has changes no answer", _OPTIONS),
    _ignored("num_thread", _AT_START, _OPTIONS),
    _ignored("num_gpu", _AT_START, _OPTIONS),
    _ignored("main_gpu", _AT_START, _OPTIONS),
    _ignored("low_vram", _AT_START, _OPTIONS),
    _ignored("f16_kv", _AT_START + ": `--kv`", _OPTIONS),
    _ignored("numa", _AT_START, _OPTIONS),
    _ignored("use_mmap", "where weights come from changes no answer", _OPTIONS),
    _ignored("use_mlock", "where weights lie changes no answer", _OPTIONS),
    _refused("logits_all", "use logprobs", False, places=_OPTIONS),
    _refused("vocab_only", "use POST /tokenize", False, places=_OPTIONS),
    _refused("embedding_only", "use /api/embed", False, places=_OPTIONS),
    # -- a message -------------------------------------------------------------------------------------------
    _done("role", "system, user, assistant, tool", _MESSAGE),
    _done("content", "text", _MESSAGE),
    _done("thinking", "of an assistant: given to the template", _MESSAGE),
    _done("tool_calls", "of an assistant; arguments are an object", _MESSAGE),
    _done("tool_name", "of a tool: which function it was", _MESSAGE),
    _done("tool_call_id", "of a tool: which call it answers", _MESSAGE),
    _refused("images", "this model reads text only", [], places=_MESSAGE),
    # -- /api/embed and /api/embeddings ----------------------------------------------------------------------
    _done("input", "a string, or up to 2,048; none asks that the model be there", _EMBED),
    _done("prompt", "none asks that the model be there; the vector has any length", _OLD),
    _done("truncate", "default true: longer inputs are cut, at `options.num_ctx` where that is less", _EMBED),
    _done("dimensions", "the first so many numbers, made as long as one", _EMBED),
    _done("options", "num_ctx; all else changes no vector", _VECTORS),
    _ignored("keep_alive", "the model stays", _VECTORS),
    # -- /api/show -------------------------------------------------------------------------------------------
    _refused("verbose", "GET /tokenizer_info has what a tokenizer needs", False, places=_SHOW),
    _ignored("system", "the model has none", _SHOW),
    _ignored("template", "Ollama ignores it too", _SHOW),
    _ignored("options", "nothing is asked of the model", _SHOW),
)


OLLAMA_FIELDS: Final = FieldList(_HEAD, _PLACES, _FIELDS)


if __name__ == "__main__":
    sys.stdout.write(OLLAMA_FIELDS.page())
