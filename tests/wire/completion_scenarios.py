"""OpenAI's completions and embeddings, vLLM's tokenizer routes, and models."""

from __future__ import annotations

from tests.wire.exchange import Exchange, alone, together

PATH = "/v1/completions"


def complete(name: str, prompt: object = "SAY:hello;", *, gathers: int = 1, **fields: object) -> Exchange:
    """One completion."""
    return Exchange(name=f"completion {name}", path=PATH, body={"prompt": prompt, **fields}, gathers=gathers)


def embed(name: str, given: object = "Hello", **fields: object) -> Exchange:
    """One request for vectors."""
    return Exchange(name=f"embeddings {name}", path="/v1/embeddings", body={"input": given, **fields})


_COMPLETIONS = alone(
    complete("plain"),
    complete("streamed", stream=True),
    complete("streamed with usage", stream=True, stream_options={"include_usage": True}),
    complete("of two prompts", ["SAY:hello;", "SAY:yes;"], gathers=2),
    complete("of two prompts streamed", ["SAY:hello;", "SAY:yes;"], stream=True, gathers=2),
    complete("of tokens", [83, 65, 89], max_tokens=2),
    complete("two choices streamed", "SAY:digits;", n=2, seed=3, stream=True, max_tokens=3),
    complete("best of", "SAY:digits;", n=1, best_of=3, seed=3, temperature=1.0),
    complete("echoed", echo=True, max_tokens=2),
    complete("logprobs", logprobs=2, max_tokens=2),
    complete("logprobs streamed", logprobs=1, max_tokens=2, stream=True),
    complete("scored", "The answer", echo=True, logprobs=1, max_tokens=0),
    complete("stop string", "SAY:count;", stop=" three"),
    complete("ignoring the end", ignore_eos=True, max_tokens=6, skip_special_tokens=False),
    complete("regex", "SAY:number;", regex="[0-9]+", stream=True),
)
_QUEUE = together(
    "the queue is full",
    # Sixteen are taken, the next one is not, so those are cancelled.
    complete("of more prompts than may wait", [f"SAY:hello{place};" for place in range(17)], gathers=32),
    Exchange(name="requests after more than may wait", path="/v1/requests"),
)
_COMPLETIONS_REFUSED = together(
    "completions are refused",
    complete("with messages", messages=[]),
    complete("with best_of streamed", best_of=2, stream=True),
    complete("with tokens that are none", [1, 70_000]),
    complete("with no prompt", None),
    complete("with too long a prompt", "x" * 1100),
    complete("with a session", session="new"),
    Exchange(
        name="completion with a session's header",
        path=PATH,
        body={"prompt": "a"},
        headers=(("X-Octavo-Session", "new"),),
    ),
)
_VECTORS = alone(
    embed("plain"),
    embed("of two texts", ["Hello", "world"]),
    embed("in base64", encoding_format="base64"),
    embed("of mean and fewer dimensions", "The answer", pooling="mean", dimensions=2),
    embed("not normalised", [1, 2, 3], normalize=False),
    embed("cut", "Hello world", truncate_prompt_tokens=1),
)
_TOLD = together(
    "tokens and models are told, vectors refused",
    embed("with too many dimensions", dimensions=5),
    embed("of nothing", []),
    embed("in an unknown format", encoding_format="hex"),
    Exchange(name="tokenize", path="/tokenize", body={"prompt": "Hello 🙂", "return_token_strs": True}),
    Exchange(
        name="tokenize a chat", path="/tokenize", body={"messages": [{"role": "user", "content": "hi"}]}
    ),
    Exchange(name="tokenize nothing", path="/tokenize", body={}),
    Exchange(name="detokenize", path="/detokenize", body={"tokens": [72, 105]}),
    Exchange(name="detokenize wrong tokens", path="/detokenize", body={"tokens": ["a"]}),
    Exchange(name="tokenizer info", path="/tokenizer_info"),
    Exchange(name="models", path="/v1/models"),
    Exchange(name="model", path="/v1/models/scripted"),
    Exchange(name="unknown model", path="/v1/models/gpt-4o"),
)

COMPLETIONS = (*_COMPLETIONS, *_QUEUE, *_COMPLETIONS_REFUSED, *_VECTORS, *_TOLD)
