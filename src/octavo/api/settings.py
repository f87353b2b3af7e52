"""Settings by name, as `LLM` and `AsyncLLM` take them: Octavo's own, and vLLM's where vLLM has them.

    LLM("model", max_model_len=4096)  -->  StartOptions(context_length=4096)

A setting of vLLM's becomes one of Octavo's, or changes no answer and is taken as it comes, or is refused by
name unless its value asks for nothing. `None` is as good as left out. `VLLM_SETTINGS` says which is which.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from octavo.config import StartOptions
from octavo.errors import ConfigError, is_number, shown
from octavo.params import SEED_MAX
from octavo.setting import gone_of, settings_of


class OwnSettings(TypedDict, total=False):
    """The settings of `StartOptions`, each with its own name: once more, for type checkers, which cannot make
    them of its fields."""

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
    threads: int | None
    max_seqs: int | None
    step_tokens: int | None
    max_queue: int | None
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


class Settings(OwnSettings, total=False):
    """All settings: Octavo's own, and vLLM's."""

    seed: int | None  # of the requests that have none of their own, all together
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    block_size: int | None
    dtype: str | object  # also torch's own
    quantization: str | None
    kv_cache_dtype: str | None
    kv_cache_memory_bytes: int | None
    enable_prefix_caching: bool | None
    served_model_name: str | Sequence[str] | None
    speculative_config: Mapping[str, object] | None
    tokenizer: str | None
    tokenizer_mode: str | None
    skip_tokenizer_init: bool | None
    tokenizer_revision: str | None
    revision: str | None
    trust_remote_code: bool | None
    hf_token: bool | str | None
    hf_overrides: Mapping[str, object] | None
    load_format: str | None
    config_format: str | None
    download_dir: str | None
    generation_config: str | None
    override_generation_config: Mapping[str, object] | None
    runner: str | None
    task: str | None
    convert: str | None
    pooler_config: object
    gpu_memory_utilization: float | None
    swap_space: float | None
    cpu_offload_gb: float | None
    num_gpu_blocks_override: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    data_parallel_size: int | None
    distributed_executor_backend: object
    disable_custom_all_reduce: bool | None
    enforce_eager: bool | None
    compilation_config: object
    max_seq_len_to_capture: int | None
    attention_backend: str | None
    attention_config: object
    enable_chunked_prefill: bool | None
    async_scheduling: bool | None
    disable_async_output_proc: bool | None
    scheduling_policy: str | None
    disable_log_stats: bool | None
    disable_log_requests: bool | None
    enable_log_requests: bool | None
    max_logprobs: int | None
    structured_outputs_config: object
    guided_decoding_backend: str | None
    logits_processors: Sequence[object] | None
    enable_lora: bool | None
    max_loras: int | None
    max_lora_rank: int | None
    limit_mm_per_prompt: Mapping[str, object] | None
    mm_processor_kwargs: Mapping[str, object] | None
    allowed_local_media_path: str | None
    enable_prompt_embeds: bool | None
    enable_sleep_mode: bool | None
    kv_transfer_config: object


@dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """What settings come to."""

    options: StartOptions
    seed: int | None = None  # from which requests without a seed get theirs; None: drawn afresh


@dataclass(frozen=True, slots=True)
class VllmSetting:
    """What becomes of one of vLLM's settings."""

    name: str
    words: str
    becomes: str = ""  # a field of `StartOptions`
    only: tuple[object, ...] | None = None  # the values that are taken; None: any
    read: Callable[[object], object] = lambda given: given  # its value, None for the default; or ValueError

    @property
    def treatment(self) -> str:
        """In a few words, for documentation."""
        if self.becomes:
            return f"`{self.becomes}`"
        if not self.only:
            return "any value" if self.only is None else "refused"
        return "only " + ", ".join(f"`{value!r}`" for value in self.only[:3]) + " ..." * (len(self.only) > 3)


