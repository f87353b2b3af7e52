"""A field's name as this API's clients know it, in the errors of the chat path, which knows OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from octavo.errors import InvalidRequest


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
