"""Every setting of an engine, each with its default, its bounds and its help, in one place.

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
KV_KINDS = (*HOST_KV_KINDS, "fp16", "fp8")  # the last two on a device alone
SESSION_TTL_S = 86_400
# Settings that change what steps and transfers take, or how much a server holds: a calibration is theirs.
MEASURED = (
    *("weights", "kv", "backend", "device", "attention", "tensor_parallel_size", "threads"),
    *("max_seqs", "step_tokens", "context_length", "kv_memory_bytes"),
    *("host_cache_bytes", "disk_cache", "disk_size_bytes"),
)


def backend_of(name: str, source: str) -> str:
    """The same name. Raises ConfigError for one that was renamed."""
    if name == "cpu":
        raise ConfigError(f"{source} is 'cpu', which is called native now; allowed: {', '.join(BACKENDS)}")
    return name


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How to start an engine. Raises ConfigError when a value is out of its bounds."""

    weights: str = setting(
        "auto", "How weights are held; auto: as in the file.", choices=WEIGHTS, group="Model"
    )
    packed_cache: bool = setting(
        False,
        "Keep packed weights on disk, so that later starts need not pack them.",
        more="; they are mapped from `packed` of the cache folder (`OCTAVO_CACHE`), by the native backend "
        "alone ([files.md](files.md))",
    )
    context_length: int | None = setting(
        None,
        "Tokens of prompt and output together.",
        more="; more than the model's own only where its configuration scales positions",
        bounds=(16, 10_000_000),
        unset="the model's",
    )
    chat_template: str | None = setting(
        None,
        "Write chats with this Jinja file, or a well-known template (chatml, llama3, mistral, gemma, phi3, "
        "zephyr, granite and others; docs/chat.md).",
        more=": [chat.md](chat.md)",
        metavar="FILE|NAME",
        unset="the model's",
        allowed="a file, a name, or (in Python) the Jinja text itself",
    )
    tool_parser: str | None = setting(
        None,
        "How the model writes tool calls.",
        choices=tuple(FORMAT_NAMES),
        metavar="NAME",
        unset="as its chat template writes them, else hermes",
    )
    reasoning_parser: str | None = setting(
        None,
        "How the model marks what it thinks before it answers.",
        choices=tuple(THINKING_NAMES),
        metavar="NAME",
        unset="as its chat template writes it",
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
        "How K and V are held; fp16 and fp8 with torch alone.",
        choices=KV_KINDS,
        allowed="f32, bf16, int8; with torch also fp16, fp8",
        group="KV memory",
    )
    kv_memory_bytes: int | None = setting(
        None,
        "Memory for K and V, such as 2GiB.",
        more=". Of a GPU's by default what is free, less what steps are measured to need",
        bounds=(2**16, 2**50),
        unset="a quarter of what is available; of a GPU's nearly all",
    )
    pin_memory_bytes: int | None = setting(
        None, "Memory that all pins together may keep.", unset="half of the KV memory"
    )
    session_ttl_s: int = setting(
        SESSION_TTL_S, "Seconds that a chat session lives after its last turn.", bounds=(1, 30 * 86_400)
    )
    idle_return_s: int = setting(
        300,
        "Seconds without work until unused memory goes back to the system; 0: never.",
        bounds=(0, 10_000_000),
    )
    memory_reserve_bytes: int | None = setting(
        None,
        "Memory to leave to others: with less available the KV memory shrinks; 0: never.",
        unset="5 % of the machine, at most 512 MiB",
    )

    host_cache_bytes: int = setting(
        0,
        "Host memory for blocks that do not fit into a GPU's KV memory; 0: none.",
        more=". It comes before the disk, if there is one. On a CPU the same memory serves better as "
        "`--kv-memory`",
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
        "Days without use after which blocks on disk, and what other models left in the folder, are removed; "
        "0: never.",
        bounds=(0, 100_000),
    )
    long_context: bool = setting(
        True,
        "Accept requests larger than the KV memory if there is a disk (or host memory) for their oldest "
        "blocks, which attention reads there.",
        more=" ([memory.md](memory.md#sequences-larger-than-the-pool))",
    )

    backend: str = setting(
        "auto",
        "native (the processor's kernels), torch (a GPU), reference (NumPy; slow). auto: torch where it sees "
        "a GPU, else native.",
        more=" ([gpu.md](gpu.md))",
        choices=BACKENDS,
        read=backend_of,
        group="Computing",
    )
    device: str = setting(
        "auto",
        "Where torch computes: auto, cpu, cuda or cuda:1.",
        more="; cpu with torch is slow, and for tests",
        metavar="NAME",
        allowed="auto, cpu, cuda, cuda:N",
    )
    attention: str = setting(
        "triton",
        "A GPU's attention: Octavo's exact kernels, or torch's FlashAttention where it has block tables.",
        choices=("triton", "flash"),
    )
    tensor_parallel_size: int = setting(
        1,
        "GPUs that compute one model together: each has a part of every weight. Answers keep their bits.",
        more=" ([gpu.md](gpu.md#several-gpus)). With `--backend torch --device cpu`: processes, for tests",
        short="-tp",
        bounds=(1, 64),
    )
    rank_timeout_s: int = setting(
        60, "Seconds that one of these GPUs may wait for the others in a step.", bounds=(5, 3600)
    )
    threads: int | None = setting(None, "Threads that compute.", bounds=(1, 1024), unset="one per core")
    max_seqs: int = setting(64, "Sequences that run at once.", bounds=(1, 4096))
    step_tokens: int = setting(512, "Tokens computed in one step at most.", bounds=(1, 65_536))
    max_queue: int = setting(1024, "Requests that may wait; more are refused (429).", bounds=(0, 1_000_000))
    prefix_caching: bool = setting(True, "Compute common prefixes of prompts once.")
    speculate: str = setting(
        "auto",
        "Guess tokens and compute several in a step; answers are the same, sooner. auto: where it pays; "
        "ngram: wherever text repeats itself.",
        more=" ([speculation.md](speculation.md))",
        choices=("off", "auto", "ngram"),
    )
    pace: bool | None = setting(
        None,
        "Hold prompts back so that running answers keep pace.",
        unset="on in a server, off in scripts and `bench offline`",
    )
    target_itl_s: float | None = setting(
        None,
        "Keep the time between two tokens of an answer under this, such as 50ms: prompts, guesses and the "
        "next sequence wait for it.",
        more=" ([operating.md](operating.md#a-target-for-tokens-time)); an operator changes it while serving",
        bounds=(0.001, 60.0),
        read=parse_seconds,
        metavar="TIME",
        unset="prompts are held back by a share of the step (`pace`)",
    )
    target_ttft_s: float | None = setting(
        None,
        "Predict each request's time to the first token, and count those later than this, such as 2s.",
        more=" ([operating.md](operating.md#a-target-for-first-tokens)). It ends nothing: a request's "
        "`ttft_timeout` does",
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
        more=" as token ids ([operating.md](operating.md#record-and-replay)). A file that is there becomes "
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
        more="; with array a removal is published when no tier has the block any more",
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
        (), "Publish blocks of these tenants alone; may be repeated.", metavar="NAME", unset="of all"
    )

    # Bytes of the KV memory that are allocated at start, so that no prompt waits for them.
    kv_ready_bytes: int = setting(
        0, removed="a server takes the first GiB of its KV memory at start, the rest when first used"
    )
    block_size: int = setting(16, choices=(16, 32, 64), removed="a block holds 16 tokens")
    # 1: the next step is planned while one runs; None: 1 on a GPU, else 0.
    overlap: int | None = setting(
        None,
        bounds=(0, 1),
        removed="steps overlap on a GPU, where it pays, and do not on a processor, where it does not",
    )

    def __post_init__(self) -> None:
        backend_of(self.backend, "backend")
        check(self)
        if self.attention == "flash" and (self.backend in ("native", "reference") or self.device == "cpu"):
            raise ConfigError(
                "attention is flash, which is a GPU's; allowed on the processor: triton (its own kernels are "
                "used there); give --backend torch --device cuda"
            )
        self._check_ranks()
        if not DEVICES.fullmatch(self.device):
            raise ConfigError(f"device is {shown(self.device)}; allowed: auto, cpu, cuda, cuda:N")
        if self.device.startswith("cuda") and self.backend in ("native", "reference"):
            raise ConfigError(
                f"device is {self.device}, and backend is {self.backend}, which knows the processor alone; "
                "allowed with it: auto, cpu; give --backend torch"
            )
        if self.packed_cache and (self.backend in ("torch", "reference") or self.device.startswith("cuda")):
            raise ConfigError(
                "packed_cache is on, which the native backend alone knows; allowed with another: off; leave "
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
                f"{given}, and attention is flash, which one GPU alone has; allowed with several: triton"
            )

    @property
    def disk_folder(self) -> Path | None:
        """The folder of the disk cache, without ~."""
        return None if self.disk_cache is None else folder_of("disk_cache", self.disk_cache)
