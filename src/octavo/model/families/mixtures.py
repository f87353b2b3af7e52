"""Rows of families whose tokens pass through a few of many experts."""

from __future__ import annotations

from octavo.kernels.contract import Routing
from octavo.model.families.mixture_names import MIXTRAL_TENSORS, QWEN3_MOE_TENSORS
from octavo.model.families.row import Family, MixtureFacts

_NORMALISED = Routing(1, "softmax", normalised=True)

MIXTURES: tuple[Family, ...] = (
    Family(
        "mixtral",
        arch="llama",
        tensors=MIXTRAL_TENSORS,
        windows="all",
        interleaved_in=frozenset(("gguf",)),
        mixture=MixtureFacts(_NORMALISED),
    ),
    Family(
        "qwen3_moe",
        arch="qwen3moe",
        tensors=QWEN3_MOE_TENSORS,
        windows="all",
        mixture=MixtureFacts(
            _NORMALISED,
            ffn_key="moe_intermediate_size",
            normalised_key="norm_topk_prob",
            step_key="decoder_sparse_step",
            dense_key="mlp_only_layers",
        ),
    ),
    Family(
        "olmoe",
        tensors=QWEN3_MOE_TENSORS,
        qk_norm="all",
        mixture=MixtureFacts(Routing(1, "softmax"), normalised_key="norm_topk_prob"),
    ),
)
