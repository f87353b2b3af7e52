"""The command line's options, each written once, and how they become `StartOptions`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from octavo.config import StartOptions
    from octavo.server.settings import ServerSettings

ENGINE_PANEL = _ENGINE = "Engine"
_SAMPLING = "Sampling"

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="Alias, .gguf file, folder, or Hugging Face id; folder:Q4_K_M and owner/name:Q4_K_M name one of "
        "several. Default: smollm2-135m.",
        show_default=False,
    ),
]
File = Annotated[
    str | None,
    typer.Option(
        metavar="NAME.gguf",
        help="The file to take, where MODEL is a folder or repository with several.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        help="How weights are held: f32, auto (as in the file), bf16, int8, q4.", rich_help_panel=_ENGINE
    ),
]
PackedCache = Annotated[
    bool,
    typer.Option(
        "--packed-cache/--no-packed-cache",
        help="Keep the weights packed on disk beside the first start, so that later ones need not pack them.",
        rich_help_panel=_ENGINE,
    ),
]
Kv = Annotated[
    str,
    typer.Option(
        help="How K and V are held: f32, bf16, int8; with torch also fp16, fp8.", rich_help_panel=_ENGINE
    ),
]
Backend = Annotated[
    str,
    typer.Option(
        help="native (the processor), torch (a GPU), reference (NumPy; slow). auto: torch where it sees a "
        "GPU, else native.",
        rich_help_panel=_ENGINE,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda or cuda:1; --backend torch --device cpu is slow.", rich_help_panel=_ENGINE
    ),
]
Attention = Annotated[
    str,
    typer.Option(help="A GPU's attention: triton, or flash (where torch has it).", rich_help_panel=_ENGINE),
]
ContextLength = Annotated[
    int | None,
    typer.Option(help="Tokens of prompt and output together. Default: the model's.", rich_help_panel=_ENGINE),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory for KV blocks, such as 2GiB. Default: a quarter of what is available.",
        rich_help_panel=_ENGINE,
    ),
]
KV_READY = "1GiB"  # some 46,000 tokens of the default model: a few seconds of the system at worst
KvReady = Annotated[
    str,
    typer.Option(
        help="KV memory to take from the system at start, such as 1GiB; the rest is taken when first used.",
        rich_help_panel=_ENGINE,
    ),
]
PinMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory that pins may keep, such as 512MiB. Default: half of the KV memory.",
        rich_help_panel=_ENGINE,
    ),
]
IdleReturn = Annotated[
    int,
    typer.Option(
        help="Seconds without work until unused KV memory goes back to the system; 0: never.",
        rich_help_panel=_ENGINE,
    ),
]
MemoryReserve = Annotated[
    str | None,
    typer.Option(
        help="Memory to leave to others: with less available the KV pool steps back; 0: never. "
        "Default: 5 % of the machine, at most 512MiB.",
        rich_help_panel=_ENGINE,
    ),
]
HostCache = Annotated[
    str | None,
    typer.Option(
        help="Host memory for KV blocks that the pool has no room for, such as 4GiB. Default: none; on a CPU "
        "the same memory serves better as --kv-memory.",
        rich_help_panel=_ENGINE,
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on; loopback by default.")]
Port = Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65_535)]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|NAME",
        help="Write chats with this Jinja file, or a well-known template (chatml, llama3, mistral, gemma, "
        "phi3, zephyr, granite and others; docs/chat.md). Default: the model's own.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]
ToolParser = Annotated[
    str | None,
    typer.Option(
        help="How the model writes tool calls: hermes, llama3_json, pythonic, mistral, mistral_args, "
        "deepseek_v3, deepseek_v31 or json. Default: as its chat template tells, else hermes."
    ),
]
ServedName = Annotated[str | None, typer.Option(help="The name in /v1/models. Default: the model's own.")]
Pooling = Annotated[
    str,
    typer.Option(
        help="What embeddings are made of where a client does not say: last (the last token's hidden row) "
        "or mean (that of all)."
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(help="Seconds that running requests may take to end after SIGTERM.", min=0, max=3600),
]
_ACCESS = "Who may come in"
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        help="A key that clients must send; repeatable. [env var: OCTAVO_API_KEY]",
        show_default=False,
        rich_help_panel=_ACCESS,
    ),
]
ApiKeyFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Keys, one a line.", show_default=False, rich_help_panel=_ACCESS),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Let everybody in who reaches --host.", rich_help_panel=_ACCESS),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Another name of this server, for Host headers, such as octavo; repeatable.",
        show_default=False,
        rich_help_panel=_ACCESS,
    ),
]
AllowedOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="A web page that browsers may ask from, such as https://app.example (CORS); repeatable.",
        show_default=False,
        rich_help_panel=_ACCESS,
    ),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str, typer.Option(help="text, or json for machines.")]
Tenants = Annotated[
    str | None,
    typer.Option(
        help="File that says who may use the server, and how much; SIGHUP reads it again. Default: none.",
        show_default=False,
        rich_help_panel=_ACCESS,
    ),
]
DiskCache = Annotated[
    str | None,
    typer.Option(
        help="Folder for KV blocks that memory has no room for; they survive a restart. Default: none.",
        rich_help_panel=_ENGINE,
    ),
]
DiskSize = Annotated[str, typer.Option(help="Size of its one file, such as 20GiB.", rich_help_panel=_ENGINE)]
DiskMaxAge = Annotated[
    int,
    typer.Option(
        help="Days without use after which blocks on disk, and those of other models, are removed; 0: never.",
        rich_help_panel=_ENGINE,
    ),
]
SessionTtl = Annotated[
    int, typer.Option(help="Seconds that a chat session lives after its last turn.", rich_help_panel=_ENGINE)
]
BlockSize = Annotated[int, typer.Option(help="Tokens in a block.", rich_help_panel=_ENGINE)]
MaxSeqs = Annotated[int, typer.Option(help="Sequences that run at once.", rich_help_panel=_ENGINE)]
StepTokens = Annotated[
    int, typer.Option(help="Positions computed in a step at most.", rich_help_panel=_ENGINE)
]
MaxQueue = Annotated[int, typer.Option(help="Requests that may wait.", rich_help_panel=_ENGINE)]
Threads = Annotated[
    int | None, typer.Option(help="Native threads. Default: one per core.", rich_help_panel=_ENGINE)
]
Overlap = Annotated[
    int | None,
    typer.Option(
        help="1: plan a step while one runs. Default: 1 on a GPU, else 0.",
        show_default=False,
        rich_help_panel=_ENGINE,
    ),
]
Speculate = Annotated[
    str,
    typer.Option(
        help="Guess tokens and compute several in a step; answers are the same, sooner: off, auto (where it "
        "pays) or ngram (wherever text repeats itself).",
        rich_help_panel=_ENGINE,
    ),
]
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--prefix-caching/--no-prefix-caching",
        help="Share the blocks of equal prefixes.",
        rich_help_panel=_ENGINE,
    ),
]
PrefillBudget = Annotated[
    bool,
    typer.Option(
        "--pace/--no-pace",
        help="Hold prompts back so that running answers keep pace.",
        rich_help_panel=_ENGINE,
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="JSON lines and nothing else.")]

MaxTokens = Annotated[int | None, typer.Option(help="Tokens to generate at most.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float, typer.Option(help="Nucleus: 1 keeps all.", rich_help_panel=_SAMPLING)]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest; 0 keeps all.", rich_help_panel=_SAMPLING)]
Seed = Annotated[int | None, typer.Option(help="The same seed, the same text.", rich_help_panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="End before this text; repeatable.", show_default=False, rich_help_panel=_SAMPLING),
]


def named(model: str | None, file: str | None) -> str | None:
    """The model, with the file that `--file` names. Raises ConfigError where it could not be one of its."""
    if file is None:
        return model
    from octavo.model.hub.paths import with_file

    return with_file(model, file)


def numbers(text: str, setting: str) -> tuple[int, ...]:
    """ "1,8,32" as (1, 8, 32). Raises ConfigError unless all are integers from 1 to 999,999,999."""
    from octavo.errors import ConfigError, shown

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) >= 1 for part in parts):
        raise ConfigError(f"{setting} is {shown(text)}; allowed: numbers of at least 1, such as 1,8,32")
    return tuple(int(part) for part in parts)


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Who may come in, as the command line has it."""

    api_keys: list[str] | None
    api_key_file: str | None
    tenants: str | None
    insecure: bool
    allowed_hosts: list[str] | None
    allowed_origins: list[str] | None


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What computes, as the command line has it."""

    backend: str = "auto"
    device: str = "auto"
    attention: str = "triton"
    packed_cache: bool = False
    overlap: int | None = None


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """How clients meet the model, and what they may leave behind, as the command line has it."""

    tool_parser: str | None = None
    name: str | None = None
    pooling: str = "last"
    chat_template: str | None = None


@dataclass(frozen=True, slots=True)
class ReturnOptions:
    """When the pool's memory goes back to the system, as the command line has it."""

    idle: int = 300
    reserve: str | None = None


