"""One tenant's long texts do not hold up another's stream, nor /health."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from tests.attack.house import House, Probe, post, serving, stream

from octavo.tenants import digest_of

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

TEXT = ("Paper, printing and books: what was said of them, again and again. " * 16_000)[: 2**20 - 1]
HOSTILE = "<|im_" * (2**20 // 5)  # looked through for control tokens, and never one
FLOOD = 7
GAP_GROWS_S = 0.05
FIRST_GAP_GROWS_S = 0.15  # of the first flood that a server sees; see docs/log.md


def tenants(folder: Path) -> str:
    path = folder / "tenants.toml"
    path.write_text(
        "".join(f'[[tenant]]\nname = "{n}"\nkey_sha256 = "{digest_of(n + "-key").hex()}"\n' for n in "ab")
    )
    return str(path)


async def gaps(house: House) -> list[float]:
    """Of a stream of tenant a, from its second chunk on; sorted."""
    body = {"prompt": "Once", "max_tokens": 160, "ignore_eos": True, "temperature": 0}
    moments = [moment async for moment in stream(house.port, body, authorization="Bearer a-key")]
    return sorted(after - before for before, after in itertools.pairwise(moments[1:]))


async def flood(house: House, path: str) -> list[int]:
    """Prompts of tenant b that are too long for any context, all at once, again and again until cancelled."""
    bodies = {
        "/v1/completions": {"prompt": TEXT, "max_tokens": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": HOSTILE}], "max_tokens": 1},
        "/tokenize": {"prompt": TEXT},
    }
    sent = [post(house.port, path, bodies[path], authorization="Bearer b-key") for _ in range(FLOOD)]
    return [status for status, _ in await asyncio.gather(*sent)]


def in_words(gaps: list[float]) -> str:
    return f"{gaps[len(gaps) // 2] * 1e3:.1f} and {gaps[-1] * 1e3:.1f} ms"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_long_texts_of_one_tenant_leave_anothers_stream_its_pace(tmp_path: Path, path: str) -> None:
    async def both(house: House) -> tuple[list[float], list[int]]:
        flooding = asyncio.create_task(flood(house, path))
        found = await gaps(house)
        return found, await flooding

    with serving(tmp_path, "--tenants", tenants(tmp_path)) as house:
        asyncio.run(gaps(house))  # warm
        alone = asyncio.run(gaps(house))
        before = house.rss_mib()
        first, _ = asyncio.run(asyncio.wait_for(both(house), 120))
        probe = Probe(house.port)
        beside, statuses = asyncio.run(asyncio.wait_for(both(house), 120))
        health = probe.end()
        print(
            f"\n{path}, {FLOOD} texts of 1 MiB: median and slowest gap of a stream {in_words(alone)}, beside "
            f"them {in_words(beside)} (beside the first ones {in_words(first)}); "
            f"/health slowest {health[-1] * 1e3:.1f} ms; "
            f"memory {house.rss_mib() - before:+.0f} MiB"
        )
        assert set(statuses) <= {200, 400, 429}
        assert first[-1] - alone[-1] < FIRST_GAP_GROWS_S
        assert beside[-1] - alone[-1] < GAP_GROWS_S
        assert health[-1] < 0.2
        assert house.rss_mib() - before < 150
