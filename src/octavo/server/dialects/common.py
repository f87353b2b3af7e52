"""What the dialects share: fields that must be strings, placeholders for media, and errors of the chat path
with the dialect's own field names in place of OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.errors import InvalidRequest, wrong_value


@contextmanager
def rename_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Raise errors about the fields in `names` again, with each field renamed to its value there."""
    try:
        yield
    except InvalidRequest as error:
        given, message = (error.param or "").split(" and "), str(error)  # several: they contradict each other
        if not any(name in names for name in given):
            raise
        for name in given:
            message = re.sub(rf"\b{re.escape(name)}\b", names.get(name, name), message)
        own = " and ".join(names.get(name, name) for name in given)
        raise type(error)(message, param=own, code=error.code) from None


def require_string(given: Mapping[str, object], name: str, where: str) -> str:
    """A field of the object at `where`. Raises InvalidRequest unless it is a string."""
    value = given.get(name)
    if not isinstance(value, str):
        raise wrong_value(f"{where}.{name}", value, "a string")
    return value


def media_placeholder(kind: str) -> str:
    """The sentence that replaces an image or a file in a tool's result: this server reads text only."""
    article = "An" if kind[:1] in "aeiou" else "A"
    return f"[{article} {kind} was here. It cannot be shown: only text is read.]"
