"""The names by which a relay looks for a prompt's blocks are those that the engine gives them."""

from __future__ import annotations

import asyncio
from array import array
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from octavo.cluster.prompts import names_of
from octavo.memory.block_namer import BlockNamer
from octavo.memory.names import hits_max, root_name
from octavo.memory.quota import SHARED
from octavo.routing.reports import pack_names, unpack_names
from octavo.routing.router import NamingScheme
from octavo.types import Request

SIZE, PARTS = 4, (b"model",)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def root_of(tenant: str) -> bytes:
    return root_name(tenant.encode(), *PARTS)


@given(
    prompt=TOKENS,
    pins=st.lists(TOKENS, max_size=3),
    prefixes=st.lists(st.integers(0, 40), max_size=2),
    tenant=st.sampled_from(["", "alice"]),
    salt=st.sampled_from(["", "", "s"]),
)
def test_they_are_equal(
    prompt: list[int], pins: list[list[int]], prefixes: list[int], tenant: str, salt: str
) -> None:
    pins += [prompt[:length] for length in prefixes]
    empty = BlockNamer(SIZE, root_of, ())
    shared = {name for pin in pins for name in empty.chain(SHARED, array("I", pin)).names}
    namer, tokens = BlockNamer(SIZE, root_of, shared), array("I", prompt)
    chain = partial(namer.salted, tenant, salt) if salt else partial(namer.chain, tenant)
    wanted = chain(tokens).names[: hits_max(len(prompt), SIZE)]
    naming = NamingScheme(PARTS, SIZE, frozenset(unpack_names(pack_names(shared))))
    request = Request(prompt=tuple(prompt), tenant=tenant, cache_salt=salt)
    assert asyncio.run(names_of(request, {"f": naming})) == {"f": unpack_names(pack_names(wanted))}