def _of_table(table: Mapping[str, object]) -> Callable[[object], object]:
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


_DTYPES: Mapping[str, object] = {"auto": None, "float32": "f32", "float": "f32", "bfloat16": "bf16"}
_QUANTIZATIONS: Mapping[str, object] = {"int8": "int8", "q4": "q4", "int4": "q4", "gguf": None}
_KV_DTYPES: Mapping[str, object] = {
    "auto": None,
    "float32": "f32",
    "bfloat16": "bf16",
    "int8": "int8",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
}
_ONE_DEVICE = "a model runs on one device"
_TEXT_ONLY = "models here read text alone"
_NO_LORA = "adapters are not built; merge it into the weights"

VLLM_SETTINGS: tuple[VllmSetting, ...] = (
    VllmSetting("max_model_len", "tokens of prompt and output together", "context_length"),
    VllmSetting("max_num_seqs", "sequences that run at once", "max_seqs"),
    VllmSetting("max_num_batched_tokens", "positions computed in one step at most", "step_tokens"),
    VllmSetting("dtype", "how weights are held: auto, float32, bfloat16", "weights", read=_of_table(_DTYPES)),
    VllmSetting("quantization", "int8, q4; gguf: as in the file", "weights", read=_of_table(_QUANTIZATIONS)),
    VllmSetting("kv_cache_dtype", "how K and V are held", "kv", read=_of_table(_KV_DTYPES)),
    VllmSetting("kv_cache_memory_bytes", "bytes of KV blocks", "kv_memory_bytes"),
    VllmSetting("enable_prefix_caching", "share the blocks of equal prefixes", "prefix_caching"),
    VllmSetting("served_model_name", "the first, if there are several", "served_name", read=_first_name),
    VllmSetting(
        "speculative_config",
        '{"method": "ngram"}; how many tokens are guessed is measured',
        "speculate",
        read=_ngram,
    ),
    VllmSetting("block_size", "a block holds 16 tokens; no answer depends on it"),
    VllmSetting("tokenizer_mode", "the model's own tokenizer is used", only=("auto", "hf", "fast")),
    VllmSetting("skip_tokenizer_init", "detokenize=False in SamplingParams", only=(False,)),
    VllmSetting("tokenizer_revision", "give the folder of the revision as the model", only=()),
    VllmSetting("revision", "give the folder of the revision as the model", only=("main",)),
    VllmSetting("trust_remote_code", "no code of a model is ever run, whether it might be or not"),
    VllmSetting("hf_token", "the environment's HF_TOKEN is read", only=(False,)),
    VllmSetting("hf_overrides", "change the model's config.json", only=({},)),
    VllmSetting(
        "load_format", "told by the files: safetensors, or GGUF", only=("auto", "safetensors", "gguf")
    ),
    VllmSetting("config_format", "told by the files", only=("auto", "hf")),
    VllmSetting("download_dir", "the environment's OCTAVO_CACHE is read", only=()),
    VllmSetting("generation_config", "defaults are neutral; give SamplingParams", only=("vllm",)),
    VllmSetting("override_generation_config", "give SamplingParams", only=({},)),
    VllmSetting("runner", "one model generates and embeds", only=("auto", "generate", "pooling")),
    VllmSetting("task", "one model generates and embeds", only=("auto", "generate", "embed", "embedding")),
    VllmSetting("convert", "any model embeds", only=("auto", "none", "embed")),
    VllmSetting("pooler_config", "pooling: last or mean", only=()),
    VllmSetting("gpu_memory_utilization", "what is there is measured; kv_memory_bytes bounds it"),
    VllmSetting("swap_space", "what is preempted is computed again; host_cache_bytes keeps it"),
    VllmSetting("cpu_offload_gb", "weights are on one device", only=(0,)),
    VllmSetting("num_gpu_blocks_override", "kv_memory_bytes", only=()),
    VllmSetting("tensor_parallel_size", _ONE_DEVICE, only=(1,)),
    VllmSetting("pipeline_parallel_size", _ONE_DEVICE, only=(1,)),
    VllmSetting("data_parallel_size", _ONE_DEVICE, only=(1,)),
    VllmSetting("distributed_executor_backend", _ONE_DEVICE, only=("uni", "mp")),
    VllmSetting("disable_custom_all_reduce", _ONE_DEVICE),
    VllmSetting("enforce_eager", "graphs change no answer"),
    VllmSetting("compilation_config", "kernels are compiled ahead"),
    VllmSetting("max_seq_len_to_capture", "graphs change no answer"),
    VllmSetting("attention_backend", "attention: triton or flash", only=()),
    VllmSetting("attention_config", "attention: triton or flash", only=({},)),
    VllmSetting("enable_chunked_prefill", "prompts are computed in chunks of step_tokens, always"),
    VllmSetting("async_scheduling", "steps overlap on a GPU; it changes no answer"),
    VllmSetting("disable_async_output_proc", "it changes no answer"),
    VllmSetting("scheduling_policy", "requests have priorities, always", only=("fcfs", "priority")),
    VllmSetting("disable_log_stats", "statistics are in engine.stats, and logged by no one"),
    VllmSetting("disable_log_requests", "requests are not logged"),
    VllmSetting("enable_log_requests", "requests are not logged", only=(False,)),
    VllmSetting("max_logprobs", "20 at most", only=tuple(range(21))),
    VllmSetting("structured_outputs_config", "llguidance compiles all grammars", only=({},)),
    VllmSetting("guided_decoding_backend", "llguidance compiles all grammars", only=("auto", "guidance")),
    VllmSetting("logits_processors", "logit_bias, bad_words, structured_outputs", only=([], ())),
    VllmSetting("enable_lora", _NO_LORA, only=(False,)),
    VllmSetting("max_loras", _NO_LORA),
    VllmSetting("max_lora_rank", _NO_LORA),
    VllmSetting("limit_mm_per_prompt", _TEXT_ONLY),
    VllmSetting("mm_processor_kwargs", _TEXT_ONLY, only=({},)),
    VllmSetting("allowed_local_media_path", _TEXT_ONLY, only=("",)),
    VllmSetting("enable_prompt_embeds", _TEXT_ONLY, only=(False,)),
    VllmSetting("enable_sleep_mode", "close() the LLM, and make another one", only=(False,)),
    VllmSetting("kv_transfer_config", "disk_cache keeps blocks for other processes to come", only=()),
)
_OF_VLLM = {setting.name: setting for setting in VLLM_SETTINGS}
_OWN = {own.field: own for own in settings_of(StartOptions)}


def resolve_settings(
    model: str | None, options: StartOptions | None, settings: Mapping[str, object]
) -> ResolvedSettings:
    """What settings come to, on top of `options`. Raises ConfigError."""
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
        field, meant = _meant(name, value)
        if meant is None:
            continue
        if field in found and found[field] != meant:
            raise ConfigError(f"{name} and another name of {field} are given together; allowed: one of them")
        found[field] = _OWN[field].take(meant, name)
    return ResolvedSettings(dataclasses.replace(options or StartOptions(), **found), seed)  # type: ignore[arg-type]


def _meant(name: str, value: object) -> tuple[str, object]:
    """The field of `StartOptions` that is meant, and its value; None: the default. Raises ConfigError."""
    if name in _OWN:
        return name, value
    setting = _OF_VLLM.get(name)
    gone = gone_of(StartOptions).get(name.removesuffix("_bytes"))
    if setting is None and gone is not None:
        raise gone.refusal(name)
    if setting is None:
        near = difflib.get_close_matches(name, [*_OWN, *_OF_VLLM], 3)
        hint = f"; near it: {', '.join(near)}" if near else ""
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
