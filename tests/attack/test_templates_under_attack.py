"""A model file whose chat template is hostile: chats with it are refused, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.attack.house import House, Probe, serving, stream

from octavo.model.files.gguf import read_gguf
from octavo.model.hub.paths import resolve

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

CHATS = 6
TEMPLATES = {
    "3 GB at once": ("{{ 'x' * 3000000000 }}", "more than 512 MiB"),
    "doubled": (
        "{% set s = namespace(x='x') %}{% for i in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
        "more than 512 MiB",
    ),
    "a long number": ("{{ 7 ** (9 ** 9) }}", "took more than 5 s"),
    "too much text": ("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "4,194,304 characters"),
}


def model_with(folder: Path, template: str) -> Path:
    """The default model's file with another template: as long as its own, so that nothing else moves."""
    plain = resolve(None, print).path
    own = str(read_gguf(plain).metadata["tokenizer.chat_template"]).encode()
    data = plain.read_bytes()
    assert data.count(own) == 1
    path = folder / "hostile.gguf"
    filled = template.encode() + b"{#" + b" " * (len(own) - len(template) - 4) + b"#}"
    path.write_bytes(data.replace(own, filled))
    return path


def chat(house: House) -> tuple[int, str]:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    answer = house.ask("POST", "/v1/chat/completions", json=body)
    return answer.status_code, answer.text


def tree_mib(house: House) -> float:
    """Memory of the server and of its helpers."""
    total = house.rss_mib()
    for children in Path(f"/proc/{house.process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread, or a helper, that has ended meanwhile
            for pid in children.read_text().split():
                total += (
                    int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
                )
    return total


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_hostile_template_harms_its_own_chats_alone(tmp_path: Path, name: str) -> None:
    template, words = TEMPLATES[name]

    async def pace(house: House) -> float:
        body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "temperature": 0}
        begun = time.perf_counter()
        moments = [moment async for moment in stream(house.port, body)]
        return moments[-1] - begun  # prompts are tokenised while templates are at work

    with serving(tmp_path, str(model_with(tmp_path, template))) as house:
        alone = asyncio.run(pace(house))
        before, probe, most = tree_mib(house), Probe(house.port), 0.0
        with ThreadPoolExecutor(CHATS + 1) as threads:
            began = time.monotonic()
            chats = [threads.submit(chat, house) for _ in range(CHATS)]
            paced = threads.submit(lambda: asyncio.run(pace(house)))
            while not all(one.done() for one in chats):
                most = max(most, tree_mib(house))
                time.sleep(0.02)
            beside = paced.result()
        took, health = time.monotonic() - began, probe.end()
        print(
            f"\n{name}: {CHATS} chats were refused within {took:.1f} s; a stream took "
            f"{alone * 1e3:.0f} ms alone and {beside * 1e3:.0f} ms beside them; "
            f"/health slowest {health[-1] * 1e3:.1f} ms; memory at most {most - before:+.0f} MiB"
        )
        for status, text in (one.result() for one in chats):
            assert status == 400
            assert words in text
        assert beside < 2 * alone + 0.5
        assert health[-1] < 0.2
        assert most - before < 2 * 512 + 100
        assert tree_mib(house) - before < 100
        assert "one user's message was rendered" in house.log.read_text()  # told at start
