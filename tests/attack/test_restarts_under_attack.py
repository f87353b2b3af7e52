"""What was said survives kill -9, and damage on disk costs time and never an answer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.attack.house import House, serving

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

SESSIONS = 30


def say(house: House, messages: list[dict[str, str]], session: str) -> tuple[dict[str, object], str]:
    body = {"messages": messages, "session": session, "max_tokens": 8, "temperature": 0, "logprobs": True}
    told = house.ask("POST", "/v1/chat/completions", json=body)
    assert told.status_code == 200, told.text
    return told.json()["choices"][0], told.headers["x-octavo-session"]


def turns_of(place: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Tell me of the number {place}, and of paper and printing. " * 4}]


def second_turns(house: House, chats: dict[str, list[dict[str, str]]]) -> list[object]:
    return [
        say(house, [*messages, {"role": "user", "content": "Go on."}], session)[0]
        for session, messages in chats.items()
    ]


def test_thirty_sessions_survive_kill_9_and_a_damaged_disk(tmp_path: Path) -> None:
    cache = ("--disk-cache", str(tmp_path / "cache"), "--disk-size", "256MiB")
    chats: dict[str, list[dict[str, str]]] = {}
    with serving(tmp_path, *cache) as house:
        for place in range(SESSIONS):
            messages = turns_of(place)
            choice, session = say(house, messages, "new")
            content = choice["message"]["content"]  # type: ignore[index]
            chats[session] = [*messages, {"role": "assistant", "content": content}]
        for session in list(chats)[::2]:
            assert house.ask("POST", f"/v1/sessions/{session}/suspend").status_code == 200
        house.kill()
    with serving(tmp_path, *cache) as house:
        listed = {one["id"] for one in house.ask("GET", "/v1/sessions").json()["data"]}
        assert listed == set(chats)
        after_kill = second_turns(house, dict(list(chats.items())[:10]))
        house.kill()
    damage(tmp_path / "cache")
    with serving(tmp_path, *cache) as house:
        rest = dict(list(chats.items())[10:])
        damaged = second_turns(house, {k: v for k, v in rest.items() if k in sessions_of(house)})
    with serving(tmp_path) as house:
        fresh = []
        for session, messages in chats.items():
            _, own = say(house, messages[:1], "new")
            fresh.append((session, say(house, [*messages, {"role": "user", "content": "Go on."}], own)[0]))
    told = dict(fresh)
    assert after_kill == [told[session] for session in list(chats)[:10]]
    assert damaged == [told[session] for session in list(chats)[10:]][: len(damaged)]


def sessions_of(house: House) -> set[str]:
    return {one["id"] for one in house.ask("GET", "/v1/sessions").json()["data"]}


def damage(folder: Path) -> None:
    """Turn a byte in each 64 KiB of the file of slots."""
    dice = random.Random(7)
    slots = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with slots.open("r+b") as file:
        for start in range(0, slots.stat().st_size, 65536):
            file.seek(start + dice.randrange(65536))
            byte = file.read(1)
            if byte:
                file.seek(-1, 1)
                file.write(bytes([byte[0] ^ 0x55]))
