"""An answer in a terminal is Markdown laid out, drawn as it comes; elsewhere it is the text as it is."""

from __future__ import annotations

import io
import os
import pty
import random
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.screens import Screen
from tests.processes import running
from tests.tiers import full

from octavo.cli import answer_view
from octavo.cli.answer_view import length_finished, rendered, show_answer

ROOT = Path(__file__).parents[2]
LETTER = """# Whales

Whales are **large** animals of the sea, and _none_ of them is a fish; they breathe air.
Their songs last for `20` minutes:

- The first song is low, and it is heard many hundreds of miles away from where it was sung
- The second
  - has parts

1. Dive
2. Breathe

```python
def sing(whale: str) -> str:
    return f"{whale} sings a song that is longer than the line of this terminal"
```

| whale | tons |
| --- | ---: |
| blue | 150 |
| minke | 9 |

> Call me Ishmael.

See [the book](https://example.org/moby) for <em>more</em> of it.
"""
VERSES = "Roses are red\nViolets are blue\n\n<think>\nIs that so?\n</think>\nSugar is sweet"


@pytest.fixture(autouse=True)
def _each_piece_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_view, "_DRAW_EVERY_S", 0.0)


def console_on(file: io.StringIO, screen: Screen) -> Console:
    return Console(
        file=file, force_terminal=True, width=screen.width, height=screen.height, highlight=False,
        _environ={"TERM": "xterm-256color"},
    )  # fmt: skip


def shown(pieces: list[str], width: int = 60, height: int = 12) -> Screen:
    """The screen after an answer of these pieces."""
    screen, file = Screen(width, height), io.StringIO()
    with show_answer(console_on(file, screen)) as show:
        for piece in pieces:
            show(piece)
            # A terminal moves to the first column at a line break, as the driver of a real one does.
            screen.write(file.getvalue().replace("\n", "\r\n"))
            file.seek(0)
            file.truncate()
    screen.write(file.getvalue().replace("\n", "\r\n"))
    return screen


def at_once(text: str, width: int = 60) -> str:
    """The whole laid out by rich, when all of it is known."""
    screen, file = Screen(width, 10_000), io.StringIO()
    console_on(file, screen).print(rendered(text))
    screen.write(file.getvalue().replace("\n", "\r\n"))
    return screen.text()


def lines_with_words(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def cut(text: str, seed: int) -> list[str]:
    """In pieces of 1 to 9 characters."""
    rng, pieces = random.Random(seed), []
    while text:
        size = rng.randint(1, 9)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.parametrize("text", [LETTER, VERSES], ids=["letter", "verses"])
@pytest.mark.parametrize("height", [4, full(12), full(60)])
def test_a_streamed_answer_ends_as_the_whole_laid_out_at_once(text: str, height: int) -> None:
    for pieces in ([text], list(text), cut(text, 1), cut(text, 2)):
        screen = shown(pieces, height=height)
        assert lines_with_words(screen.text()) == lines_with_words(at_once(text))
        assert screen.lines[-1] == ""  # the next line is the prompt's


@pytest.mark.parametrize("width", [20, 33, 60])
def test_lines_end_between_words_at_any_moment(width: int) -> None:
    words = "a cetacean's extraordinarily long breath is remarkable " * 6
    whole, screen = set(words.split()), Screen(width, 30)
    file = io.StringIO()
    with show_answer(console_on(file, screen)) as show:
        for end, piece in enumerate(words, 1):
            show(piece)
            screen.write(file.getvalue().replace("\n", "\r\n"))
            file.seek(0)
            file.truncate()
            on_screen = screen.text().split()
            assert set(on_screen[:-1]) <= whole
            assert " ".join(on_screen) == " ".join(words[:end].split())
    assert max(map(len, screen.lines)) <= width


def test_marks_become_layout_and_nothing_that_was_written_is_lost() -> None:
    text = shown([LETTER]).text()
    assert "**" not in text
    assert "```" not in text
    assert "https://example.org/moby" in text
    assert "<em>more</em>" in text
    text = shown([VERSES]).text()
    assert "Roses are red\nViolets are blue\n" in text
    assert "<think>\nIs that so?\n</think>\nSugar is sweet" in text


def test_control_characters_of_a_model_drive_no_terminal() -> None:
    assert shown(["a\x1b[2Jb\x07\x9bc\r\n\n```\nd\te\x1b]0;t\x07\n```\n"]).text().startswith("a[2Jbc\n")


@pytest.mark.parametrize(
    "text, finished",
    [
        ("One\n\nTwo", ""),  # the second's line is not whole: it might be ---
        ("One\n\nTwo\n", "One\n\n"),
        ("One\n---\n", ""),
        ("1. a\n\n2", ""),  # it may go on as 2. b
        ("1. a\n\n2. b\n", ""),
        ("- a\n\nTwo\n", "- a\n\n"),
        ("```\na\n\nb\n\n", ""),
        ("```\na\n```\nTwo\n", "```\na\n```\n"),
        ("| a |\n| - |\n| b |\n", ""),
        ("", ""),
        ("\n\n", ""),
    ],
)
def test_a_block_is_finished_when_a_whole_line_of_the_next_has_come(text: str, finished: str) -> None:
    assert text[: length_finished(text)] == finished


@pytest.mark.parametrize("term", [None, "dumb"])
def test_text_is_as_it_is_where_no_terminal_lays_it_out(
    term: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(file=io.StringIO(), force_terminal=term is not None, _environ={"TERM": term or ""})
    with show_answer(console) as show:
        for piece in ("**bo", "ld**\n", "<think>"):
            show(piece)
    assert capsys.readouterr().out == "**bold**\n<think>\n"


CHAT = """
import asyncio, sys
from rich.console import Console
from octavo.cli.answerer import EngineAnswerer
from octavo.cli.chat import Conversation, _read_line, talk
from octavo.params import SamplerParams
from tests.doubles.fake_model import FakeModel
answerer = EngineAnswerer(FakeModel(sys.argv[1]), SamplerParams())
talk(Conversation(answerer, None), _read_line, Console(highlight=False))
"""


def test_a_conversation_in_a_real_terminal_is_laid_out() -> None:
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "40", "LINES": "10", "NO_COLOR": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])
    command = [sys.executable, "-c", CHAT, "Whales are **large** animals\n\n- of the sea\n"]
    with running(command, stdin=follower, stdout=follower, stderr=follower, env=env) as chat:
        os.close(follower)
        os.write(leader, b"hi\n/raw\n/exit\n")
        seen = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
    os.close(leader)
    assert chat.returncode == 0, seen
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", seen.decode()).replace("\r", "")
    assert "Whales are large animals\n" in text
    assert " • of the sea\n" in text
    assert "Whales are **large** animals\n\n- of the sea\n" in text  # /raw
