"""What a client may be told of a model: values, made once by `start` from what was loaded."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.params import Pooling


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A loaded model in figures. None of them is a guess: what is not known is 0 or ""."""

    family: str = ""  # "llama", "qwen3", ...
    num_parameters: int = 0
    weight_kind: str = ""  # in which most of the weights are held: "Q8_0", "BF16", ...
    weight_bytes: int = 0  # of its matrices
    device_bytes: int = 0  # of them, those in a device's memory
    hidden_size: int = 0  # also the numbers of an embedding
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    vocab_size: int = 0
    context_length: int = 0  # as it is served
    chat_template: str = ""  # its source
    fingerprint: str = ""  # names the weights: 64 hexadecimal digits of a strong hash
    pooling: Pooling = Pooling.LAST  # what embeddings are made of where a client does not say
