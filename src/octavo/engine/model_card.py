"""The public facts of a model: values, made once by `start` from the loaded files."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.params import Pooling


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A loaded model in figures. None of them is a guess: an unknown one is 0 or ""."""

    family: str = ""  # "llama", "qwen3", ...
    num_parameters: int = 0
    weight_kind: str = ""  # of most of the weights: "Q8_0", "BF16", ...
    weight_bytes: int = 0  # of its matrices
    device_bytes: int = 0  # part of it: in a device's memory
    hidden_size: int = 0  # also the length of an embedding
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    vocab_size: int = 0
    context_length: int = 0  # as it is served
    chat_template: str = ""  # its source
    fingerprint: str = ""  # names the weights: 64 hexadecimal digits of a strong hash
    calibration: str = ""  # names what `octavo bench calibrate` measures with these settings, on this machine
    calibrate_command: str = ""  # which does it
    pooling: Pooling = Pooling.LAST  # of embeddings, unless a client chooses another