@dataclass(frozen=True, slots=True)
class KeptOptions:
    """What is kept of what was computed and asked, as the command line has it."""

    pin_memory: str | None = None
    session_ttl: int = 86_400
    prefix_caching: bool = True
    max_queue: int = 1024


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What lies below the pool, as the command line has it."""

    host_cache: str | None = None
    disk_cache: str | None = None
    disk_size: str = "20GiB"
    disk_max_age: int = 30


def server_settings(host: str, access: AccessOptions, drain_timeout_s: float) -> ServerSettings:
    """The edge's settings. Raises ConfigError."""
    from octavo.server.keys import collect_keys
    from octavo.server.settings import ServerSettings
    from octavo.server.tenant_registry import TenantRegistry

    key_file = None if access.api_key_file is None else Path(access.api_key_file)
    return ServerSettings(
        host=host,
        api_keys=collect_keys(access.api_keys or [], key_file),
        roster=None if access.tenants is None else TenantRegistry(Path(access.tenants)),
        insecure=access.insecure,
        allowed_hosts=tuple(access.allowed_hosts or ()),
        allowed_origins=tuple(access.allowed_origins or ()),
        drain_timeout_s=drain_timeout_s,
    )


def configure_logs(level: str, form: str) -> None:
    """From here on the process logs. Raises ConfigError."""
    from octavo.server.logs import configure_logging

    configure_logging(level, form)


