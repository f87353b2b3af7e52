"""Models with random weights, generated on the device, and engines over them in this process.

Weights are generated layer by layer; no file is read. Needs Octavo's native module.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast
from unittest import mock

import numpy as np
import torch
from measuring import Probe
from shapes import Shape, random_matrix

from octavo.api import llm as llm_module
from octavo.api.llm import LLM
from octavo.api.outputs import CompletionOutput
from octavo.config import StartOptions
from octavo.device import compiled_step
from octavo.device.backend import TorchBackend
from octavo.device.forward import DeviceForward
from octavo.device.open_backend import compiled_backend
from octavo.device.triton import linear
from octavo.device.triton.linear import Tiling
from octavo.device.weights import DeviceMatrix, DeviceWeights
from octavo.engine.available import available_memory
from octavo.model.loader import LoadedModel
from octavo.model.rope import RopeSpec
from octavo.model.spec import LayerWeights, Linear, Model, ModelSpec, ModelWeights, Norm, rope_tables_of
from octavo.params import SamplerParams
from octavo.serving.client import EngineClient
from octavo.serving.start import StartedEngine, engine_over
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from octavo.types import ChatMessage, Request

_LETTERS = 26
_TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
_ONE_ID = b"random weights".ljust(32, b"\0")


class LetterTokenizer:
    """Token t is letter t mod 26; encoding gives tokens from 26 on. Token 1 ends."""

    special_ids = control_ids = stop_ids = frozenset([1])

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.chat_template = ChatTemplate(_TEMPLATE)

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Token ids of a text of letters."""
        return [_LETTERS + ord(letter) - ord("a") for letter in text]

    def token_bytes(self, token: int) -> bytes:
        """One letter."""
        return bytes([ord("a") + token % _LETTERS])

    def close(self) -> None:
        """Nothing to close."""


def random_model(shape: Shape, backend: TorchBackend, context_length: int, seed: int = 0) -> LoadedModel:
    """A model of the shape in the backend's type, on its device."""
    device, dtype = backend.torch_device, cast(DeviceWeights, backend.weights).dtype
    seeds = iter(range(seed * 100_000, (seed + 1) * 100_000))

    def matrix(outputs: int, inputs: int) -> Linear:
        return Linear(DeviceMatrix(random_matrix(outputs, inputs, dtype, device, next(seeds))))

    def norm(size: int) -> Norm:
        generator = torch.Generator(device).manual_seed(next(seeds))
        return Norm(1 + 0.1 * torch.randn(size, device=device, generator=generator))

    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    spec = ModelSpec(
        family="qwen3" if shape.has_qk_norm else "llama",
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_size=shape.head,
        ffn_size=shape.ffn,
        vocab_size=shape.vocab,
        context_length=context_length,
        attention_scale=shape.head**-0.5,
        norm_eps=1e-6,
        ropes=(RopeSpec(shape.theta, shape.head),) * shape.layers,
    )
    layers = tuple(
        LayerWeights(
            attention_norm=norm(shape.hidden),
            q=matrix(queries, shape.hidden),
            k=matrix(keys, shape.hidden),
            v=matrix(keys, shape.hidden),
            o=matrix(shape.hidden, queries),
            ffn_norm=norm(shape.hidden),
            up=matrix(shape.ffn, shape.hidden),
            down=matrix(shape.hidden, shape.ffn),
            gate=matrix(shape.ffn, shape.hidden),
            q_norm=norm(shape.head) if shape.has_qk_norm else None,
            k_norm=norm(shape.head) if shape.has_qk_norm else None,
        )
        for _ in range(shape.layers)
    )
    embedding = matrix(shape.vocab, shape.hidden).weight
    output = embedding if shape.is_tied else matrix(shape.vocab, shape.hidden).weight
    weights = ModelWeights(embedding, layers, norm(shape.hidden), output)
    rope_tables = rope_tables_of(spec, backend.weights.vector)
    model = Model(f"random-{shape.name}", spec, weights, _ONE_ID, rope_tables)
    return LoadedModel(model, cast(Tokenizer, LetterTokenizer(shape.vocab)))


def new_backend(probe: Probe, dtype: torch.dtype | None = None) -> TorchBackend:
    """Octavo's kernels on the probe's device, bfloat16 by default."""
    return compiled_backend(probe.device, dtype or probe.dtypes[0], available_memory)


def start(loaded: LoadedModel, backend: TorchBackend, options: StartOptions) -> StartedEngine:
    """An engine that no thread steps yet."""
    return engine_over(loaded, backend, options)


@contextmanager
def open_llm(loaded: LoadedModel, backend: TorchBackend, options: StartOptions) -> Iterator[LLM]:
    """An `LLM` over the model, closed at the end of the block."""
    with mock.patch.object(
        llm_module, "build_engine", lambda model, options, progress: start(loaded, backend, options)
    ):
        llm = LLM("random", options)
    try:
        yield llm
    finally:
        llm.close()


@contextmanager
def one_tiling(probe: Probe) -> Iterator[None]:
    """On a CPU, use one tile size: BLAS multiplies tiles there, and sums larger ones in another order."""
    if probe.is_cuda:
        yield
        return

    def always(num_rows: int, num_outputs: int, num_inputs: int) -> Tiling:
        return Tiling(64, 64, weights_first=True, num_warps=4, num_stages=4)

    with (
        mock.patch.object(linear, "tiling_for", always),
        mock.patch.object(compiled_step, "prefill_tokens_per_tile", return_value=1),
    ):
        yield


def forward_of(llm: LLM) -> DeviceForward:
    """The engine's `DeviceForward`."""
    forward = llm.started.runner.forward
    assert isinstance(forward, DeviceForward)
    return forward


def essence(choice: CompletionOutput) -> list[tuple[int, bytes]]:
    """An answer's tokens, each with the bits of its logprobs."""
    found = []
    for token, at in zip(choice.token_ids, choice.logprobs or [{}] * len(choice.token_ids), strict=True):
        numbers = np.array([one.logprob for one in at.values()], np.float64)
        found.append((token, numbers.tobytes() + np.array(list(at), np.int32).tobytes()))
    return found


def random_prompts(count: int, lengths: tuple[int, int], vocab: int, seed: int) -> list[list[int]]:
    """Token ids from 2 on, of random lengths within both bounds."""
    rng = np.random.default_rng(seed)
    return [
        [int(token) for token in rng.integers(2, vocab, rng.integers(lengths[0], lengths[1] + 1))]
        for _ in range(count)
    ]


@dataclass(slots=True)
class Chat:
    """A session and its messages."""

    llm: EngineClient
    output: int  # tokens of an answer
    session_id: str = "new"
    messages: list[ChatMessage] = field(default_factory=list)

    async def say(self, text: str) -> dict[str, float]:
        """Run a turn. Returns seconds to the first token, the prompt tokens of earlier turns, and the cached
        ones."""
        self.messages.append(ChatMessage("user", text))
        params = SamplerParams(max_tokens=self.output, temperature=0.0, ignore_eos=True)
        started = time.perf_counter()
        wanted = Request(params=params, session=self.session_id)
        taken = await self.llm.sessions.turn(wanted, self.messages)
        first, cached, answer = 0.0, 0, ""
        async for delta in taken.stream:
            if delta.tokens and not first:
                first = time.perf_counter() - started
            cached, answer = delta.usage.num_cached, answer + delta.text
        self.session_id = taken.session_id
        self.messages.append(ChatMessage("assistant", answer))
        return {"first_token_s": first, "reused_tokens": taken.reused_tokens, "cached_tokens": cached}
