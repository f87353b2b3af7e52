"""The chat template that the operator gives in place of the model's own: a file, a well-known one by its
name, or the text itself.

It is checked before a model is loaded: a malformed template fails at the start, not at the first chat.
"""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ConfigError, shown
from octavo.text.chat import TEMPLATE_CHARS_MAX
from octavo.text.template_worker import sandbox

NAMES = (
    "chatml",
    "falcon3",
    "gemma",
    "glm4",
    "granite",
    "llama2",
    "llama3",
    "mistral",
    "mistral-tekken",
    "olmo2",
    "phi3",
    "phi4",
    "phi4-mini",
    "zephyr",
)
IN_WORDS = "allowed: a file with a Jinja template, or one of " + ", ".join(NAMES)
GIVE_ONE = f"or give --chat-template: a file, or one of {', '.join(NAMES)}"
_FOLDER = Path(__file__).with_name("templates")
_SETTING = "chat_template"


def is_file_name(given: str) -> bool:
    """Whether it is neither a template's name nor the Jinja text itself."""
    return given not in NAMES and "{{" not in given and "{%" not in given


def load_template(given: str) -> str:
    """The Jinja text. Raises ConfigError: no such file, too large, no text, a mistake in it."""
    if given in NAMES:
        return (_FOLDER / f"{given}.jinja").read_text(encoding="utf-8")
    if is_file_name(given):
        source, where = _read(given), f"{_SETTING} {given}"
    else:
        source, where = given, _SETTING
    if len(source) > TEMPLATE_CHARS_MAX:
        raise ConfigError(f"{where} has {len(source):,} characters; allowed: {TEMPLATE_CHARS_MAX:,}")
    if not source.strip():
        raise ConfigError(f"{where} is empty; {IN_WORDS}")
    _check(source, where)
    return source


def _read(given: str) -> str:
    try:
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError(f"{_SETTING} is {shown(given)}, which is no file here; {IN_WORDS}")
        if path.stat().st_size > 4 * TEMPLATE_CHARS_MAX:
            raise ConfigError(
                f"{_SETTING} {path} has {path.stat().st_size:,} bytes; allowed: {4 * TEMPLATE_CHARS_MAX:,}"
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_SETTING} {given} is not UTF-8; {IN_WORDS}") from error
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null character, an unknown user's home
        raise ConfigError(f"{_SETTING} {shown(given)} cannot be read: {error}; {IN_WORDS}") from error


def _check(source: str, where: str) -> None:
    """Compile it without running it. Raises ConfigError."""
    import jinja2

    try:
        sandbox().compile(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{where} is no Jinja template: line {error.lineno}: {error.message}") from error
    except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{where} is no Jinja template: {error!s:.300}") from error
