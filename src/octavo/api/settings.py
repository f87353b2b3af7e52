"""The settings of `LLM` and `AsyncLLM` by name: Octavo's own, and vLLM's.

    LLM("model", max_model_len=4096)  -->  StartOptions(context_length=4096)

A setting of vLLM's becomes one of Octavo's, or is ignored because it changes no answer, or is refused by name
unless it has its default. `None` equals absence. The fields of `Settings` show the treatment of each.
`EngineArgs` holds settings as a value, which vLLM's programs pass around.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypedDict, Unpack, cast, get_args, get_type_hints

from octavo.config import StartOptions
from octavo.errors import ConfigError, is_number, shown
from octavo.params import SEED_MAX
from octavo.setting import removed_settings_of, settings_of, suggestions

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

Int = int | None
Float = float | None
Text = str | None
Switch = bool | None
Object = Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Vllm:
    """The treatment of one of vLLM's settings."""

    words: str
    becomes: str = ""  # a field of `StartOptions`
    read: Callable[[object], object] = lambda given: given  # its value, None for the default; or ValueError
    only: tuple[object, ...] | None = None  # the accepted values; None: any

    @property
    def treatment(self) -> str:
        """A short text for the documentation."""
        if self.becomes:
            return f"`{self.becomes}`"
        if not self.only:
            return "any value" if self.only is None else "refused"
        return "only " + ", ".join(f"`{value!r}`" for value in self.only[:3]) + " ..." * (len(self.only) > 3)


def _of_table(**table: str | None) -> Callable[[object], object]:
    def read(given: object) -> object:
        name = str(given).removeprefix("torch.")
        if name not in table:
            raise ValueError(", ".join(table))
        return table[name]

    return read


def _first_name(given: object) -> object:
    return given[0] if isinstance(given, list | tuple) and given else given


def _ngram(given: object) -> object:
    if not isinstance(given, Mapping) or given.get("method") not in ("ngram", "[ngram]"):
        raise ValueError('{"method": "ngram"}')
    return "ngram"


_dtype = _of_table(auto=None, float32="f32", float="f32", bfloat16="bf16")
_quantization = _of_table(int8="int8", q4="q4", int4="q4", gguf=None)
_kv_dtype = _of_table(
    auto=None, float32="f32", bfloat16="bf16", int8="int8", float16="fp16", fp8="fp8", fp8_e4m3="fp8"
)
_ONE_DEVICE = "one process leads a model, on one device or with tensor_parallel_size on several"
_TEXT_ONLY = "models here read text alone"
_NO_LORA = "adapters are not built; merge it into the weights"


class OwnSettings(TypedDict, total=False):
    """The settings of `StartOptions`, each with its own name: repeated for type checkers, which cannot derive
    them from its fields."""

    weights: str | None
    packed_cache: bool | None
    context_length: int | None
    chat_template: str | None
    tool_parser: str | None
    reasoning_parser: str | None
    pooling: str | None
    served_name: str | None
    backend: str | None
    device: str | None
    attention: str | None
    tensor_parallel_size: int | None
    rank_timeout_s: int | None
    threads: int | None
    max_seqs: int | None
    step_tokens: int | None
    target_itl_s: float | None
    target_ttft_s: float | None
    shed: bool | None
    max_queue: int | None
    long_context: bool | None
    prefix_caching: bool | None
    speculate: str | None
    pace: bool | None
    record: Path | None
    record_tenants: bool | None
    kv: str | None
    kv_memory_bytes: int | None
    pin_memory_bytes: int | None
    session_ttl_s: int | None
    idle_return_s: int | None
    memory_reserve_bytes: int | None
    host_cache_bytes: int | None
    disk_cache: str | None
    disk_size_bytes: int | None
    disk_max_age_days: int | None
    kv_events: str | None
    kv_events_replay: str | None
    kv_events_form: str | None
    kv_events_remote: bool | None
    kv_events_key_file: Path | None
    kv_events_tenants: tuple[str, ...] | None


