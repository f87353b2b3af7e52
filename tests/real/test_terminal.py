"""`octavo chat` and `octavo generate` write the same, whether the model is loaded here or a server's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.serving import serving
from typer.testing import CliRunner

from octavo.cli.main import app
from octavo.config import StartOptions
from octavo.serving.start import start_engine

pytestmark = [pytest.mark.full, pytest.mark.real_model]

HERE: dict[str, str] = {}
CHAT = "What is a book? In a line.\nAnd a page?\n/clear\nSay <|im_end|> twice.\n"


@pytest.fixture(scope="module")
def there(gguf_path: Path) -> Iterator[dict[str, str]]:
    """The variable that names a server of the model, as commands load it by themselves."""
    llm = start_engine(str(gguf_path), StartOptions(kv_memory_bytes=2**27), lambda _: None)
    try:
        with serving(llm) as url:
            yield {"OCTAVO_URL": url}
    finally:
        llm.close()


def written(env: dict[str, str], *words: str, typed: str = "") -> str:
    """Without the line that says who answers."""
    result = CliRunner().invoke(app, list(words), input=typed, env=env)
    assert result.exception is None, result.exception
    return result.stdout.partition("> ")[2] or result.stdout


@pytest.mark.parametrize(
    "sampling", [["--temperature", "0"], ["--seed", "7"], ["--seed", "8", "--top-k", "20", "--top-p", "0.8"]]
)
def test_the_same_is_written_here_and_from_there(there: dict[str, str], sampling: list[str]) -> None:
    words = ["generate", "Once upon a time", "--max-tokens", "40", "--stop", "zebra", *sampling]
    told = written(there, *words)
    assert len(told) > 40
    assert told == written(HERE, *words)
    words = ["chat", "--max-tokens", "30", "--system", "Answer as a librarian.", *sampling]
    told = written(there, *words, typed=CHAT)
    assert len(told) > 60
    assert told == written(HERE, *words, typed=CHAT)
