"""What files of mixtures call their tensors: `names.py`, for experts."""

from __future__ import annotations

from types import MappingProxyType

from octavo.model.families.names import LLAMA_TENSORS, QWEN3_TENSORS, Names

MIXTRAL_TENSORS: Names = MappingProxyType(
    {
        **LLAMA_TENSORS,
        "router": "model.layers.{}.block_sparse_moe.gate",
        "expert_gate": "model.layers.{}.block_sparse_moe.experts.{{}}.w1",
        "expert_up": "model.layers.{}.block_sparse_moe.experts.{{}}.w3",
        "expert_down": "model.layers.{}.block_sparse_moe.experts.{{}}.w2",
    }
)
QWEN3_MOE_TENSORS: Names = MappingProxyType(
    {
        **QWEN3_TENSORS,
        "router": "model.layers.{}.mlp.gate",
        "expert_gate": "model.layers.{}.mlp.experts.{{}}.gate_proj",
        "expert_up": "model.layers.{}.mlp.experts.{{}}.up_proj",
        "expert_down": "model.layers.{}.mlp.experts.{{}}.down_proj",
    }
)
