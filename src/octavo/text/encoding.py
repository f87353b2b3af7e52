"""Encodes one text with the library without delaying other threads: without the GIL, on a thread of low
priority, and freeing the memory afterwards.

    up to LONG_CHARS     encode              on the calling thread: too short to delay other threads
    longer               encode_batch_fast   without the GIL, on one of the library's own threads

The library's threads do not hold the GIL, so they may run at a lower priority than the kernels' threads. The
calling thread may not: while it waited for a core, it would hold the GIL, and all threads would wait (162 ms
measured with two busy threads, against 21 ms here; 2,268 ms with `encode` for all).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator

import tokenizers

from octavo.errors import InvalidRequest, OctavoError

LONG_CHARS = 4096  # about a millisecond
VERY_LONG_CHARS = 256 << 10  # leaves megabytes of freed memory in the C library
_NICER = 10


def encode_text(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """Token ids, as `backend` encodes them. Raises InvalidRequest for text that is not Unicode (a lone
    surrogate)."""
    try:
        if len(text) <= LONG_CHARS:
            ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
            return ids
        # The encoding is freed with the list, before `trim_memory`.
        [ids] = [one.ids for one in backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)]
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidRequest(f"the text is not valid Unicode: {_why(text, error)}", param="prompt") from error
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise InvalidRequest(
            f"the tokenizer library gave up on this text: {error!s:.200}", param="prompt"
        ) from None
    if len(text) >= VERY_LONG_CHARS:
        trim_memory()
    return ids


@contextlib.contextmanager
def panics_as(kind: type[OctavoError], source: str) -> Iterator[None]:
    """Convert a panic of the library to an error of that kind."""
    try:
        yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise kind(f"{source}: the tokenizer library gave up on it: {error!s:.200}") from None


def _is_panic(error: BaseException) -> bool:
    """Whether it is the library's panic, which is no Exception and has no module."""
    return type(error).__name__ == "PanicException"


def start_library_threads(backend: tokenizers.Tokenizer) -> threading.Thread:
    """Start the library's threads, which live as long as the process, with a low priority: they inherit it
    from the thread that first uses them. No effect if they exist already, or if TOKENIZERS_PARALLELISM
    forbids them. Returns the starting thread, which runs."""
    thread = threading.Thread(target=_start, args=(backend,), name="octavo-tokenizer-start", daemon=True)
    thread.start()
    return thread


def _start(backend: tokenizers.Tokenizer) -> None:
    # Some systems have no priority of threads, or forbid to change it; then all threads share evenly.
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICER)
    with contextlib.suppress(OctavoError), panics_as(OctavoError, "the first text"):
        backend.encode_batch_fast(["a"])


def trim_memory() -> None:
    """Return the C library's freed memory to the system, where that is supported."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _why(text: str, error: Exception) -> Exception:
    """The real cause, because the library's message only says that it needs a text."""
    try:
        text.encode()
    except UnicodeEncodeError as why:
        return why
    return error
