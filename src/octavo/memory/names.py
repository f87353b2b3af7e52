"""Names of full blocks: a chain of strong hashes, so that a name stands for everything before a block and
in it.

    root = H(tenant key, model fingerprint, adapter, KV type, arithmetic id)
    name[0] = H(root,    tokens[0:B])
    name[1] = H(name[0], tokens[B:2B])      ...

Equal names mean equal bytes: on one root the exactness contract makes the K and V of equal prefixes
bit-equal. The root is a secret of the tenant, so one tenant can neither find nor probe another's blocks. A
client's cache salt makes another root of its tenant's. H is blake2b with 32 bytes, over little-endian 32-bit
tokens. O(1) per block; the same name in every tier and process.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

NAME_BYTES = 32

assert sys.byteorder == "little", "names are defined over little-endian tokens"


def root_name(tenant_key: bytes, *parts: bytes) -> bytes:
    """The start of a tenant's chains: 32 bytes. `parts` are length-prefixed, so that they cannot run
    together."""
    digest = hashlib.blake2b(digest_size=NAME_BYTES, key=hashlib.blake2b(tenant_key, digest_size=32).digest())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def salted_root(root: bytes, salt: str) -> bytes:
    """The start of a tenant's chains under one of its cache salts; "" is the tenant's own. It joins the
    tenant's root, so equal salts of two tenants name nothing alike; and no block has such a name."""
    return root_name(root, b"cache salt", salt.encode("utf-8", "surrogatepass")) if salt else root


def block_name(parent: bytes, tokens: array[int]) -> bytes:
    """The name of a block that holds exactly `tokens` (array of typecode 'I') after the prefix named
    `parent`."""
    return hashlib.blake2b(tokens.tobytes(), digest_size=NAME_BYTES, key=parent).digest()


def hits_max(num_tokens: int, block_size: int) -> int:
    """Blocks of so many tokens that a prefix hit may cover: never the last token's, which is computed, since
    the next one is sampled from its logits."""
    return (num_tokens - 1) // block_size


class NameChain:
    """The names of the full blocks of one growing list of tokens, computed once each.

    `names[i]` names tokens [i * B, (i + 1) * B). It never holds a name that its tokens do not fill.
    """

    __slots__ = ("block_size", "names", "num_shared", "root")

    def __init__(self, root: bytes, block_size: int) -> None:
        self.root = root
        self.num_shared = 0  # of the leading names, those that every tenant has in common
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
        """Begin with these names, of prefixes that all tenants share; what follows is the tenant's own: its
        root enters the first name after them. The chain was empty."""
        assert not self.names
        self.names = list(names)
        self.num_shared = len(self.names)

    def copy(self) -> NameChain:
        """The same names, free to grow apart."""
        twin = NameChain(self.root, self.block_size)
        twin.num_shared = self.num_shared
        twin.names = list(self.names)
        return twin