def start_options(
    *,
    weights: str,
    where: BackendOptions,
    context_length: int | None = None,
    kv_memory: str | None = None,
    threads: int | None = None,
    kv: str = "bf16",
    kv_ready: str | None = None,
    block_size: int = 16,
    kept: KeptOptions | None = None,
    returned: ReturnOptions | None = None,
    tiers: TierOptions | None = None,
    max_seqs: int = 64,
    step_tokens: int = 512,
    speculate: str = "auto",
    pace: bool = True,
    served: ServedOptions | None = None,
) -> StartOptions:
    """The engine's settings from the command line's. Raises ConfigError."""
    from octavo.config import StartOptions

    tiers, served, returned = tiers or TierOptions(), served or ServedOptions(), returned or ReturnOptions()
    kept = kept or KeptOptions()
    return StartOptions(
        weights=weights,
        packed_cache=where.packed_cache,
        kv=kv,
        backend=where.backend,
        device=where.device,
        attention=where.attention,
        context_length=context_length,
        kv_memory_bytes=_bytes(kv_memory, "--kv-memory"),
        kv_ready_bytes=_bytes(kv_ready, "--kv-ready") or 0,
        block_size=block_size,
        disk_cache=tiers.disk_cache,
        host_cache_bytes=_bytes(tiers.host_cache, "--host-cache") or 0,
        disk_max_age_days=tiers.disk_max_age,
        disk_size_bytes=_bytes(tiers.disk_size, "--disk-size") or 0,
        idle_return_s=returned.idle,
        memory_reserve_bytes=_bytes(returned.reserve, "--memory-reserve"),
        pin_memory_bytes=_bytes(kept.pin_memory, "--pin-memory"),
        session_ttl_s=kept.session_ttl,
        max_seqs=max_seqs,
        step_tokens=step_tokens,
        max_queue=kept.max_queue,
        threads=threads,
        overlap=where.overlap,
        prefix_caching=kept.prefix_caching,
        speculate=speculate,
        pace=pace,
        chat_template=served.chat_template,
        tool_parser=served.tool_parser,
        served_name=served.name,
        pooling=served.pooling,
    )


def _bytes(text: str | None, flag: str) -> int | None:
    """Raises ConfigError that names the flag."""
    from octavo.units import parse_bytes

    return None if text is None else parse_bytes(text, flag)
