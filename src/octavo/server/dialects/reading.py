"""What requests of all dialects have in common: fields that must be strings, media that is not read, and the
names of fields, which their clients know, in the errors of the chat path, which knows OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.errors import InvalidRequest, wrong_value


@contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors about the fields `names` are raised again with the names that they stand for."""
    try:
        yield
    except InvalidRequest as error:
        given, message = (error.param or "").split(" and "), str(error)  # several contradict each other
        if not any(name in names for name in given):
            raise
        for name in given:
            message = re.sub(rf"\b{re.escape(name)}\b", names.get(name, name), message)
        own = " and ".join(names.get(name, name) for name in given)
        raise type(error)(message, param=own, code=error.code) from None


def string_of(given: Mapping[str, object], name: str, where: str) -> str:
    """A field of the object at `where`. Raises InvalidRequest unless it is a string."""
    value = given.get(name)
    if not isinstance(value, str):
        raise wrong_value(f"{where}.{name}", value, "a string")
    return value


def unread_media(kind: str) -> str:
    """The sentence in place of an image or a file in a tool's result: this server reads text only."""
    article = "An" if kind[:1] in "aeiou" else "A"
    return f"[{article} {kind} was here. It cannot be shown: only text is read.]"
