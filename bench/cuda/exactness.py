"""The exactness suite on the device: whole answers of an engine, in every circumstance, bit for bit.

    python bench/cuda/exactness.py

    alone = crowd = chunked = preempted = overlapped = prefix hit = guessed tokens

Greedy, sampled with a seed, filtered, penalised (by the host's sampler); with logprobs and without. Prints a
line for each circumstance, and for its first difference; the exit status is 1 if there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from engines import essence, new_backend, one_tiling, open_llm, random_model, random_prompts
from measuring import Probe, begin, parser
from shapes import QWEN3_06B, TINY

from octavo.api.llm import LLM
from octavo.api.outputs import RequestOutput
from octavo.api.params import SamplingParams
from octavo.config import StartOptions
from octavo.device.backend import TorchBackend
from octavo.device.layout import Layout
from octavo.kernels.contract import KvShape
from octavo.model.loader import LoadedModel

CONTEXT = 1024
BLOCK = 16
TINY_ONES = ("alone", "crowd", "prefix hit", "preempted, overlapped, with a host tier")


@dataclass(frozen=True, slots=True)
class Circumstance:
    """Settings under which all requests run, to compare their answers."""

    name: str
    options: StartOptions
    at_once: bool = True
    rounds: int = 1  # the last one's answers count: earlier ones fill the cache


@dataclass(frozen=True, slots=True)
class RequestSet:
    """The requests of a comparison."""

    prompts: list[list[int]]
    params: list[SamplingParams]


def requests(vocab: int, count: int, tiny: bool) -> RequestSet:
    """Requests of all kinds, alternately."""
    lengths, output = ((3, 9), 4) if tiny else ((5, 400), 60)
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.0, "logprobs": 3},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "logprobs": 2},
        {"temperature": 1.0, "min_p": 0.02},
        {"temperature": 0.7, "repetition_penalty": 1.3, "logprobs": 1},
    ]
    prompts = random_prompts(count, lengths, vocab, 5)
    shared = (prompts[0] * BLOCK)[: BLOCK + 1]
    prompts = [shared + prompt if index % 3 == 0 else prompt for index, prompt in enumerate(prompts)]
    params = [
        SamplingParams(max_tokens=output - index % 3, ignore_eos=True, seed=index, **kinds[index % 6])  # type: ignore[arg-type]
        for index in range(count)
    ]
    return RequestSet(prompts, params)


def circumstances(num_bytes: int, longest: int, kv: str, tiny: bool) -> Iterator[Circumstance]:
    """The circumstances. `num_bytes` of a block; `longest`: the most blocks of one request."""
    plain = StartOptions(
        kv=kv,
        kv_memory_bytes=num_bytes * (100 if tiny else 4000),
        max_seqs=64,
        overlap=0,
        step_tokens=64 if tiny else 512,
        prefix_caching=False,
        speculate="off",
    )
    small = max(longest + 2, -(-(2**16) // num_bytes))
    yield Circumstance("alone", plain, at_once=False)
    yield Circumstance("crowd", plain)
    yield Circumstance("chunked", dataclasses.replace(plain, step_tokens=9 if tiny else 23))
    yield Circumstance("overlapped", dataclasses.replace(plain, overlap=1))
    yield Circumstance("preempted", dataclasses.replace(plain, kv_memory_bytes=num_bytes * small))
    yield Circumstance(
        "preempted, overlapped, with a host tier",
        dataclasses.replace(
            plain,
            kv_memory_bytes=num_bytes * small,
            overlap=1,
            prefix_caching=True,
            host_cache_bytes=num_bytes * 2000,
        ),
    )
    yield Circumstance("prefix hit", dataclasses.replace(plain, prefix_caching=True), rounds=2)
    yield Circumstance("guessed tokens", dataclasses.replace(plain, speculate="ngram"))


def answers(llm: LLM, asked: RequestSet, circumstance: Circumstance) -> list[RequestOutput]:
    """The answers, in the order of the requests."""
    for _ in range(circumstance.rounds):
        if circumstance.at_once:
            made = llm.generate(asked.prompts, asked.params)
        else:
            each = zip(asked.prompts, asked.params, strict=True)
            made = [llm.generate([prompt], [params])[0] for prompt, params in each]
    return made


def first_difference(got: list[RequestOutput], want: list[RequestOutput]) -> dict[str, object] | None:
    """The first token or logprob that differs."""
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        mine, theirs = essence(one.outputs[0]), essence(other.outputs[0])
        for place, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a != b:
                tokens = [output.outputs[0].token_ids[place] for output in (one, other)]
                tops = [output.outputs[0].logprobs or [{}] * (place + 1) for output in (one, other)]
                return {
                    "request": index,
                    "prompt_tokens": len(one.prompt_token_ids),
                    "output_token": place,
                    "tokens": tokens,
                    "logprobs": [repr(at[place].get(token)) for token, at in zip(tokens, tops, strict=True)],
                }
        if len(mine) != len(theirs):
            return {"request": index, "lengths": [len(mine), len(theirs)]}
    return None


def compare(probe: Probe, loaded: LoadedModel, backend: TorchBackend, kv: str, asked: RequestSet) -> int:
    """Compare all circumstances of one model. Returns the number that differ from the first."""
    spec = loaded.model.spec
    block = Layout(KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, BLOCK, kv)).bytes_per_block
    longest = max(
        -(-(len(prompt) + (params.max_tokens or 0)) // BLOCK)
        for prompt, params in zip(asked.prompts, asked.params, strict=True)
    )
    about = f"{loaded.model.name} {backend.arithmetic_id} kv {kv}"
    wanted: list[RequestOutput] | None = None
    num_bad = 0
    for circumstance in circumstances(block, longest, kv, probe.tiny):
        if probe.tiny and circumstance.name not in TINY_ONES:
            continue
        if not probe.has_time(f"{about}: {circumstance.name}"):
            continue
        probe.note(f"{about}: {circumstance.name}")
        try:
            with open_llm(loaded, backend, circumstance.options) as llm:
                got = answers(llm, asked, circumstance)
                stats = llm.engine.stats
        except Exception as error:  # noqa: BLE001 - printed; the next circumstance may work
            probe.emit(
                "exactness", model=about, circumstance=circumstance.name, equal=False, error=repr(error)[:400]
            )
            num_bad += 1
            continue
        finally:
            probe.free()
        wanted = got if wanted is None else wanted
        difference = first_difference(got, wanted)
        num_bad += difference is not None
        probe.emit(
            "exactness",
            model=about,
            circumstance=circumstance.name,
            equal=difference is None,
            first_difference=difference,
            requests=len(got),
            tokens=sum(len(output.outputs[0].token_ids) for output in got),
            steps=stats.steps,
            preemptions=stats.preemptions,
            cached_tokens=stats.cached_tokens,
            guessed=sum(stats.accepted_draft_tokens.values()),
        )
    return num_bad


def main() -> None:
    """The tiny model, then 0.6B, then other types: the most important ones are compiled first."""
    probe = begin("exactness", parser(__doc__).parse_args())
    bf16, fp16, f32 = torch.bfloat16, torch.float16, torch.float32
    runs = [(TINY, 24, bf16, "bf16"), (QWEN3_06B, 48, bf16, "bf16"), (QWEN3_06B, 48, bf16, "int8")]
    runs += [
        (TINY, 24, bf16, "int8"),
        (TINY, 24, bf16, "fp8"),
        (TINY, 24, fp16, "fp16"),
        (TINY, 24, f32, "f32"),
    ]
    if probe.tiny:
        runs = [(TINY, 3, *((bf16, "bf16") if probe.is_cuda else (f32, "f32")))]
    num_bad = 0
    for shape, count, dtype, kv in runs:
        if not probe.has_time(f"{shape.name} {dtype} {kv}"):
            continue
        asked = requests(shape.vocab, count, probe.tiny)
        backend = new_backend(probe, dtype)
        loaded = random_model(shape, backend, CONTEXT)
        with one_tiling(probe):
            num_bad += compare(probe, loaded, backend, kv, asked)
        del loaded, backend
        probe.free()
    probe.emit("summary", differences=num_bad)
    raise SystemExit(1 if num_bad else 0)


if __name__ == "__main__":
    main()
