"""Every setting of an engine, each with its default, its bounds and its words, in one place.

A setting that can be computed is None by default, and `serving/start.py` computes it from the machine and
the model. `octavo/setting.py` says what a line here becomes, and how to add one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError, shown
from octavo.files import folder_of
from octavo.setting import About, Gone, Unit, check, gone, setting
from octavo.tools.formats import FORMAT_NAMES
from octavo.tools.thinking import THINKING_NAMES

BLOCK_SIZES = (16, 32, 64)
BACKENDS = ("auto", "native", "torch", "reference")
DEVICES = re.compile(r"auto|cpu|cuda(:[0-9]{1,2})?")
ATTENTIONS = ("triton", "flash")
WEIGHTS = ("auto", "f32", "bf16", "int8", "q4")
HOST_KV_KINDS = ("f32", "bf16", "int8")
KV_KINDS = (*HOST_KV_KINDS, "fp16", "fp8")  # the last two on a device alone
TOOL_PARSERS = tuple(FORMAT_NAMES)
REASONING_PARSERS = tuple(THINKING_NAMES)
POOLINGS = ("last", "mean")
SPECULATE = ("off", "auto", "ngram")
SESSION_TTL_S = 86_400

MODEL, MEMORY, BELOW, COMPUTING = "Model", "KV memory", "Below the KV memory", "Computing"
_PIB = 2**50


def backend_of(name: str, source: str) -> str:
    """The same name. Raises ConfigError for one that is called otherwise now."""
    if name == "cpu":
        raise ConfigError(f"{source} is 'cpu', which is called native now; allowed: {', '.join(BACKENDS)}")
    return name


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How to start an engine. Raises ConfigError when a value is out of its bounds."""

    weights: str = setting(
        "auto", About("How weights are held; auto: as in the file.", MODEL, choices=WEIGHTS)
    )
    packed_cache: bool = setting(
        False,
        About(
            "Keep packed weights on disk, so that later starts need not pack them.",
            MODEL,
            docs="Keep the weights packed on disk, in `packed` of the cache folder (`OCTAVO_CACHE`), so that "
            "later starts map them instead of packing them ([files.md](files.md)); the native backend alone.",
        ),
    )
    context_length: int | None = setting(
        None,
        About(
            "Tokens of prompt and output together.",
            MODEL,
            low=16,
            high=10_000_000,
            default="the model's",
            docs="Tokens of prompt and output together; more than the model's own only where its "
            "configuration scales positions.",
        ),
    )
    chat_template: str | None = setting(
        None,
        About(
            "Write chats with this Jinja file, or a well-known template (chatml, llama3, mistral, gemma, "
            "phi3, zephyr, granite and others; docs/chat.md).",
            MODEL,
            metavar="FILE|NAME",
            default="the model's",
            allowed="a file, a name, or (in Python) the Jinja text itself",
            docs="What writes chats in place of the model's own template; the names are in "
            "[chat.md](chat.md).",
        ),
    )
    tool_parser: str | None = setting(
        None,
        About(
            "How the model writes tool calls.",
            MODEL,
            choices=TOOL_PARSERS,
            metavar="NAME",
            default="as its chat template writes them, else hermes",
        ),
    )
    reasoning_parser: str | None = setting(
        None,
        About(
            "How the model marks what it thinks before it answers.",
            MODEL,
            choices=REASONING_PARSERS,
            metavar="NAME",
            default="as its chat template writes it",
        ),
    )
    pooling: str = setting(
        "last",
        About(
            "What embeddings are made of where a client does not say: the hidden row of the last token, or "
            "the mean of all.",
            MODEL,
            choices=POOLINGS,
            docs="What [embeddings](embeddings.md) are made of where a client does not say: the hidden row "
            "of the last token, or the mean of all.",
        ),
    )
    served_name: str | None = setting(
        None, About("The name in /v1/models.", MODEL, metavar="NAME", default="the model's", allowed="text")
    )

    kv: str = setting(
        "bf16",
        About(
            "How K and V are held; fp16 and fp8 with torch alone.",
            MEMORY,
            choices=KV_KINDS,
            allowed="f32, bf16, int8; with torch also fp16, fp8",
            docs="How K and V are held.",
        ),
    )
    kv_memory_bytes: int | None = setting(
        None,
        About(
            "Memory for K and V, such as 2GiB.",
            MEMORY,
            low=2**16,
            high=_PIB,
            unit=Unit.BYTES,
            default="a quarter of what is available; of a GPU's nearly all",
            docs="Memory for blocks of K and V. Of a GPU's by default what is free, less a tenth or 2 GiB.",
        ),
    )
    pin_memory_bytes: int | None = setting(
        None,
        About(
            "Memory that all pins together may keep.",
            MEMORY,
            low=0,
            high=_PIB,
            unit=Unit.BYTES,
            default="half of the KV memory",
        ),
    )
    session_ttl_s: int = setting(
        SESSION_TTL_S,
        About(
            "Seconds that a chat session lives after its last turn.",
            MEMORY,
            low=1,
            high=30 * 86_400,
            unit=Unit.SECONDS,
        ),
    )
    idle_return_s: int = setting(
        300,
        About(
            "Seconds without work until unused memory goes back to the system; 0: never.",
            MEMORY,
            low=0,
            high=10_000_000,
            unit=Unit.SECONDS,
        ),
    )
    memory_reserve_bytes: int | None = setting(
        None,
        About(
            "Memory to leave to others: with less available the KV memory shrinks; 0: never.",
            MEMORY,
            low=0,
            high=_PIB,
            unit=Unit.BYTES,
            default="5 % of the machine, at most 512 MiB",
        ),
    )

    host_cache_bytes: int = setting(
        0,
        About(
            "Host memory for what a GPU's KV memory has no room for.",
            BELOW,
            low=0,
            high=_PIB,
            unit=Unit.BYTES,
            docs="Host memory for blocks that the KV memory has no room for; before the disk, if there is "
            "one; 0: none. On a CPU the same memory serves better as `--kv-memory`.",
        ),
    )
    disk_cache: str | None = setting(
        None,
        About(
            "Folder for what memory has no room for; it survives a restart.",
            BELOW,
            metavar="FOLDER",
            allowed="a folder",
            docs="Folder for blocks that memory has no room for; they survive a restart.",
        ),
    )
    disk_size_bytes: int = setting(
        20 * 2**30,
        About("Size of its one file, taken at start.", BELOW, low=2**20, high=_PIB, unit=Unit.BYTES),
    )
    disk_max_age_days: int = setting(
        30,
        About(
            "Days without use after which it is removed from disk; 0: never.",
            BELOW,
            low=0,
            high=100_000,
            unit=Unit.DAYS,
            docs="Days without use after which blocks on disk, and what other models left in the folder, "
            "are removed; 0: never.",
        ),
    )

    backend: str = setting(
        "auto",
        About(
            "native (the processor), torch (a GPU), reference (NumPy; slow). auto: torch where it sees a "
            "GPU, else native.",
            COMPUTING,
            choices=BACKENDS,
            read=backend_of,
            docs="native: the processor's kernels; torch: a GPU ([gpu.md](gpu.md)); reference: NumPy, slow; "
            "auto: torch where it sees a GPU, else native.",
        ),
    )
    device: str = setting(
        "auto",
        About(
            "Where torch computes: auto, cpu, cuda or cuda:1.",
            COMPUTING,
            metavar="NAME",
            allowed="auto, cpu, cuda, cuda:N",
            docs="Where torch computes; cpu with torch is slow, and for tests.",
        ),
    )
    attention: str = setting(
        "triton",
        About(
            "A GPU's attention: Octavo's exact kernels, or torch's FlashAttention.",
            COMPUTING,
            choices=ATTENTIONS,
            docs="A GPU's attention: Octavo's kernels (exact), or torch's FlashAttention where it has block "
            "tables.",
        ),
    )
    threads: int | None = setting(
        None, About("Threads that compute.", COMPUTING, low=1, high=1024, default="one per core")
    )
    max_seqs: int = setting(64, About("Sequences that run at once.", COMPUTING, low=1, high=4096))
    step_tokens: int = setting(
        512, About("Tokens computed in one step at most.", COMPUTING, low=1, high=65_536)
    )
    max_queue: int = setting(
        1024,
        About(
            "Requests that may wait; more are refused (429).",
            COMPUTING,
            low=0,
            high=1_000_000,
            docs="Requests that may wait; more get 429.",
        ),
    )
    prefix_caching: bool = setting(True, About("Compute what prompts begin with in common once.", COMPUTING))
    speculate: str = setting(
        "auto",
        About(
            "Guess tokens and compute several in a step; answers are the same, sooner. auto: where it pays; "
            "ngram: wherever text repeats itself.",
            COMPUTING,
            choices=SPECULATE,
            docs="Guess tokens and compute several in a step ([speculation.md](speculation.md)).",
        ),
    )
    pace: bool | None = setting(
        None,
        About(
            "Hold prompts back so that running answers keep pace.",
            COMPUTING,
            default="on in a server, off in scripts and `bench offline`",
        ),
    )

    record: Path | None = setting(
        None,
        About(
            "Record what the scheduler does in this file, which `octavo replay` runs again. It holds prompts "
            "and answers.",
            COMPUTING,
            metavar="FILE",
            docs="Record what the scheduler is given, and each plan, in this file, for `octavo replay` "
            "([operating.md](operating.md#record-and-replay)). It holds prompts and answers as token ids. A "
            "file that is there becomes `FILE.1`.",
        ),
    )
    record_tenants: bool = setting(
        False,
        About("Let a recording hold the prompts and answers of all tenants.", COMPUTING),
    )

    # Bytes of the KV memory that are taken from the system at start, before a prompt has to wait for them.
    kv_ready_bytes: int = gone(
        0,
        Gone("a server takes the first GiB of its KV memory at start, the rest when first used", Unit.BYTES),
    )
    block_size: int = gone(16, Gone("a block holds 16 tokens"))
    # 1: the next step is planned while one runs; None: 1 on a GPU, else 0.
    overlap: int | None = gone(
        None, Gone("steps overlap on a GPU, where it pays, and do not on a processor, where it does not")
    )

    def __post_init__(self) -> None:
        backend_of(self.backend, "backend")
        check(self)
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
        if self.block_size not in BLOCK_SIZES:
            raise ConfigError(f"block_size is {shown(self.block_size)}; allowed: 16, 32, 64")
        for name, given, high in (("kv_ready", self.kv_ready_bytes, _PIB), ("overlap", self.overlap, 1)):
            if given is not None and not 0 <= given <= high:
                raise ConfigError(f"{name} is {shown(given)}; allowed: 0 to {high:,}")
        if self.disk_cache is not None:
            folder_of("disk_cache", self.disk_cache)

    @property
    def disk_folder(self) -> Path | None:
        """Of the disk cache, without ~."""
        return None if self.disk_cache is None else folder_of("disk_cache", self.disk_cache)
