"""A program as a user of vLLM writes it: what `mypy --strict` says of it is tested, and it runs."""

from __future__ import annotations

import asyncio

from octavo import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    BeamSearchParams,
    CompletionOutput,
    Logprob,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StartOptions,
    StructuredOutputsParams,
)


def told(output: RequestOutput) -> str:
    """The first output of a request, and how sure the model was of its first token."""
    best: CompletionOutput = output.outputs[0]
    places: list[dict[int, Logprob]] = best.logprobs or []
    first = places[0][best.token_ids[0]] if places else None
    return f"{output.prompt!r}: {best.text!r} ({best.finish_reason}, {first.logprob if first else 0.0:.2f})"


def whole(model: str) -> list[str]:
    """Prompts, chats, structured outputs, beams and embeddings."""
    lines: list[str] = []
    with LLM(model=model, max_model_len=512, max_num_seqs=8, dtype="auto", seed=0) as llm:
        params = SamplingParams(n=1, temperature=0.8, top_p=0.95, max_tokens=8, logprobs=1, stop="\n")
        for output in llm.generate(["Hello, my name is", "The capital of France is"], params):
            lines.append(told(output))
        lines += map(told, llm.generate([[1, 2, 3], [4, 5]], [params, SamplingParams(max_tokens=2)]))
        lines += map(told, llm.generate([{"prompt": "Hello"}, {"prompt": "Once"}], params, use_tqdm=False))
        lines += map(told, llm.generate({"prompt_token_ids": [1, 2, 3]}))
        chat = [{"role": "user", "content": [{"type": "text", "text": "Name a colour."}]}]
        choice = StructuredOutputsParams(choice=["red", "green"])
        lines += map(told, llm.chat(chat, SamplingParams(structured_outputs=choice), use_tqdm=False))
        beams = llm.beam_search("Once", BeamSearchParams(beam_width=2, max_tokens=3))
        lines.append(beams[0].sequences[0].text)
        vector: list[float] = llm.embed("a book")[0].outputs.embedding
        lines.append(str(len(vector)))
        ids: list[int] = llm.get_tokenizer().encode("a book")
        lines.append(str(ids))
        request_id: int = llm.add_request("Once", SamplingParams(max_tokens=2))
        while llm.num_unfinished:
            lines += [delta.text for own, delta in llm.step() if own == request_id]
    return lines


async def streamed(model: str) -> str:
    """The same as it comes."""
    text = ""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, max_model_len=512, enforce_eager=True))
    async with engine:
        params = SamplingParams(max_tokens=8, seed=1, output_kind=RequestOutputKind.DELTA)
        async for output in engine.generate("Once upon a time", params, "request-1", priority=0):
            text += output.outputs[0].text
        await engine.abort("request-1")
    return text


def main(model: str) -> None:
    """Both."""
    for line in whole(model):
        print(line)
    print(asyncio.run(streamed(model)))
    with LLM(model, StartOptions(context_length=64)) as llm:
        print(llm.get_default_sampling_params())


if __name__ == "__main__":
    main("smollm2-135m")