class Settings(OwnSettings, total=False):
    """All settings: Octavo's own, and vLLM's."""

    seed: Int  # of the requests without one, all together
    tokenizer: Text  # the model's own
    max_model_len: Annotated[Int, Vllm("tokens of prompt and output together", "context_length")]
    max_num_seqs: Annotated[Int, Vllm("sequences that run at once", "max_seqs")]
    max_num_batched_tokens: Annotated[Int, Vllm("positions computed in one step at most", "step_tokens")]
    dtype: Annotated[
        str | object, Vllm("how weights are held: auto, float32, bfloat16", "weights", read=_dtype)
    ]
    quantization: Annotated[Text, Vllm("int8, q4; gguf: as in the file", "weights", read=_quantization)]
    kv_cache_dtype: Annotated[Text, Vllm("how K and V are held", "kv", read=_kv_dtype)]
    kv_cache_memory_bytes: Annotated[Int, Vllm("bytes of KV blocks", "kv_memory_bytes")]
    enable_prefix_caching: Annotated[Switch, Vllm("share the blocks of equal prefixes", "prefix_caching")]
    served_model_name: Annotated[
        str | Sequence[str] | None, Vllm("the first, if there are several", "served_name", read=_first_name)
    ]
    speculative_config: Annotated[
        Object, Vllm('{"method": "ngram"}; how many tokens are guessed is measured', "speculate", read=_ngram)
    ]
    block_size: Annotated[Int, Vllm("a block holds 16 tokens; no answer depends on it")]
    tokenizer_mode: Annotated[Text, Vllm("the model's own tokenizer is used", only=("auto", "hf", "fast"))]
    skip_tokenizer_init: Annotated[Switch, Vllm("detokenize=False in SamplingParams", only=(False,))]
    tokenizer_revision: Annotated[Text, Vllm("give the folder of the revision as the model", only=())]
    revision: Annotated[Text, Vllm("give the folder of the revision as the model", only=("main",))]
    trust_remote_code: Annotated[Switch, Vllm("no code of a model is ever run, whether it might be or not")]
    hf_token: Annotated[bool | str | None, Vllm("the environment's HF_TOKEN is read", only=(False,))]
    hf_overrides: Annotated[Object, Vllm("change the model's config.json", only=({},))]
    load_format: Annotated[
        Text, Vllm("set by the files: safetensors, or GGUF", only=("auto", "safetensors", "gguf"))
    ]
    config_format: Annotated[Text, Vllm("set by the files", only=("auto", "hf"))]
    download_dir: Annotated[Text, Vllm("the environment's OCTAVO_CACHE is read", only=())]
    generation_config: Annotated[Text, Vllm("defaults are neutral; give SamplingParams", only=("vllm",))]
    override_generation_config: Annotated[Object, Vllm("give SamplingParams", only=({},))]
    runner: Annotated[Text, Vllm("one model generates and embeds", only=("auto", "generate", "pooling"))]
    task: Annotated[
        Text, Vllm("one model generates and embeds", only=("auto", "generate", "embed", "embedding"))
    ]
    convert: Annotated[Text, Vllm("any model embeds", only=("auto", "none", "embed"))]
    pooler_config: Annotated[object, Vllm("pooling: last or mean", only=())]
    gpu_memory_utilization: Annotated[Float, Vllm("what is there is measured; kv_memory_bytes bounds it")]
    swap_space: Annotated[Float, Vllm("what is preempted is computed again; host_cache_bytes keeps it")]
    cpu_offload_gb: Annotated[Float, Vllm("weights are on one device", only=(0,))]
    num_gpu_blocks_override: Annotated[Int, Vllm("kv_memory_bytes", only=())]
    pipeline_parallel_size: Annotated[Int, Vllm(_ONE_DEVICE, only=(1,))]
    data_parallel_size: Annotated[Int, Vllm(_ONE_DEVICE, only=(1,))]
    distributed_executor_backend: Annotated[object, Vllm(_ONE_DEVICE, only=("uni", "mp"))]
    disable_custom_all_reduce: Annotated[Switch, Vllm(_ONE_DEVICE)]
    enforce_eager: Annotated[Switch, Vllm("graphs change no answer")]
    compilation_config: Annotated[object, Vllm("kernels are compiled ahead")]
    max_seq_len_to_capture: Annotated[Int, Vllm("graphs change no answer")]
    attention_backend: Annotated[Text, Vllm("attention: triton or flash", only=())]
    attention_config: Annotated[object, Vllm("attention: triton or flash", only=({},))]
    enable_chunked_prefill: Annotated[Switch, Vllm("prompts are computed in chunks of step_tokens, always")]
    async_scheduling: Annotated[Switch, Vllm("steps overlap on a GPU; it changes no answer")]
    disable_async_output_proc: Annotated[Switch, Vllm("it changes no answer")]
    scheduling_policy: Annotated[Text, Vllm("requests have priorities, always", only=("fcfs", "priority"))]
    disable_log_stats: Annotated[Switch, Vllm("statistics are in engine.stats, and never logged")]
    disable_log_requests: Annotated[Switch, Vllm("requests are not logged")]
    enable_log_requests: Annotated[Switch, Vllm("requests are not logged", only=(False,))]
    max_logprobs: Annotated[Int, Vllm("20 at most", only=tuple(range(21)))]
    structured_outputs_config: Annotated[object, Vllm("llguidance compiles all grammars", only=({},))]
    guided_decoding_backend: Annotated[
        Text, Vllm("llguidance compiles all grammars", only=("auto", "guidance"))
    ]
    logits_processors: Annotated[
        Sequence[object] | None, Vllm("logit_bias, bad_words, structured_outputs", only=([], ()))
    ]
    enable_lora: Annotated[Switch, Vllm(_NO_LORA, only=(False,))]
    max_loras: Annotated[Int, Vllm(_NO_LORA)]
    max_lora_rank: Annotated[Int, Vllm(_NO_LORA)]
    limit_mm_per_prompt: Annotated[Object, Vllm(_TEXT_ONLY)]
    mm_processor_kwargs: Annotated[Object, Vllm(_TEXT_ONLY, only=({},))]
    allowed_local_media_path: Annotated[Text, Vllm(_TEXT_ONLY, only=("",))]
    enable_prompt_embeds: Annotated[Switch, Vllm(_TEXT_ONLY, only=(False,))]
    enable_sleep_mode: Annotated[Switch, Vllm("close() the LLM, and make another one", only=(False,))]
    kv_transfer_config: Annotated[
        object, Vllm("disk_cache keeps blocks for other processes to come", only=())
    ]


