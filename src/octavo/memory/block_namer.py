"""The names of the blocks that a tenant's tokens fill: from which root, and which names all tenants share."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.memory.names import NameChain, salted_root
from octavo.memory.quota import SHARED


@dataclass(eq=False)
class BlockNamer:
    """Builds name chains. `shared_names`: names that the operator shares with all tenants now."""

    block_size: int
    root_of_tenant: Callable[[str], bytes]
    shared_names: Collection[bytes]

    def chain(
        self, tenant: str, tokens: array[int], session_names: Many[bytes] = (), num_shared: int = 0
    ) -> NameChain:
        """The names of the full blocks: first the names that the operator shares, then the tenant's own.
        O(tokens).

        `session_names`: names of a session; the first `num_shared` of them are shared. Tokens that
        extend a session keep its choice of names, whatever is pinned now: its blocks have no other names.
        """
        chain, shared = self._empty(tenant), self.shared_names
        if tenant != SHARED and (shared or num_shared):
            whole = self._empty(SHARED)
            whole.extend(tokens)
            count = next((i for i, name in enumerate(whole.names) if name not in shared), len(whole.names))
            if num_shared and whole.names[:num_shared] == list(session_names[:num_shared]):
                count = num_shared
            elif session_names and not num_shared:
                own = self._empty(tenant)
                own.extend(tokens[: self.block_size])
                count = 0 if own.names == [session_names[0]] else count
            chain.begin_with_shared(whole.names[:count])
        chain.extend(tokens)
        return chain

    def salted(self, tenant: str, salt: str, tokens: array[int]) -> NameChain:
        """The names under a cache salt, which no other request shares, the operator's included. O(tokens)."""
        chain = NameChain(salted_root(self.root_of_tenant(tenant), salt), self.block_size)
        chain.extend(tokens)
        return chain

    def restored_chain(self, tenant: str, tokens: array[int], num_shared: int) -> NameChain:
        """The names of these tokens when the first `num_shared` blocks had shared names. O(tokens)."""
        chain = self._empty(tenant)
        if num_shared:
            whole = self._empty(SHARED)
            whole.extend(tokens[: num_shared * self.block_size])
            chain.begin_with_shared(whole.names)
        chain.extend(tokens)
        return chain

    def _empty(self, tenant: str) -> NameChain:
        return NameChain(self.root_of_tenant(tenant), self.block_size)
