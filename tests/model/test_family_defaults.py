"""What a configuration leaves out means what transformers' classes mean by it, for every family."""

from __future__ import annotations

import pytest
import transformers

from octavo.errors import ModelError
from octavo.fields import Fields
from octavo.model.families import FAMILIES, describe_config
from octavo.model.families.row import Family

pytestmark = pytest.mark.full

SIZES = ("layers", "hidden", "heads", "vocab", "context")
# Beside those, sizes that ours asks for where a class of theirs has some number.
ASKED = {"intermediate_size", "intermediate_size_mlp"}


def usual(name: str, **changed: object) -> dict[str, object]:
    """All that transformers knows of the family when it is told no more than `changed`."""
    return transformers.CONFIG_MAPPING[name](**changed).to_dict()


def least(row: Family, full: dict[str, object]) -> dict[str, object]:
    """The sizes that no file leaves out."""
    needed = {"model_type", *(row.config_keys[size] for size in SIZES)} | (ASKED if row.gated else set())
    return {key: full[key] for key in needed if key in full}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_least_configuration_means_the_class_s_defaults(name):
    full = usual(name)
    expected = describe_config(Fields("full", full))
    assert describe_config(Fields("least", least(FAMILIES[name], full))) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_each_key_alone_may_be_left_out_or_is_asked_for_by_name(name):
    full = usual(name)
    expected = describe_config(Fields("full", full))
    wrong = []
    for key in full.keys() - {"model_type"}:
        rest = {other: value for other, value in full.items() if other != key}
        try:
            is_alike = describe_config(Fields("rest", rest)) == expected
        except ModelError as error:
            is_alike = key in str(error)
        wrong += [] if is_alike else [key]
    assert wrong == []


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen3_moe", "smollm3"])
@pytest.mark.parametrize("switch", [True, False])
def test_windows_are_on_where_the_file_turns_them_on(name, switch):
    full = usual(name, use_sliding_window=switch, **({"sliding_window": 64} if name == "smollm3" else {}))
    short = least(FAMILIES[name], full) | {"use_sliding_window": switch}
    short |= {"sliding_window": 64} if name == "smollm3" else {}
    description = describe_config(Fields("short", short))
    assert description == describe_config(Fields("full", full))
    assert any(description.spec.windows) == switch


def test_a_window_of_qwen3_moe_that_is_not_turned_on_is_none():
    short = least(FAMILIES["qwen3_moe"], usual("qwen3_moe")) | {"sliding_window": 64}
    assert transformers.Qwen3MoeConfig(sliding_window=64).sliding_window is None
    assert describe_config(Fields("short", short)).spec.windows == ()


@pytest.mark.parametrize("name", ["mistral", "gpt_oss", "gemma2"])
def test_other_families_have_no_such_switch(name):
    full = usual(name)
    off = describe_config(Fields("off", full | {"use_sliding_window": False})).spec
    assert off == describe_config(Fields("full", full)).spec
    assert any(off.windows)


def test_gemma2_without_its_keys_has_caps_and_windows():
    spec = describe_config(Fields("least", least(FAMILIES["gemma2"], usual("gemma2")))).spec
    assert (spec.attention_soft_cap, spec.logit_soft_cap) == (50.0, 30.0)
    assert spec.windows[:3] == (4096, None, 4096)
    assert spec.attention_scale == 256**-0.5
