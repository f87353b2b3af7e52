"""The tenants file: what it may say, and what is said of mistakes."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.tenants import FILE_BYTES_MAX, Tenant, digest_of, new_key, parse_tenants, read_tenants

KEY, OTHER = "octavo-a", "octavo-b"
DIGEST, OTHER_DIGEST = digest_of(KEY).hex(), digest_of(OTHER).hex()


def entry(lines: str = "", name: str = "alice", digest: str = DIGEST) -> str:
    return f'[[tenant]]\nname = "{name}"\nkey_sha256 = "{digest}"\n{lines}\n'


def only(text: str) -> Tenant:
    [tenant] = parse_tenants(text).all
    return tenant


def test_the_smallest_entry_has_no_bounds_and_no_rights() -> None:
    tenant = only(entry())
    policy = tenant.policy(4096)
    assert (policy.name, policy.weight, policy.guaranteed, policy.maximum) == ("alice", 1.0, 0, None)
    assert policy.max_running is policy.max_waiting is policy.disk_maximum is None
    assert not tenant.operator
    assert (tenant.timeouts.total, tenant.priority, tenant.priority_min) == (None, 0, 0)


def test_an_entry_with_everything() -> None:
    text = entry("""
operator = true
guaranteed = "64KiB"
maximum = 100
request_maximum = 20
session_maximum = "39KiB"
disk = "1MiB"
weight = 2
max_running = 4
max_queue = 0
priority_min = -5
[tenant.defaults]
timeout = 60
queue_timeout = 2.5
ttft_timeout = 10
priority = 3
""")
    tenant = only(text)
    policy = tenant.policy(4000)
    assert (policy.guaranteed, policy.maximum, policy.request_maximum) == (65536 // 4000, 100, 20)
    assert policy.session_maximum == 9
    assert policy.disk_maximum == 256, "a slot below is a block in whole pages"
    assert (policy.weight, policy.max_running, policy.max_waiting) == (2.0, 4, 0)
    assert tenant.operator
    assert (tenant.timeouts.total, tenant.timeouts.queue, tenant.timeouts.first_token) == (60.0, 2.5, 10.0)
    assert (tenant.priority, tenant.priority_min) == (3, -5)


def test_the_shared_entry_has_bounds_and_no_key() -> None:
    text = entry() + '[[tenant]]\nname = "shared"\nmaximum = 7\ndisk = "4KiB"\n'
    tenants = parse_tenants(text)
    assert [(p.name, p.maximum, p.disk_maximum) for p in tenants.policies(4096)][1] == ("shared", 7, 1)
    assert tenants.has("shared")
    assert not tenants.has("bob")


WRONG = [
    ("[[tenant", "not sound TOML"),
    ("", "0 tenants; allowed: 1 to"),
    ("tenant = 5", "allowed: each tenant begins with"),
    ("tenant = [1]", "allowed: each tenant begins with"),
    (entry() + "[other]\nx = 1", "unknown key 'other'; allowed"),
    (f"a = {'9' * 5000}", "not sound TOML"),
    ("[[tenant]]\nweight = 1", "tenant number 1: name is missing; allowed: 1 to 64 letters"),
    ("[[tenant]]\nname = 5", "tenant number 1: name is 5"),
    (entry(name="a/b"), "tenant number 1: name is 'a/b'"),
    (entry(name="a" * 65), "tenant number 1: name is 'aaa"),
    (entry("wieght = 1"), "tenant alice: unknown key wieght; allowed: name, key_sha256"),
    (entry('[tenant.defaults]\ntimout = "x"'), "tenant alice: unknown key defaults.timout; allowed: timeout"),
    (entry("defaults = 5"), "tenant alice: defaults is 5; allowed: a table"),
    (entry("weight = 0"), "tenant alice: weight is 0; allowed: a number from 0.001 to 1000"),
    (entry("weight = nan"), "tenant alice: weight is nan"),
    (entry("weight = inf"), "tenant alice: weight is inf"),
    (entry("weight = true"), "tenant alice: weight is True"),
    (entry("operator = 1"), "tenant alice: operator is 1; allowed: true or false"),
    (entry("guaranteed = -1"), "tenant alice: guaranteed is -1; allowed: a whole number from 0"),
    (entry("guaranteed = true"), "tenant alice: guaranteed is True"),
    (entry("maximum = 0"), "tenant alice: maximum is 0; allowed: a whole number from 1"),
    (entry('maximum = "many"'), "tenant alice: maximum is 'many'; allowed: blocks, such as 4096, or bytes"),
    (entry("maximum = 1.5"), "tenant alice: maximum is 1.5; allowed: blocks"),
    (entry(f"maximum = 0x{'f' * 5000}"), "tenant alice: maximum is a number too long to be printed"),
    (entry("disk = 1000"), "tenant alice: disk is 1000; allowed: bytes with a unit"),
    (entry("max_running = 0"), "tenant alice: max_running is 0; allowed: a whole number from 1 to 4,096"),
    (
        entry("guaranteed = 9\nmaximum = 8"),
        "tenant alice: guaranteed is 9 blocks; allowed: up to its maximum",
    ),
    (entry('request_maximum = "2MiB"\nmaximum = "1MiB"'), "request_maximum is 2,097,152 bytes; allowed: up"),
    (entry("[tenant.defaults]\ntimeout = 0"), "tenant alice: defaults.timeout is 0; allowed: above 0, up to"),
    (entry("[tenant.defaults]\ntimeout = 1e9"), "tenant alice: defaults.timeout is 1000000000.0"),
    (entry("[tenant.defaults]\npriority = 1001"), "tenant alice: defaults.priority is 1001"),
    (entry("priority_min = 1"), "tenant alice: priority_min is 1; allowed: up to 0, its default priority"),
    (entry(digest="abc"), "tenant alice: key_sha256 is 3 characters; allowed: 64 hexadecimal digits"),
    (entry(digest=digest_of("").hex()), "tenant alice: key_sha256 is that of an empty key"),
    ('[[tenant]]\nname = "alice"', "tenant alice: key_sha256 is missing"),
    (
        '[[tenant]]\nname = "alice"\nkey_sha256 = []',
        "tenant alice: key_sha256 has 0 entries; allowed: 1 to 8",
    ),
    ('[[tenant]]\nname = "alice"\nkey_sha256 = [5]', "tenant alice: key_sha256 is no text"),
    (entry() + entry(), "tenant alice: the name appears twice"),
    (entry() + entry(name="bob"), "tenant bob: key_sha256 has a key that is alice's too"),
    (entry(name="shared"), "tenant shared: unknown key key_sha256; allowed: name, guaranteed, maximum, disk"),
    ('[[tenant]]\nname = "shared"', "no tenant has a key"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message[:50] for _, message in WRONG])
def test_a_mistake_is_reported_with_whose_it_is_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_tenants(text)
    assert message in str(told.value)
    assert "allowed" in str(told.value) or "TOML" in str(told.value)


def test_a_key_that_was_put_where_its_hash_belongs_is_not_repeated() -> None:
    secret = new_key()
    with pytest.raises(ConfigError) as told:
        parse_tenants(entry(digest=secret))
    assert secret not in str(told.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('guaranteed = "1MiB"\nmaximum = 10', "guaranteed is 256 blocks; allowed: up to its maximum, 10"),
        ('maximum = "1KiB"', "maximum is 1,024 bytes; allowed: at least one block of 4,096 bytes"),
        ('request_maximum = 20\nmaximum = "64KiB"', "request_maximum is 20 blocks; allowed: up to its max"),
    ],
)
def test_bounds_that_contradict_each_other_in_blocks_are_refused(lines: str, message: str) -> None:
    with pytest.raises(ConfigError, match="tenant alice") as told:
        only(entry(lines)).policy(4096)
    assert message in str(told.value)


def test_bytes_want_the_size_of_a_block() -> None:
    assert only(entry("maximum = 10")).policy(0).maximum == 10
    with pytest.raises(ConfigError, match="not known"):
        only(entry('maximum = "1MiB"')).policy(0)


def test_a_key_opens_its_own_tenant_and_several_may_rotate() -> None:
    text = f'[[tenant]]\nname = "alice"\nkey_sha256 = ["{DIGEST}", "{digest_of("new").hex().upper()}"]\n'
    tenants = parse_tenants(text + entry(name="bob", digest=OTHER_DIGEST))
    found = {key: tenants.of_key(key) for key in (KEY, "new", OTHER, "", DIGEST, KEY + " ")}
    assert {key: tenant and tenant.name for key, tenant in found.items()} == {
        KEY: "alice", "new": "alice", OTHER: "bob", "": None, DIGEST: None, KEY + " ": None,
    }  # fmt: skip


def test_new_keys_differ_and_open_what_their_line_says() -> None:
    one, other = new_key(), new_key()
    assert one != other
    assert len(one) >= 43
    found = parse_tenants(entry(digest=digest_of(one).hex())).of_key(one)
    assert found is not None
    assert found.name == "alice"


def test_a_file_is_bounded_read_as_utf8_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    with pytest.raises(ConfigError, match=r"tenants\.toml cannot be read: No such file"):
        read_tenants(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_tenants(path)
    path.write_text("#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="too large"):
        read_tenants(path)
    path.write_text(entry("weight = -1"))
    with pytest.raises(ConfigError, match=r"tenants\.toml: tenant alice: weight is -1"):
        read_tenants(path)
    path.write_text(entry())
    assert [tenant.name for tenant in read_tenants(path).all] == ["alice"]


@pytest.mark.parametrize("given", ["9" * 5_000, "-" + "9" * 5_000, "[1, " + "9" * 5_000 + "]"])
def test_a_number_of_too_many_digits_is_reported_in_words_of_toml(given: str) -> None:
    with pytest.raises(ConfigError, match=r"not sound TOML: a number has more than 4,300 digits$"):
        parse_tenants(entry(f"max_running = {given}"))


@pytest.mark.parametrize("key", ["weight", "max_running", "guaranteed", "disk", "priority_min"])
def test_a_number_without_end_is_refused_by_the_name_of_its_key(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is a number too long to be printed"):
        parse_tenants(entry(f"{key} = 0x{'f' * 5_000}"))


@pytest.mark.parametrize("kind", ["folder", "device", "pipe", "socket", "link to a pipe"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tenants.toml"
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as reader:
        if kind == "folder":
            path.mkdir()
        elif kind == "device":
            path = Path("/dev/zero")
        elif kind == "socket":
            listener.bind(str(path))
        else:
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to(tmp_path / "pipe")
            path = tmp_path / "pipe" if kind == "pipe" else path
        reading = reader.submit(read_tenants, path)
        try:
            with pytest.raises(ConfigError, match=r"it is not a regular file, .* --tenants names another"):
                reading.result(10)
        finally:
            if "pipe" in kind and not reading.done():  # free whoever waits for a writer
                os.close(os.open(path, os.O_WRONLY))


def test_the_example_in_the_docs_is_sound_and_every_key_is_explained() -> None:
    text = (Path(__file__).parents[1] / "docs" / "tenants.md").read_text()
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    assert [policy.name for policy in parse_tenants(example.group(1)).policies(4096)] == [
        "search",
        "ops",
        "shared",
    ]
    with pytest.raises(ConfigError) as told:
        parse_tenants(entry("x = 1"))
    for key in str(told.value).partition("allowed: ")[2].split(", "):
        assert f"`{key}" in text, f"{key} is not explained in docs/tenants.md"


VALUES = st.one_of(
    st.integers(-(10**6), 10**13).map(str),
    st.sampled_from(["true", "nan", "-inf", "1.5", '"5MiB"', '"-1"', '""', "[]", "[1]", "{}", "1979-05-27"]),
    st.sampled_from([f'"{DIGEST}"', f'["{OTHER_DIGEST}"]', '"shared"', '"bob"']),
)
KEYS = st.sampled_from(
    [
        "name",
        "key_sha256",
        "operator",
        "guaranteed",
        "maximum",
        "request_maximum",
        "session_maximum",
        "disk",
        "weight",
        "max_running",
        "max_queue",
        "priority_min",
        "defaults",
        "other",
    ]
)


@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=6), max_size=3), st.booleans())
def test_any_file_is_read_or_refused_in_words(entries: list[dict[str, str]], sound: bool) -> None:
    text = ""
    for place, fields in enumerate(entries):
        own = {"name": f'"t{place}"', "key_sha256": f'"{digest_of(str(place)).hex()}"'} if sound else {}
        lines = {**fields, **own}
        text += "[[tenant]]\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())
    try:
        policies = parse_tenants(text).policies(4096)
    except ConfigError:
        return
    assert len({policy.name for policy in policies}) == len(entries)
    for policy in policies:
        assert 0 <= policy.guaranteed <= (policy.maximum or 2**40)
        assert policy.weight > 0
