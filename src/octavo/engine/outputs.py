"""The outputs for clients of the engine: deltas of text, sessions, statistics, and views of the memory."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.inspect.stats import EngineStats
from octavo.inspect.views import (
    BlockView,
    Glimpse,
    MapView,
    PinView,
    PoolView,
    RequestView,
    SequenceView,
    SessionBlocks,
    TableView,
    TenantUse,
    TierView,
    Totals,
)
from octavo.memory.changes import Place
from octavo.memory.ledger import BlockCounts
from octavo.memory.name_history import AGES_S, AgeCounts
from octavo.memory.quota import TenantPolicy
from octavo.params import Pooling
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.retention.session_table import SessionState
from octavo.scheduler.sequence import State
from octavo.scheduler.sequence_parts import PromptPart, PromptSource, PromptSplit
from octavo.step.events import Event
from octavo.types import ChatMessage, FinishReason, Usage

__all__ = [
    "AGES_S",
    "AgeCounts",
    "BlockCounts",
    "BlockView",
    "ChatMessage",
    "Delta",
    "EngineStats",
    "Event",
    "Glimpse",
    "MapView",
    "ModelCard",
    "PinRequest",
    "PinView",
    "Place",
    "PoolView",
    "PromptPart",
    "PromptSource",
    "PromptSplit",
    "RequestView",
    "SequenceView",
    "SessionBlocks",
    "SessionState",
    "SessionView",
    "State",
    "Strength",
    "TableView",
    "TenantPolicy",
    "TenantUse",
    "TierView",
    "TokenInfo",
    "Totals",
]


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


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token for a client: its id, its own bytes, its raw logprob, and the likeliest (id, bytes, logprob).

    `logprob` is None if it was not requested, or for the first token of a prompt, which nothing predicts.
    """

    token: int
    data: bytes
    logprob: float | None = None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """The gain of one choice since its last delta. Exactly one delta per choice has `finish` set.

    `text` may lag behind `tokens`: bytes of an unfinished character and a possible beginning of a stop string
    are held back until they are decided. `stop` is the stop string or token id that ended the choice.
    """

    choice: int
    text: str
    tokens: tuple[TokenInfo, ...]
    usage: Usage  # of this choice
    finish: FinishReason | None = None
    stop: str | int | None = None
    error: str = ""
    prompt_logprobs: tuple[TokenInfo, ...] = ()
    embedding: bytes = b""  # of the prompt, if requested: float32, native order


@dataclass(frozen=True, slots=True)
class SessionView:
    """A chat session. Times are in seconds."""

    session_id: str
    tenant: str
    num_tokens: int  # prompts and outputs of all its turns
    num_turns: int  # ended ones
    age: float
    seconds_left: float  # until it expires, unless a turn comes before
    blocks: SessionBlocks
