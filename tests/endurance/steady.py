"""Does anything grow? Many requests of mixed kinds through a small pool; memory and every index are looked at
now and then, with nothing running.

What is looked at is found by walking from the engine's client through Octavo's own objects: every list, dict,
set and deque counts, by the path that leads to it, so an index that is added later is looked at as well.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.engine.peek import ask
from tests.wanted import request_for

from octavo.bench.offline import FIRST_TOKEN
from octavo.errors import OctavoError
from octavo.params import SamplerParams, Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.serving.client import EngineClient

IN_FLIGHT = 24
_POLL_S = 0.02
_PIN_TENANTS, _PIN_NAMES = ("", "a"), ("x", "y", "z")
_CONTAINERS = (list, dict, set, deque)


@dataclass(frozen=True, slots=True)
class Look:
    """What was there after so many requests, with nothing running."""

    requests: int
    resident_bytes: int
    objects: int  # that Python's collector tracks
    indexes: dict[str, int]  # entries by path
    preemptions: int
    evictions: int
    blocks_held: int


def grown(looks: list[Look], first: int, slack: float = 0.02) -> list[str]:
    """Indexes with more entries in the last look than in that of number `first`, beyond a slack of a fraction
    and of eight."""
    before, after = looks[first].indexes, looks[-1].indexes
    return sorted(path for path, size in after.items() if size > before.get(path, 0) * (1 + slack) + 8)


def spread(looks: list[Look], first: int) -> float:
    """The largest resident size from look `first` on over the smallest, less one."""
    sizes = [look.resident_bytes for look in looks[first:]]
    return max(sizes) / min(sizes) - 1.0


async def run(llm: EngineClient, num_requests: int, every: int, tell: Callable[[str], None]) -> list[Look]:
    """Send the requests, `IN_FLIGHT` at a time. Raises what the engine raises beyond refusals."""
    generator, looks = random.Random(0), [await look(llm, 0)]
    shared = [_tokens(llm, generator, 96) for _ in range(8)]
    for first in range(0, num_requests, every):
        count = min(every, num_requests - first)
        left = iter(range(count))

        async def client(left: Iterator[int] = left) -> None:
            for _ in left:
                await _one(llm, generator, shared)

        await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
        await _settle(llm)
        looks.append(await look(llm, first + count))
        tell(f"{first + count:,} requests, {looks[-1].resident_bytes / 2**20:,.0f} MiB resident")
    return looks


async def look(llm: EngineClient, requests: int) -> Look:
    """Everything, while nothing runs."""
    gc.collect()
    stats = await llm.stats()
    return Look(
        requests,
        _resident_bytes(),
        len(gc.get_objects()),
        dict(census(llm)),
        stats.preemptions,
        stats.evictions,
        stats.blocks_held - stats.blocks_pinned,
    )


def census(root: object) -> Counter[str]:
    """Entries of every container that Octavo's objects hold, by path. Elements count under their container's
    path; what is reached twice counts once."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    stack: list[tuple[str, object]] = [(type(root).__name__, root)]
    while stack:
        path, item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, _CONTAINERS):
            sizes[path] += len(item)
            elements = item.values() if isinstance(item, dict) else item
            stack += [(f"{path}[]", element) for element in list(elements) if _is_looked_into(element)]
        elif type(item).__module__.startswith("octavo."):
            stack += [
                (f"{path}.{name}", value) for name, value in _attributes(item) if _is_looked_into(value)
            ]
    return sizes


def _is_looked_into(value: object) -> bool:
    return isinstance(value, _CONTAINERS) or type(value).__module__.startswith("octavo.")


def _attributes(item: object) -> Iterator[tuple[str, object]]:
    yield from getattr(item, "__dict__", {}).items()
    for kind in type(item).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(item, name):
                yield name, getattr(item, name)


async def _settle(llm: EngineClient) -> None:
    """Until nothing runs, and nothing is kept: which pins live just now is a matter of the clock."""
    for tenant, name in product(_PIN_TENANTS, _PIN_NAMES):
        with suppress(OctavoError):  # there may be none of that name
            await llm.control.unpin(tenant, name)
    while await ask(llm, lambda s, now: s.has_work or bool(s.transfers.in_flight)):
        await asyncio.sleep(_POLL_S)


async def _one(llm: EngineClient, generator: random.Random, shared: list[list[int]]) -> None:
    """A request of a random kind; one that is refused has had its turn."""
    r = generator
    prompt = [*r.choice(shared)[: r.choice([0, 16, 48, 96])], *_tokens(llm, r, r.randint(1, 48))]
    kind = r.random()
    if kind < 0.03:
        await _pin(llm, r, prompt)
        return
    params = SamplerParams(
        max_tokens=r.randint(1, 8),
        temperature=r.choice([0.0, 1.0]),
        ignore_eos=r.random() < 0.5,
        logprobs=2 if r.random() < 0.1 else None,
        prompt_logprobs=0 if r.random() < 0.03 else None,
        stop=("e",) if r.random() < 0.1 else (),
    )
    timeouts = Timeouts(total=r.choice([0.05, 0.5])) if r.random() < 0.1 else Timeouts()
    try:
        stream = await llm.submit(
            request_for(
                prompt,
                params,
                n=r.choice([1, 1, 1, 1, 3]),
                priority=r.choice([0, 0, 0, 5, -5]),
                tenant=r.choice(["", "a", "b"]),
                timeouts=timeouts,
            )
        )
    except OctavoError:
        return
    leaves_after = r.randint(1, 3) if r.random() < 0.1 else None
    try:
        count = 0
        async for _ in stream:
            count += 1
            if count == leaves_after:
                break
    finally:
        stream.cancel()


async def _pin(llm: EngineClient, r: random.Random, prompt: list[int]) -> None:
    tenant, name = r.choice(_PIN_TENANTS), r.choice(_PIN_NAMES)
    with suppress(OctavoError):  # there may be one of that name, or too few blocks
        await llm.control.pin(PinRequest(name, tuple(prompt), r.choice([1.0, 60.0]), tenant=tenant))
    if r.random() < 0.7:
        with suppress(OctavoError):
            await llm.control.unpin(tenant, name)


def _tokens(llm: EngineClient, generator: random.Random, count: int) -> list[int]:
    low = min(FIRST_TOKEN, llm.vocab_size - 1)
    return [generator.randrange(low, llm.vocab_size) for _ in range(count)]


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
