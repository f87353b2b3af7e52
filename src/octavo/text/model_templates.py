"""The chat templates in a model's files: one, or several by name, of which one may be for tools.

folder   chat_template.jinja, additional_chat_templates/tool_use.jinja
         tokenizer_config.json: chat_template, a text or a list of named ones; chat_template.json
GGUF     tokenizer.chat_template, tokenizer.chat_template.tool_use
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.errors import BadModelFile
from octavo.fields import Fields, read_json_fields
from octavo.text.chat import TEMPLATE_CHARS_MAX

_TOOLS = "tool_use"


@dataclass(frozen=True, slots=True)
class ModelTemplates:
    """Jinja texts: `default`, and the one for chats `with_tools`, if that is another."""

    default: str | None = None
    with_tools: str | None = None


def templates_of_gguf(metadata: Fields) -> ModelTemplates:
    """Raises BadModelFile."""
    default = metadata.text("tokenizer.chat_template", "") or None
    return ModelTemplates(default, metadata.text(f"tokenizer.chat_template.{_TOOLS}", "") or None)


def templates_of_folder(folder: Path, settings: Fields) -> ModelTemplates:
    """`settings` are tokenizer_config.json's. Raises BadModelFile."""
    default = _file(folder / "chat_template.jinja")
    with_tools = _file(folder / "additional_chat_templates" / f"{_TOOLS}.jinja")
    if default is not None:
        return ModelTemplates(default, with_tools)
    value = settings.values.get("chat_template")
    path = folder / "chat_template.json"
    if value is None and path.is_file():
        value = read_json_fields(path).values.get("chat_template")
    if isinstance(value, list):
        named = {one.get("name"): one.get("template") for one in value if isinstance(one, dict)}
        return ModelTemplates(_text(named.get("default")), _text(named.get(_TOOLS)) or with_tools)
    return ModelTemplates(_text(value), with_tools)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _file(path: Path) -> str | None:
    if not path.is_file():
        return None
    if path.stat().st_size > 4 * TEMPLATE_CHARS_MAX:
        raise BadModelFile(
            f"{path} has {path.stat().st_size:,} bytes; allowed for a template: {4 * TEMPLATE_CHARS_MAX:,}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{path} is not UTF-8") from error
