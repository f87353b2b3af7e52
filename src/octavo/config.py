"""Every setting of an engine, with its default, its bounds, and the words that `octavo doctor` and --help
print.

A setting that can be computed is None by default, and `engine/start.py` computes it from the machine and
the model. docs/settings.md lists all of them; a test keeps the two equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError, shown
from octavo.files import folder_of

BLOCK_SIZES = (16, 32, 64)
BACKENDS = ("auto", "native", "torch", "reference")
DEVICES = re.compile(r"auto|cpu|cuda(:[0-9]{1,2})?")
ATTENTIONS = ("triton", "flash")
WEIGHTS = ("auto", "f32", "bf16", "int8", "q4")
HOST_KV_KINDS = ("f32", "bf16", "int8")
KV_KINDS = (*HOST_KV_KINDS, "fp16", "fp8")  # the last two on a device alone
TOOL_PARSERS = (
    "hermes",
    "llama3_json",
    "pythonic",
    "mistral",
    "mistral_args",
    "deepseek_v3",
    "deepseek_v31",
    "json",
)
POOLINGS = ("last", "mean")
SPECULATE = ("off", "auto", "ngram")
SESSION_TTL_S = 86_400


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How to start an engine. Raises ConfigError when a value is out of its bounds."""

    weights: str = "auto"  # how weights are held: f32, auto (as in the file), bf16, int8, q4
    packed_cache: bool = False  # keep weights packed on disk, in the cache folder, for later starts
    kv: str = "bf16"  # how K and V are held: f32, bf16, int8 (one scale a token and head), fp16, fp8
    backend: str = "auto"  # native, torch, reference (NumPy, slow); auto: torch on a GPU, else native
    device: str = "auto"  # cpu, cuda, or cuda:1; auto: a GPU where there is one
    attention: str = "triton"  # a device's kernels: triton (exact), or flash (of torch, where it has them)
    context_length: int | None = None  # tokens of prompt and output together; None: the model's own
    kv_memory_bytes: int | None = None  # bytes of KV blocks; None: a quarter of what is there; on a GPU most
    kv_ready_bytes: int = 0  # of these, taken from the system at start; the rest when first used
    block_size: int = 16  # tokens per block
    host_cache_bytes: int = 0  # of host memory below the pool; 0: none
    disk_cache: str | None = None  # folder of the tier below; None: there is none
    disk_size_bytes: int = 20 * 2**30  # of its one file
    disk_max_age_days: int = 30  # what was not used on disk for so long is removed; 0: it stays
    idle_return_s: int = 300  # after so long without work unused blocks' memory goes back; 0: never
    memory_reserve_bytes: int | None = None  # to stay available to others; None: 5 %, at most 512 MiB; 0: any
    pin_memory_bytes: int | None = None  # bytes that pins may keep; None: half of the pool
    session_ttl_s: int = SESSION_TTL_S  # seconds that a chat session lives after its last turn
    max_seqs: int = 64  # sequences that run at once
    step_tokens: int = 512  # positions computed per step at most
    max_queue: int = 1024  # requests that may wait
    threads: int | None = None  # native threads; None: one per core
    overlap: int | None = None  # 1: the next step is planned while one runs; None: 1 on a GPU, else 0
    prefix_caching: bool = True  # share the blocks of equal prefixes
    speculate: str = "auto"  # guess tokens: off, auto (where it pays), ngram (wherever text repeats itself)
    pace: bool | None = None  # hold prompts back while others decode; None: in a server yes, in scripts no
    chat_template: str | None = None  # a file, a name, or the Jinja text itself; None: the model's own
    tool_parser: str | None = None  # how the model writes calls; None: as its template tells
    pooling: str = "last"  # what embeddings are made of where a client does not say: last, mean
    served_name: str | None = None  # the name in /v1/models; None: the model's own

    def __post_init__(self) -> None:
        _one_of("weights", self.weights, WEIGHTS)
        _one_of("kv", self.kv, KV_KINDS)
        if self.backend == "cpu":
            raise ConfigError(f"backend is 'cpu', which is called native now; allowed: {', '.join(BACKENDS)}")
        _one_of("backend", self.backend, BACKENDS)
        _one_of("attention", self.attention, ATTENTIONS)
        if self.attention == "flash" and (self.backend in ("native", "reference") or self.device == "cpu"):
            raise ConfigError(
                "attention is flash, which is a GPU's; allowed on the processor: triton (its own kernels are "
                "used there); give --backend torch --device cuda"
            )
        if not DEVICES.fullmatch(self.device):
            raise ConfigError(f"device is {shown(self.device)}; allowed: auto, cpu, cuda, cuda:N")
        if self.device.startswith("cuda") and self.backend in ("native", "reference"):
            raise ConfigError(
                f"device is {self.device}, and backend is {self.backend}, which knows the processor alone; "
                "allowed with it: auto, cpu; give --backend torch"
            )
        if self.packed_cache and (self.backend in ("torch", "reference") or self.device.startswith("cuda")):
            raise ConfigError(
                "packed_cache is on, which the native backend alone knows; allowed with another: off; "
                "leave --packed-cache out, or give --backend native"
            )
        _one_of("block_size", self.block_size, BLOCK_SIZES)
        _one_of("pooling", self.pooling, POOLINGS)
        _one_of("speculate", self.speculate, SPECULATE)
        _one_of("tool_parser", self.tool_parser, (None, *TOOL_PARSERS))
        _within("context_length", self.context_length, 16, 10_000_000)
        _within("kv_memory", self.kv_memory_bytes, 2**16, 2**50)
        _within("kv_ready", self.kv_ready_bytes, 0, 2**50)
        _within("disk_size", self.disk_size_bytes, 2**20, 2**50)
        _within("host_cache", self.host_cache_bytes, 0, 2**50)
        _within("disk_max_age", self.disk_max_age_days, 0, 100_000)
        _within("idle_return", self.idle_return_s, 0, 10_000_000)
        _within("memory_reserve", self.memory_reserve_bytes, 0, 2**50)
        _within("pin_memory", self.pin_memory_bytes, 0, 2**50)
        _within("session_ttl", self.session_ttl_s, 1, 30 * 86_400)
        _within("max_seqs", self.max_seqs, 1, 4096)
        _within("step_tokens", self.step_tokens, 1, 65_536)
        _within("max_queue", self.max_queue, 0, 1_000_000)
        _within("threads", self.threads, 1, 1024)
        _within("overlap", self.overlap, 0, 1)
        if self.disk_cache is not None:
            folder_of("disk_cache", self.disk_cache)

    @property
    def disk_folder(self) -> Path | None:
        """Of the disk cache, without ~."""
        return None if self.disk_cache is None else folder_of("disk_cache", self.disk_cache)


def _one_of(name: str, given: object, allowed: tuple[object, ...]) -> None:
    if given not in allowed:
        raise ConfigError(f"{name} is {shown(given)}; allowed: {', '.join(map(str, allowed))}")


def _within(name: str, given: int | None, low: int, high: int) -> None:
    if given is not None and not low <= given <= high:
        raise ConfigError(f"{name} is {shown(given)}; allowed: {low:,} to {high:,}")