_HINTS = Settings.__annotations__
VLLM_SETTINGS: Mapping[str, Vllm] = {
    name: each for name, hint in _HINTS.items() for each in get_args(hint) if isinstance(each, Vllm)
}
_OWN = {own.field: own for own in settings_of(StartOptions)}


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The result of resolving settings."""

    options: StartOptions
    seed: int | None = None  # for requests without a seed; None: a random one each


def resolve_settings(
    model: str | None, options: StartOptions | None, settings: Mapping[str, object]
) -> ResolvedSettings:
    """The resolved settings, on top of `options`. Raises ConfigError."""
    given = {name: value for name, value in settings.items() if value is not None}
    seed, tokenizer = given.pop("seed", None), given.pop("tokenizer", None)
    if seed is not None and not (is_number(seed, whole=True) and isinstance(seed, int)):
        raise ConfigError(f"seed is {shown(seed)}; allowed: a whole number")
    if seed is not None and not -SEED_MAX <= seed <= SEED_MAX:
        raise ConfigError(f"seed is {shown(seed)}; allowed: {-SEED_MAX:,} to {SEED_MAX:,}")
    if tokenizer not in (None, model):
        raise ConfigError(f"tokenizer is {shown(tokenizer)}; allowed: the model's own, which is used")
    found: dict[str, object] = {}
    for name, value in given.items():
        field, meant = _resolve(name, value)
        if meant is None:
            continue
        if field in found and found[field] != meant:
            raise ConfigError(f"{name} and another name of {field} are given together; allowed: one of them")
        found[field] = _OWN[field].take(meant, name, "True or False")
    return ResolvedSettings(dataclasses.replace(options or StartOptions(), **found), seed)  # type: ignore[arg-type]


def _resolve(name: str, value: object) -> tuple[str, object]:
    """The target field of `StartOptions`, and its value; None: the default. Raises ConfigError."""
    if name in _OWN:
        return name, value
    setting = VLLM_SETTINGS.get(name)
    removed = removed_settings_of(StartOptions).get(name.removesuffix("_bytes"))
    if setting is None and removed is not None:
        raise removed.refusal(name)
    if setting is None:
        hint = suggestions(name, [*_OWN, *VLLM_SETTINGS])
        raise ConfigError(f"there is no setting {name!r:.80}{hint}; docs/settings.md lists all")
    if setting.only is not None and value not in setting.only:
        allowed = " or ".join(map(repr, (None, *setting.only[:4])))
        raise ConfigError(f"{name} is {shown(value)}; allowed: {allowed}; {setting.words}")
    if not setting.becomes:
        return "", None
    try:
        return setting.becomes, setting.read(value)
    except ValueError as error:
        raise ConfigError(f"{name} is {shown(value)}; allowed: {error}; see {setting.becomes}") from None


class EngineArgs:
    """A model and its settings, also from a command line; checked when an engine is made."""

    def __init__(self, model: str | None = None, **settings: Unpack[Settings]) -> None:
        self.model = model
        self.settings = settings

    @staticmethod
    def add_cli_args(parser: "ArgumentParser") -> "ArgumentParser":
        """Add `--model`, and an option for each setting of type number, text, or switch."""
        from argparse import BooleanOptionalAction

        parser.add_argument("--model")
        helps = {name: own.help for name, own in _OWN.items()}
        helps |= {name: theirs.words for name, theirs in VLLM_SETTINGS.items()}
        for name, hint in get_type_hints(Settings).items():
            flag, words = f"--{name.replace('_', '-')}", helps.get(name, "").replace("%", "%%")
            kinds = [kind for kind in (bool, int, float, str) if kind in get_args(hint)]
            if bool in kinds:
                parser.add_argument(flag, action=BooleanOptionalAction, help=words)
            elif kinds:
                parser.add_argument(flag, type=kinds[0], help=words)
        return parser

    @classmethod
    def from_cli_args(cls, args: "Namespace") -> Self:
        """From the options of `add_cli_args`; other attributes are ignored."""
        given = {name: value for name, value in vars(args).items() if name in _HINTS}
        model = vars(args).get("model")
        if not isinstance(model, str | None):
            raise ConfigError(f"model is {model!r:.80}; allowed: text")
        return cls(model, **cast(Settings, given))


AsyncEngineArgs = EngineArgs
