"""The settings of an engine, each with its default, bounds and help.

A setting that can be computed is None by default, and `serving/start.py` computes it from the machine and the
model. `octavo/setting.py` documents what a definition here creates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError, shown
from octavo.files import folder_of
from octavo.setting import check, setting
from octavo.tools.formats import FORMAT_NAMES
from octavo.tools.thinking import THINKING_NAMES
from octavo.units import parse_seconds

BACKENDS = ("auto", "native", "torch", "reference")
DEVICES = re.compile(r"auto|cpu|cuda(:[0-9]{1,2})?")
WEIGHTS = ("auto", "f32", "bf16", "int8", "q4")
HOST_KV_KINDS = ("f32", "bf16", "int8")
KV_KINDS = (*HOST_KV_KINDS, "fp16", "fp8")  # the last two only on a device
SESSION_TTL_S = 86_400
# Settings that change the times of steps and transfers, or the sizes of tiers: the key of a calibration.
MEASURED = (
    *("weights", "kv", "backend", "device", "attention", "tensor_parallel_size", "threads"),
    *("max_seqs", "step_tokens", "context_length", "kv_memory_bytes"),
    *("host_cache_bytes", "disk_cache", "disk_size_bytes"),
)


def backend_of(name: str, source: str) -> str:
    """The backend's name. Raises ConfigError for a former name."""
    if name == "cpu":
        raise ConfigError(f"{source} is 'cpu', which is called native now; allowed: {', '.join(BACKENDS)}")
    return name


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How to start an engine. Raises ConfigError when a value is out of its bounds."""

    weights: str = setting(
        "auto", "How weights are stored in memory; auto: as in the file.", choices=WEIGHTS, group="Model"
    )
    packed_cache: bool = setting(
        False,
        "Keep packed weights on disk, so that later starts need not pack them.",
        more="; the native backend maps them from `packed` in the cache folder (`OCTAVO_CACHE`) "
        "([files.md](files.md))",
    )
    context_length: int | None = setting(
        None,
        "Tokens of prompt and output together.",
        more="; more than the model's own only if its configuration scales positions",
        bounds=(16, 10_000_000),
        unset="the model's",
    )
    chat_template: str | None = setting(
        None,
        "The chat template: a Jinja file, or a well-known name (chatml, llama3, mistral, gemma, phi3, "
        "zephyr, granite and others; docs/chat.md).",
        more=": [chat.md](chat.md)",
        metavar="FILE|NAME",
        unset="the model's",
        allowed="a file, a name, or (in Python) the Jinja text itself",
    )
    tool_parser: str | None = setting(
        None,
        "The model's format of tool calls.",
        choices=tuple(FORMAT_NAMES),
        metavar="NAME",
        unset="that of its chat template, else hermes",
    )
    reasoning_parser: str | None = setting(
        None,
        "The model's format of thinking before the answer.",
        choices=tuple(THINKING_NAMES),
        metavar="NAME",
        unset="that of its chat template",
    )
    pooling: str = setting(
        "last",
        "The pooling of embeddings if a request does not name one: the hidden row of the last token, or the "
        "mean of all.",
        more=" ([embeddings](embeddings.md))",
        choices=("last", "mean"),
    )
    served_name: str | None = setting(
        None, "The name in /v1/models.", metavar="NAME", unset="the model's", allowed="text"
    )

    kv: str = setting(
        "bf16",
        "How K and V are stored; fp16 and fp8 only with torch.",
        choices=KV_KINDS,
        allowed="f32, bf16, int8; with torch also fp16, fp8",
        group="KV memory",
    )
    kv_memory_bytes: int | None = setting(
        None,
        "Memory for K and V, such as 2GiB.",
        more=". The default on a GPU is the free memory, less the measured need of steps",
        bounds=(2**16, 2**50),
        unset="a quarter of the available memory; on a GPU nearly all",
    )
    pin_memory_bytes: int | None = setting(
        None, "Memory that all pins together may hold.", unset="half of the KV memory"
    )
    session_ttl_s: int = setting(
        SESSION_TTL_S, "Seconds that a chat session lives after its last turn.", bounds=(1, 30 * 86_400)
    )
    idle_return_s: int = setting(
        300,
        "Seconds without work until unused memory returns to the system; 0: never.",
        bounds=(0, 10_000_000),
    )
    memory_reserve_bytes: int | None = setting(
        None,
        "Memory to leave to other processes: with less available the KV memory shrinks; 0: never.",
        unset="5 % of the machine, at most 512 MiB",
    )

    host_cache_bytes: int = setting(
        0,
        "Host memory for blocks that do not fit into a GPU's KV memory; 0: none.",
        more=". Blocks move there before the disk, if there is one. On a CPU use `--kv-memory` instead",
        group="Offload tiers",
    )
    disk_cache: str | None = setting(
        None,
        "Folder for blocks that do not fit into memory; they survive a restart.",
        metavar="FOLDER",
        allowed="a folder",
    )
    disk_size_bytes: int = setting(20 * 2**30, "Size of its file, allocated at start.", bounds=(2**20, 2**50))
    disk_max_age_days: int = setting(
        30,
        "Days without use after which blocks on disk, and other models' caches in the folder, are removed; "
        "0: never.",
        bounds=(0, 100_000),
    )
    long_context: bool = setting(
        True,
        "Accept requests larger than the KV memory if an offload tier has room for their oldest blocks, "
        "which attention reads there.",
        more=" ([memory.md](memory.md#sequences-larger-than-the-pool))",
    )

    backend: str = setting(
        "auto",
        "native (the processor's kernels), torch (a GPU), reference (NumPy; slow). auto: torch if it finds a "
        "GPU, else native.",
        more=" ([gpu.md](gpu.md))",
        choices=BACKENDS,
        read=backend_of,
        group="Computing",
    )
    device: str = setting(
        "auto",
        "Where torch computes: auto, cpu, cuda or cuda:1.",
        more="; cpu with torch is slow, for tests",
        metavar="NAME",
        allowed="auto, cpu, cuda, cuda:N",
    )
    attention: str = setting(
        "triton",
        "Attention on a GPU: Octavo's exact kernels, or torch's FlashAttention if it supports block tables.",
        choices=("triton", "flash"),
    )
    tensor_parallel_size: int = setting(
        1,
        "GPUs that compute one model together, each with a part of every weight. Answers stay bitwise equal.",
        more=" ([gpu.md](gpu.md#several-gpus)). With `--backend torch --device cpu`: processes, for tests",
        short="-tp",
        bounds=(1, 64),
    )
    rank_timeout_s: int = setting(
        60, "Seconds that one of these GPUs may wait for the others in a step.", bounds=(5, 3600)
    )
    threads: int | None = setting(None, "Compute threads.", bounds=(1, 1024), unset="one per core")
    max_seqs: int = setting(64, "Sequences that run at once.", bounds=(1, 4096))
    step_tokens: int = setting(512, "Maximum number of tokens per step.", bounds=(1, 65_536))
    max_queue: int = setting(1024, "Requests that may wait; more are refused (429).", bounds=(0, 1_000_000))
    prefix_caching: bool = setting(True, "Compute common prefixes of prompts once.")
    speculate: str = setting(
        "auto",
        "Speculative decoding: draft tokens and verify several per step; answers are the same. auto: when it "
        "is faster; ngram: whenever text repeats.",
        more=" ([speculation.md](speculation.md))",
        choices=("off", "auto", "ngram"),
    )
    pace: bool | None = setting(
        None,
        "Delay prompts so that running answers keep their speed.",
        unset="on in a server, off in scripts and `bench offline`",
    )
    target_itl_s: float | None = setting(
        None,
        "Keep the time between two tokens of an answer under this, such as 50ms, by delaying prompts, drafts "
        "and new sequences.",
        more=" ([operating.md](operating.md#a-target-for-tokens-time)); an operator changes it while serving",
        bounds=(0.001, 60.0),
        read=parse_seconds,
        metavar="TIME",
        unset="prompts are limited to a share of the step (`pace`)",
    )
    target_ttft_s: float | None = setting(
        None,
        "Predict each request's time to the first token, and count those later than this, such as 2s.",
        more=" ([operating.md](operating.md#a-target-for-first-tokens)). It cancels nothing, unlike a "
        "request's `ttft_timeout`",
        bounds=(0.001, 3600.0),
        read=parse_seconds,
        metavar="TIME",
        unset="none",
    )
    shed: bool = setting(
        False, "Refuse requests whose first token would come after --target-ttft, with 429 and a Retry-After."
    )
    record: Path | None = setting(
        None,
        "Record the scheduler's inputs, and each plan, in this file, which `octavo replay` runs again. "
        "It holds prompts and answers.",
        more=" as token ids ([operating.md](operating.md#record-and-replay)). An existing file becomes "
        "`FILE.1`",
    )
    record_tenants: bool = setting(False, "Let a recording hold the prompts and answers of all tenants.")
    kv_events: str | None = setting(
        None,
        "Publish added and removed blocks, for routers, at this ZeroMQ endpoint, such as "
        "tcp://127.0.0.1:5557. Events carry prompts and answers as token ids, in clear.",
        more=" ([operating](operating.md#routers-and-kv-events)); needs `octavo[events]`",
        metavar="ENDPOINT",
        unset="none",
        allowed="tcp://ADDRESS:PORT or ipc://PATH",
        group="Routers",
    )
    kv_events_replay: str | None = setting(
        None,
        "Answer routers that request past events at this endpoint, such as tcp://127.0.0.1:5558.",
        metavar="ENDPOINT",
        unset="none",
        allowed="tcp://ADDRESS:PORT or ipc://PATH",
    )
    kv_events_form: str = setting(
        "map",
        "The encoding of events: map, as in vLLM 0.33; array, for AIBrix.",
        more="; with array, a removal is published when no tier has the block",
        choices=("map", "array"),
    )
    kv_events_remote: bool = setting(
        False, "Let the endpoints of KV events be addresses that other machines can reach."
    )
    kv_events_key_file: Path | None = setting(
        None,
        "File with a key of at least 32 bytes, the same on all replicas, that enters hashes and tags of KV "
        "events; needed with tenants.",
        allowed="a file",
    )
    kv_events_tenants: tuple[str, ...] = setting(
        (), "Publish only blocks of these tenants; repeatable.", metavar="NAME", unset="of all"
    )

    # Bytes of the KV memory that are allocated at start, so that prompts do not wait for them.
    kv_ready_bytes: int = setting(
        0, removed="a server takes the first GiB of its KV memory at start, the rest when first used"
    )
    block_size: int = setting(16, choices=(16, 32, 64), removed="a block holds 16 tokens")
    # 1: the next step is planned while one runs; None: 1 on a GPU, else 0.
    overlap: int | None = setting(
        None,
        bounds=(0, 1),
        removed="steps overlap on a GPU, where it is faster, and not on a processor, where it is slower",
    )

    def __post_init__(self) -> None:
        backend_of(self.backend, "backend")
        check(self)
        if self.attention == "flash" and (self.backend in ("native", "reference") or self.device == "cpu"):
            raise ConfigError(
                "attention is flash, which needs a GPU; allowed on a processor: triton (the processor's "
                "kernels are used there); give --backend torch --device cuda"
            )
        self._check_ranks()
        if not DEVICES.fullmatch(self.device):
            raise ConfigError(f"device is {shown(self.device)}; allowed: auto, cpu, cuda, cuda:N")
        if self.device.startswith("cuda") and self.backend in ("native", "reference"):
            raise ConfigError(
                f"device is {self.device}, and backend is {self.backend}, which supports only processors; "
                "allowed with it: auto, cpu; give --backend torch"
            )
        if self.packed_cache and (self.backend in ("torch", "reference") or self.device.startswith("cuda")):
            raise ConfigError(
                "packed_cache is on, which needs the native backend; allowed with another: off; leave "
                "--packed-cache out, or give --backend native"
            )
        if self.disk_cache is not None:
            folder_of("disk_cache", self.disk_cache)

    def _check_ranks(self) -> None:
        """Raise ConfigError for settings that several ranks do not support."""
        if self.tensor_parallel_size == 1:
            return
        given = f"tensor_parallel_size is {self.tensor_parallel_size}"
        if self.backend in ("native", "reference"):
            raise ConfigError(
                f"{given}, and backend is {self.backend}, which computes on one processor; allowed with it: "
                "1; give --backend torch"
            )
        if self.attention == "flash":
            raise ConfigError(
                f"{given}, and attention is flash, which supports one GPU; allowed with several: triton"
            )

    @property
    def disk_folder(self) -> Path | None:
        """The folder of the disk cache, without ~."""
        return None if self.disk_cache is None else folder_of("disk_cache", self.disk_cache)
