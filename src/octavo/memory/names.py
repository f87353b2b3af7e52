"""Names of full blocks: a chain of strong hashes, so a name stands for a block and everything before it.

    root = H(tenant key, model fingerprint, adapter, KV type, arithmetic id)
    name[0] = H(root,    tokens[0:B])
    name[1] = H(name[0], tokens[B:2B])      ...

Equal names mean equal bytes: under one root, the exactness contract makes the K and V of equal prefixes
bit-equal. The root is a secret of the tenant, so one tenant can neither find nor probe another's blocks. A
cache salt makes another root of the tenant's. H is blake2b with 32 bytes, over little-endian 32-bit tokens.
O(1) per block; a name is the same in every tier and process.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

NAME_BYTES = 32

assert sys.byteorder == "little", "names are defined over little-endian tokens"


def root_name(tenant_key: bytes, *parts: bytes) -> bytes:
    """The root of a tenant's chains: 32 bytes. `parts` are length-prefixed, so they cannot run together."""
    digest = hashlib.blake2b(digest_size=NAME_BYTES, key=hashlib.blake2b(tenant_key, digest_size=32).digest())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def salted_root(root: bytes, salt: str) -> bytes:
    """The root of a tenant's chains under a cache salt; "" is the tenant's own root. The salt is hashed under
    the tenant's root, so equal salts of two tenants share no name, and no block has this name."""
    return root_name(root, b"cache salt", salt.encode("utf-8", "surrogatepass")) if salt else root


def block_name(parent: bytes, tokens: array[int]) -> bytes:
    """The name of a block that holds exactly `tokens` (array of typecode 'I') after the prefix named
    `parent`."""
    return hashlib.blake2b(tokens.tobytes(), digest_size=NAME_BYTES, key=parent).digest()


def hits_max(num_tokens: int, block_size: int) -> int:
    """Blocks of `num_tokens` tokens that a prefix hit may cover. The last token is always computed, because
    the next one is sampled from its logits."""
    return (num_tokens - 1) // block_size


class NameChain:
    """The names of the full blocks of one growing token list, each computed once.

    `names[i]` names tokens [i * B, (i + 1) * B). Only full blocks have names.
    """

    __slots__ = ("block_size", "names", "num_shared", "root")

    def __init__(self, root: bytes, block_size: int) -> None:
        self.root = root
        self.num_shared = 0  # leading names that all tenants share
        self.block_size = block_size
        self.names: list[bytes] = []

    def extend(self, tokens: array[int]) -> None:
        """Name every block that `tokens` now fills. O(new full blocks)."""
        size = self.block_size
        while (len(self.names) + 1) * size <= len(tokens):
            index = len(self.names)
            parent = self.names[-1] if self.names else self.root
            if index == self.num_shared > 0:
                parent = hashlib.blake2b(parent, digest_size=NAME_BYTES, key=self.root).digest()
            self.names.append(block_name(parent, tokens[index * size : (index + 1) * size]))

    def begin_with_shared(self, names: Sequence[bytes]) -> None:
        """Begin with these names of prefixes that all tenants share. The tenant's root enters the first name
        after them. The chain was empty."""
        assert not self.names
        self.names = list(names)
        self.num_shared = len(self.names)

    def copy(self) -> NameChain:
        """A copy that grows independently."""
        twin = NameChain(self.root, self.block_size)
        twin.num_shared = self.num_shared
        twin.names = list(self.names)
        return twin
