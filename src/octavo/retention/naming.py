"""The names of what requests, sessions and pins compute: under which root, and which of them all tenants have
in common."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

from octavo.memory.names import NameChain, salted_root
from octavo.memory.quota import SHARED
from octavo.retention.pins import Pins
from octavo.retention.session_table import SessionTable
from octavo.types import Request


@dataclass(eq=False)
class Naming:
    """Chains of names for tokens. Changes nothing."""

    _block_size: int
    _root_of_tenant: Callable[[str], bytes]
    _pins: Pins
    _sessions: SessionTable

    def of_request(self, request: Request) -> NameChain:
        """The names of a request's full blocks; a turn, or one that resumes a session, goes on under those
        that the session has. O(tokens)."""
        if request.cache_salt:
            return self._salted(request)
        pin = self._pins.filled_by(request)
        session_id = request.session if pin is None else pin.session_id
        return self.of_session(request.tenant, session_id, array("I", request.prompt))

    def of_session(self, tenant: str, session_id: str, tokens: array[int]) -> NameChain:
        """The same for tokens that a session may have said; "": none has."""
        session = self._sessions.get(session_id)
        if session is None or session.tenant != tenant:
            return self._of_tenant(tenant, tokens)
        return self._of_tenant(tenant, tokens, session.names, session.num_shared)

    def _of_tenant(
        self, tenant: str, tokens: array[int], said: Many[bytes] = (), num_shared: int = 0
    ) -> NameChain:
        """The names of its full blocks: those that the operator shares, as far as they go, then the tenant's
        own. O(tokens).

        `said`: names that a session has, the first `num_shared` of them shared ones. Tokens that extend these
        go on as the session began, whatever is pinned now: their blocks have no other names.
        """
        size = self._block_size
        chain = NameChain(self._root_of_tenant(tenant), size)
        shared = self._pins.shared_names
        if tenant != SHARED and (shared or num_shared):
            whole = NameChain(self._root_of_tenant(SHARED), size)
            whole.extend(tokens)
            count = next((i for i, name in enumerate(whole.names) if name not in shared), len(whole.names))
            if num_shared and whole.names[:num_shared] == list(said[:num_shared]):
                count = num_shared
            elif said and not num_shared:
                own = NameChain(chain.root, size)
                own.extend(tokens[:size])
                count = 0 if own.names == [said[0]] else count
            chain.begin_with_shared(whole.names[:count])
        chain.extend(tokens)
        return chain

    def as_named(self, tenant: str, tokens: array[int], num_shared: int) -> NameChain:
        """The names that these tokens had when the first `num_shared` of them were shared ones. O(tokens)."""
        size = self._block_size
        chain = NameChain(self._root_of_tenant(tenant), size)
        if num_shared:
            whole = NameChain(self._root_of_tenant(SHARED), size)
            whole.extend(tokens[: num_shared * size])
            chain.begin_with_shared(whole.names)
        chain.extend(tokens)
        return chain

    def _salted(self, request: Request) -> NameChain:
        """The names of a request's full blocks under its cache salt, to which even what the operator shares
        is foreign. O(tokens)."""
        assert not request.session, "what a session keeps has no salt"
        assert not request.fills_pin, "what a pin keeps has no salt"
        root = salted_root(self._root_of_tenant(request.tenant), request.cache_salt)
        chain = NameChain(root, self._block_size)
        chain.extend(array("I", request.prompt))
        return chain
