"""Hashes and tags."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.kv_events.identity import Identity, read_key, salt_without_tag

NAME = bytes(range(32))
KEYED, OTHER = Identity(b"k" * 32), Identity(b"l" * 32)


def test_a_hash_is_the_last_8_bytes_of_the_name_with_bit_63() -> None:
    assert Identity().hash_of(NAME, "") == int.from_bytes(NAME[24:], "big") | 1 << 63
    assert Identity().hash_of(bytes(32), "") == 1 << 63


def test_with_a_key_hashes_and_tags_follow_from_key_and_tenant() -> None:
    hashes = {one.hash_of(NAME, tenant) for one in (KEYED, OTHER, Identity()) for tenant in ("a", "b")}
    assert len(hashes) == 5  # without a key there are no tenants
    assert len({KEYED.tenant_tag("a"), KEYED.tenant_tag("b"), OTHER.tenant_tag("a")}) == 3
    assert KEYED.hash_of(NAME, "a") == Identity(b"k" * 32).hash_of(NAME, "a")


def test_a_tag_is_the_tenants_then_the_clients_salt() -> None:
    tag = KEYED.tenant_tag("a")
    assert (KEYED.tag_of("a", ""), KEYED.tag_of("a", "s")) == (tag, f"{tag}.s")
    assert (Identity().tag_of("a", ""), Identity().tag_of("a", "s")) == ("", "s")


def test_a_salt_that_begins_with_the_tenants_own_tag_means_the_rest() -> None:
    tag, other = KEYED.tenant_tag("a"), KEYED.tenant_tag("b")
    assert salt_without_tag(tag, tag) == ""
    assert salt_without_tag(f"{tag}.s.t", tag) == "s.t"
    for plain in (other, f"{other}.s", f"{tag}s", "s", "", f" {tag}"):
        assert salt_without_tag(plain, tag) == plain
    assert salt_without_tag("s", "") == "s"


def test_keys_are_read_from_a_file_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"x" * 32 + b"\n")
    assert read_key(path) == read_key(path)
    assert len(read_key(path)) == 32
    for wrong in (b"x" * 31, b"", b"x" * 5000):
        path.write_bytes(wrong)
        with pytest.raises(ConfigError, match="32 to 4,096"):
            read_key(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(tmp_path)
