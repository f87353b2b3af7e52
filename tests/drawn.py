"""Random requests by a seed, and the backends that the exactness of the engine is tested over."""

from __future__ import annotations

import dataclasses

import numpy as np

from octavo.kernels.contract import Ops, Routing
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps
from octavo.types import Request
from tests.tiers import cells
from tests.tiny import (
    MIXED,
    MIXTURE,
    VOCAB,
    over_experts,
    over_kv_of,
    over_weights_of,
    random_prompt,
    request,
)

# How the tiny model's file would hold its weights.
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", MIXED)
QUICK = ("cpu-F32", f"cpu-{MIXED}", "cpu-Q4_1-int8", "cpu-Q4_1-1-of-7", "reference-F32")


def _backends() -> dict[str, Ops]:
    """The native ops over weights of every kind and KV of every kind, the slow reference over some; the name
    says which."""
    made: dict[str, Ops] = {}
    triples = [
        (ReferenceOps, "F32", "f32"),
        (ReferenceOps, "Q4_1", "f32"),
        (ReferenceOps, "F32", "bf16"),
        (ReferenceOps, "F32", "int8"),
        *((NativeOps, kind, "f32") for kind in (*KINDS, *MIXTURE)),
        (NativeOps, "F32", "bf16"),
        (NativeOps, "F32", "int8"),
        (NativeOps, "Q4_1", "bf16"),
        (NativeOps, "Q4_1", "int8"),
        (NativeOps, "BF16", "bf16"),
    ]
    for backend, kind, kv in triples:
        ops = over_kv_of(kv, over_weights_of(kind, backend()))
        ops.name = f"{ops.name}-{kind}" if kv == "f32" else f"{ops.name}-{kind}-{kv}"
        made[ops.name] = ops
    mixtures = [
        (NativeOps, "Q4_1", Routing(1, "sigmoid", weighs_input=True)),
        (NativeOps, MIXED, Routing(4, "softmax_of_chosen")),
    ]
    for backend, kind, routing in mixtures:
        ops = over_experts(routing, over_weights_of(kind, backend()))
        ops.name = f"{ops.name}-{kind}-{routing.top_k}-of-7"
        made[ops.name] = ops
    return made


BACKENDS = _backends()
CELLS = cells([name for name in BACKENDS if name.removeprefix("cpu-") not in MIXTURE], QUICK)


def plain(seed: int, request_id: int = 1) -> Request:
    """A random request: greedy or sampled, penalties, filters, masks, prompt logprobs."""
    rng = np.random.default_rng(seed)
    params: dict[str, object] = {"seed": int(rng.integers(0, 2**40)), "ignore_eos": bool(rng.random() < 0.5)}
    if rng.random() < 0.6:
        params |= {"temperature": float(rng.uniform(0.3, 1.5)), "top_p": float(rng.uniform(0.5, 1.0))}
        params |= {"top_k": int(rng.choice([0, 5, 20])), "min_p": float(rng.choice([0.0, 0.05]))}
    if rng.random() < 0.3:
        params |= {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    if rng.random() < 0.2:
        params |= {"prompt_logprobs": 2}
    length = int(rng.choice([1, 5, 15, 16, 17, 33, 70, 150, 300]))
    masks = np.random.default_rng([seed, 1])  # of its own, so that the other draws stay what they were
    if masks.random() < 0.3:
        params |= {"allowed_token_ids": tuple(random_prompt(masks, 12))}
    if masks.random() < 0.3:  # of few tokens, so that the output completes many of them
        few = [*params.get("allowed_token_ids", range(2, 97))][:10]  # type: ignore[misc]
        params |= {"banned_sequences": tuple((int(a), int(b)) for a, b in masks.choice(few, (60, 2)))}
    return request(request_id, random_prompt(rng, length), int(rng.integers(1, 20)), **params)


def crowd(seed: int, count: int) -> list[Request]:
    """Neighbours of a plain request, with ids from 100 on."""
    return [plain(seed * 1000 + i, 100 + i) for i in range(count)]


def varied(seed: int, request_id: int = 1) -> Request:
    """A plain request, here also with several choices, tokens that stop it, and without logprobs, which lets
    greedy rows do without logits."""
    one = plain(seed, request_id)
    rng = np.random.default_rng([seed, 2])
    params = one.params
    if rng.random() < 0.4:
        params = dataclasses.replace(params, logprobs=None)
    if rng.random() < 0.4 and params.allowed_token_ids is None:
        params = dataclasses.replace(params, stop_token_ids=(*map(int, rng.integers(2, VOCAB, 9)),))
    if rng.random() < 0.3:
        params = dataclasses.replace(params, min_tokens=int(rng.integers(0, 9)))
    choices = int(rng.choice([1, 1, 3]))
    return dataclasses.replace(one, params=params, n=choices, max_tokens=int(rng.integers(1, 40)))


def varied_crowd(seed: int, count: int) -> list[Request]:
    """Neighbours of a varied request."""
    return [varied(seed * 1000 + i, 100 + i) for i in range(count)]
