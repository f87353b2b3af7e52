"""Settings by name: Octavo's own and vLLM's, mapped, taken or refused, and told of in the documentation."""

from __future__ import annotations

import argparse
import typing
from pathlib import Path

import pytest

from octavo import AsyncEngineArgs, EngineArgs, StartOptions
from octavo.api.settings import VLLM_SETTINGS, OwnSettings, Settings, resolve_settings
from octavo.errors import ConfigError
from octavo.setting import settings_of

DOCS = Path(__file__).parents[2] / "docs"


def resolved(**given: object) -> StartOptions:
    return resolve_settings("m", None, given).options


def test_every_setting_of_an_engine_has_its_own_name() -> None:
    types = typing.get_type_hints(StartOptions)
    wanted = {setting.field: types[setting.field] | None for setting in settings_of(StartOptions)}
    assert typing.get_type_hints(OwnSettings) == wanted
    values = {
        setting.field: {"disk_cache": "/tmp/cache", "backend": "native", "record": None}.get(
            setting.field, setting.default
        )
        for setting in settings_of(StartOptions)
    }
    assert resolved(**values) == StartOptions(**values)  # type: ignore[arg-type]


def test_every_name_of_vllms_has_a_treatment_and_is_documented() -> None:
    assert VLLM_SETTINGS.keys() | set(OwnSettings.__annotations__) | {"seed", "tokenizer"} == set(
        typing.get_type_hints(Settings)
    )
    text = (DOCS / "settings.md").read_text()
    missing = [
        name
        for name, setting in VLLM_SETTINGS.items()
        if f"| `{name}` | {setting.treatment} | {setting.words} |" not in text
    ]
    assert missing == []


@pytest.mark.parametrize(
    "given, becomes",
    [
        ({"max_model_len": 2048}, {"context_length": 2048}),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 64}, {"max_seqs": 8, "step_tokens": 64}),
        ({"dtype": "float32"}, {"weights": "f32"}),
        ({"dtype": "auto", "quantization": "int8"}, {"weights": "int8"}),
        ({"quantization": "gguf"}, {}),
        ({"kv_cache_dtype": "auto"}, {}),
        (
            {"kv_cache_dtype": "bfloat16", "kv_cache_memory_bytes": 2**20},
            {"kv": "bf16", "kv_memory_bytes": 2**20},
        ),
        ({"enable_prefix_caching": False}, {"prefix_caching": False}),
        ({"served_model_name": ["a", "b"]}, {"served_name": "a"}),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}}, {"speculate": "ngram"}),
        ({"context_length": 64, "max_seqs": None}, {"context_length": 64}),
        ({"max_model_len": 64, "context_length": 64}, {"context_length": 64}),
        ({"disk_cache": Path("/tmp/cache")}, {"disk_cache": "/tmp/cache"}),
        (
            {
                "tokenizer": "m",
                "tensor_parallel_size": 1,
                "trust_remote_code": True,
                "block_size": 32,
                "gpu_memory_utilization": 0.9,
                "enforce_eager": True,
                "swap_space": 4,
                "disable_log_stats": False,
                "runner": "pooling",
                "enable_lora": False,
                "hf_overrides": {},
            },
            {},
        ),
    ],
)
def test_names_of_vllms_become_ours(given: dict[str, object], becomes: dict[str, object]) -> None:
    assert resolved(**given) == StartOptions(**becomes)  # type: ignore[arg-type]


@pytest.mark.full
def test_a_type_of_torchs_is_taken_by_its_name() -> None:
    import torch

    assert resolved(dtype=torch.bfloat16).weights == "bf16"


@pytest.mark.parametrize(
    "given, said",
    [
        ({"dtype": "float16"}, "dtype is 'float16'; allowed: auto, float32, float, bfloat16; see weights"),
        ({"quantization": "awq"}, "quantization is 'awq'; allowed: int8, q4, int4, gguf; see weights"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2; allowed: None or 1; one process leads"),
        ({"tokenizer": "other"}, "tokenizer is 'other'; allowed: the model's own"),
        ({"tokenizer_mode": "mistral"}, "tokenizer_mode is 'mistral'; allowed: None or 'auto'"),
        (
            {"speculative_config": {"method": "eagle"}},
            'speculative_config is .*; allowed: {"method": "ngram"}',
        ),
        ({"enable_lora": True}, "enable_lora is True; allowed: None or False; adapters are not built"),
        ({"download_dir": "/tmp"}, "download_dir is '/tmp'; allowed: None; the environment's OCTAVO_CACHE"),
        ({"max_model_len": 8}, "context_length is 8; allowed: 16 to"),
        ({"max_model_len": "4k"}, "max_model_len is '4k'; allowed: a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs is True; allowed: a whole number"),
        ({"prefix_caching": "no"}, "prefix_caching is 'no'; allowed: True or False"),
        ({"kv": 5}, "kv is 5; allowed: text"),
        ({"max_model_len": 64, "context_length": 32}, "context_length and another name of context_length"),
        ({"seed": "abc"}, "seed is 'abc'; allowed: a whole number"),
        ({"seed": 2**64}, "seed is .*; allowed: -"),
        ({"max_modellen": 5}, "there is no setting 'max_modellen'; near it: max_model_len"),
        ({"overlap": 1}, "overlap is no longer a setting: steps overlap on a GPU"),
        ({"kv_ready_bytes": 1}, "kv_ready_bytes is no longer a setting: a server takes the first GiB"),
        ({"zzz": 5}, "there is no setting 'zzz'; docs/settings.md lists all"),
    ],
)
def test_what_is_not_built_is_refused_by_name(given: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolved(**given)


def test_settings_by_name_stand_on_top_of_options() -> None:
    found = resolve_settings(None, StartOptions(max_seqs=4, threads=1), {"max_num_seqs": 9, "seed": 5})
    assert found.options == StartOptions(max_seqs=9, threads=1)
    assert found.seed == 5


def test_arguments_of_a_command_line_are_settings() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.set_defaults(model="tiny", enforce_eager=True)
    args = parser.parse_args(["--max-model-len", "64", "--no-enable-prefix-caching", "--dtype", "float32"])
    given = dict(vars(args))
    assert given.pop("model") == "tiny"
    wanted = StartOptions(context_length=64, prefix_caching=False, weights="f32")
    assert resolved(**given) == wanted
    made = AsyncEngineArgs.from_cli_args(args)
    assert (made.model, resolve_settings("tiny", None, made.settings).options) == ("tiny", wanted)
