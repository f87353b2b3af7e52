"""The decoder against transformers: a tiny random Llama, its prompt in chunks and then token by token."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import transformers

from octavo.kernels.contract import Batch, Floats, KvPool, KvShape, Linear, Ops, RawTensor
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import unpack_vector
from octavo.kernels.reference import ReferenceOps
from octavo.model.decoder import hidden_states, project
from octavo.model.rope import RopeSpec
from octavo.model.spec import LayerWeights, Model, ModelSpec, ModelWeights, Norm, rope_tables_of

pytestmark = pytest.mark.full


SPEC = ModelSpec(
    family="llama",
    num_layers=2,
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    head_size=8,
    ffn_size=80,
    vocab_size=101,
    context_length=512,
    attention_scale=8**-0.5,
    ropes=(RopeSpec(theta=10_000.0, dims=8),) * 2,
)


@pytest.fixture(scope="module")
def peer():
    """A random LlamaForCausalLM with outputs large enough to be worth comparing."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        hidden_size=SPEC.hidden_size,
        intermediate_size=SPEC.ffn_size,
        num_hidden_layers=SPEC.num_layers,
        num_attention_heads=SPEC.num_heads,
        num_key_value_heads=SPEC.num_kv_heads,
        head_dim=SPEC.head_size,
        vocab_size=SPEC.vocab_size,
        max_position_embeddings=SPEC.context_length,
        rms_norm_eps=SPEC.norm_eps,
        initializer_range=0.3,
        tie_word_embeddings=False,
        attention_bias=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    return model


@pytest.fixture(params=[NativeOps, ReferenceOps], ids=["native", "reference"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return request.param()


def _model(ops: Ops, peer) -> Model:
    """The peer's weights in our form."""
    state = {name: value.numpy().astype(np.float32) for name, value in peer.state_dict().items()}

    def raw(name: str) -> RawTensor:
        data = np.ascontiguousarray(state[name])
        return RawTensor(name, "F32", data.shape, data.reshape(-1).view(np.uint8))

    def linear(name: str) -> Linear:
        bias = unpack_vector(raw(f"{name}.bias")) if f"{name}.bias" in state else None
        return Linear(ops.matrix(raw(f"{name}.weight")), bias)

    def norm(name: str) -> Norm:
        return Norm(unpack_vector(raw(f"{name}.weight")))

    def layer(prefix: str) -> LayerWeights:
        return LayerWeights(
            attention_norm=norm(f"{prefix}.input_layernorm"),
            q=linear(f"{prefix}.self_attn.q_proj"),
            k=linear(f"{prefix}.self_attn.k_proj"),
            v=linear(f"{prefix}.self_attn.v_proj"),
            o=linear(f"{prefix}.self_attn.o_proj"),
            ffn_norm=norm(f"{prefix}.post_attention_layernorm"),
            gate=linear(f"{prefix}.mlp.gate_proj"),
            up=linear(f"{prefix}.mlp.up_proj"),
            down=linear(f"{prefix}.mlp.down_proj"),
        )

    weights = ModelWeights(
        embedding=ops.matrix(raw("model.embed_tokens.weight")),
        layers=tuple(layer(f"model.layers.{i}") for i in range(SPEC.num_layers)),
        final_norm=norm("model.norm"),
        output=ops.matrix(raw("lm_head.weight")),
    )
    return Model("tiny", SPEC, weights, bytes(32), rope_tables_of(SPEC, ops.vector))


def _pool(ops: Ops) -> KvPool:
    pool = ops.allocate_kv(KvShape(SPEC.num_layers, SPEC.num_kv_heads, SPEC.head_size, 16), 40)
    pool.data.view(np.float32)[...] = np.nan
    return pool


def _logits(
    ops: Ops, model: Model, pool: KvPool, tokens: list[int], cuts: list[int], table: list[int]
) -> Floats:
    """(len(tokens), V): every position's logits, computed chunk by chunk."""
    rows = []
    for start, stop in itertools.pairwise(cuts):
        batch = Batch(
            tokens=np.array(tokens[start:stop], np.int32),
            positions=np.arange(start, stop, dtype=np.int32),
            starts=np.array([start], np.int32),
            offsets=np.array([0, stop - start], np.int32),
            tables=np.array([table], np.int32),
            logit_rows=np.arange(stop - start, dtype=np.int32),
        )
        rows.append(project(ops, model, hidden_states(ops, model, pool, batch)))
    return np.concatenate(rows)


def test_prompt_in_chunks_and_decoding_give_the_peers_logits(ops: Ops, peer) -> None:
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, SPEC.vocab_size, 300).tolist()
    with torch.no_grad():
        expected = peer(torch.tensor([tokens])).logits[0].numpy()
    model = _model(ops, peer)
    table = rng.permutation(40)[:19].tolist()
    cuts = [0, 7, 40, 250, *range(290, 301)]  # three chunks of a prompt, one more, then token by token
    given = _logits(ops, model, _pool(ops), tokens, cuts, table)
    np.testing.assert_allclose(given, expected, atol=1e-4)
    whole = _logits(ops, model, _pool(ops), tokens, [0, 300], list(range(19)))
    np.testing.assert_array_equal(given, whole)


def test_only_the_wanted_rows_are_projected(peer) -> None:
    ops = NativeOps()
    model = _model(ops, peer)
    tokens = [5, 6, 7, 8, 9]
    whole = _logits(ops, model, _pool(ops), tokens, [0, 5], [3])
    batch = Batch(
        tokens=np.array([*tokens, *tokens], np.int32),
        positions=np.array([0, 1, 2, 3, 4] * 2, np.int32),
        starts=np.zeros(2, np.int32),
        offsets=np.array([0, 5, 10], np.int32),
        tables=np.array([[1], [0]], np.int32),
        logit_rows=np.array([9, 2], np.int32),
    )
    given = project(ops, model, hidden_states(ops, model, _pool(ops), batch))
    np.testing.assert_array_equal(given, whole[[4, 2]])
