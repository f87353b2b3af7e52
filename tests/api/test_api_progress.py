"""The bar: late, on a terminal, or a program's own."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from octavo import LLM, SamplingParams
from octavo.api.progress import APPEARS_AFTER_S, DRAWN_EVERY_S, UseTqdm, WorkBar


def drawn(use_tqdm: UseTqdm, seconds: float, *, is_terminal: bool = True) -> str:
    """What is on the terminal when two of three have ended, after so many seconds."""
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=120)
    bar = WorkBar("Processed prompts", 3, use_tqdm, 10.0, console)
    bar.count(ended=2, input_tokens=30, output_tokens=60)
    bar.draw(10.0 + seconds)
    bar.close()
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_long_work_shows_how_much_is_done_and_how_fast() -> None:
    text = drawn(True, 3.0)
    assert "2/3" in text
    assert "Processed prompts, 10 tok/s in, 20 out" in text


@pytest.mark.parametrize(
    "use_tqdm, seconds, is_terminal",
    [(True, APPEARS_AFTER_S - 0.1, True), (False, 9.0, True), (True, 9.0, False)],
)
def test_nothing_is_shown_too_early_unasked_or_where_no_one_looks(
    use_tqdm: bool, seconds: float, is_terminal: bool
) -> None:
    assert drawn(use_tqdm, seconds, is_terminal=is_terminal) == ""


def test_it_is_drawn_no_more_often_than_can_be_read() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar = WorkBar("Processed prompts", 1000, True, 0.0, console)
    sizes = set()
    for step in range(100):
        bar.count(ended=1)
        bar.draw(APPEARS_AFTER_S + step * DRAWN_EVERY_S / 50)
        sizes.add(len(console.file.getvalue()))  # type: ignore[attr-defined]
    bar.close()
    assert len(sizes) == 2


class Theirs:
    """As much of `tqdm` as is used."""

    def __init__(self, total: int, desc: str) -> None:
        self.total, self.desc, self.done, self.is_closed = total, desc, 0, False

    def update(self, n: int = 1) -> None:
        self.done += n

    def close(self) -> None:
        self.is_closed = True


def test_a_programs_own_bar_is_reported_of_each_request_and_closed(make_llm: Callable[..., LLM]) -> None:
    made: list[Theirs] = []

    def make(total: int, desc: str) -> Theirs:
        made.append(Theirs(total, desc))
        return made[-1]

    make_llm().generate(["abc"] * 5, SamplingParams(max_tokens=3), use_tqdm=make)
    (bar,) = made
    assert (bar.total, bar.desc, bar.done, bar.is_closed) == (5, "Processed prompts", 5, True)


def test_tqdm_itself_is_such_a_bar(make_llm: Callable[..., LLM]) -> None:
    tqdm = pytest.importorskip("tqdm")
    out = io.StringIO()

    def make(total: int, desc: str) -> object:
        return tqdm.tqdm(total=total, desc=desc, file=out)

    make_llm().generate(["abc"] * 4, SamplingParams(max_tokens=2), use_tqdm=make)  # type: ignore[arg-type]
    assert "4/4" in out.getvalue()
