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
        own = names.get(error.param or "")
        if own is None:
            raise
        message = re.sub(rf"\b{error.param}\b", lambda _: own, str(error))
        raise type(error)(message, param=own, code=error.code) from None
