"""The forms of names and tenants for routers: 64-bit hashes and tags.

    without tenants   hash = the last 8 bytes of the name, big endian, bit 63 set    tag = the client's salt
    with tenants      hash = H(key, tenant, name), bit 63 set                        tag = TAG or TAG.salt
                      TAG  = H(key, tenant), 16 hexadecimal digits

Names follow from a tenant's name and its prompts, so with tenants both are hashed with a key that routers do
not have; replicas with the same key have the same hashes. Bit 63 is set because routers read 0 as "no
parent", and some reject integers that msgpack writes in fewer than 8 bytes. Two of 1e8 blocks collide with
probability 5e-4: then one prompt may go to the wrong replica, which answers it correctly.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError

KEY_BYTES_MIN, KEY_BYTES_MAX = 32, 4096
_BIT_63 = 1 << 63
_TAG_BYTES = 8


EventSource = dict[str, bool | int | str | None]  # in vLLM's terms, for routers


@dataclass(frozen=True, slots=True)
class Identity:
    """Hashes names and tenants. `key`: None without tenants."""

    key: bytes | None = None

    def hash_of(self, name: bytes, tenant: str) -> int:
        """The hash of a block: 2**63 to 2**64 - 1."""
        if self.key is not None:
            own = tenant.encode(errors="surrogatepass")
            data = len(own).to_bytes(4, "little") + own + name
            name = hashlib.blake2b(data, digest_size=8, key=self.key, person=b"kv block").digest()
        return int.from_bytes(name[-8:], "big") | _BIT_63

    def tenant_tag(self, tenant: str) -> str:
        """The tag of a tenant; "" without tenants."""
        if self.key is None:
            return ""
        data = tenant.encode(errors="surrogatepass")
        return hashlib.blake2b(data, digest_size=_TAG_BYTES, key=self.key, person=b"kv tag").hexdigest()

    def tag_of(self, tenant: str, salt: str) -> str:
        """The tag of a block computed for a request of the tenant with this cache salt; "": it has none."""
        tag = self.tenant_tag(tenant)
        return f"{tag}.{salt}" if tag and salt else tag or salt


def salt_without_tag(salt: str, tag: str) -> str:
    """The client's own part of a cache salt that may begin with its tenant's tag: of "TAG" nothing, of
    "TAG.salt" the salt. Another tenant's tag is a salt like any other."""
    if tag and (salt == tag or salt.startswith(f"{tag}.")):
        return salt[len(tag) + 1 :]
    return salt


def read_key(path: Path) -> bytes:
    """The key in a file, stripped of whitespace and hashed to 32 bytes. Raises ConfigError."""
    given = f"kv_events_key_file is {path}"
    try:
        with path.open("rb") as file:
            data = file.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{given}, which cannot be read ({error.strerror}); allowed: a file") from error
    key = data.strip()
    if len(data) > KEY_BYTES_MAX or len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"{given}, which has {len(key):,} bytes; allowed: {KEY_BYTES_MIN} to {KEY_BYTES_MAX:,} random "
            "ones, such as of `openssl rand -hex 32`"
        )
    return hashlib.blake2b(key, digest_size=32, person=b"kv events").digest()
