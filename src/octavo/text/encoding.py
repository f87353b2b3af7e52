"""One text through the library, so that nobody else has to wait for it: without the GIL, on a thread of low
priority, and with the memory given back.

    up to LONG_CHARS     encode              on the calling thread: over before anybody misses the GIL
    longer               encode_batch_fast   without the GIL, on one of the library's own threads

The library's threads hold no GIL, so they can give way to the kernels' threads. The calling thread must not:
if it waited for a core with the GIL in its hands, everybody would wait with it (162 ms were seen beside two
busy threads, where this waits 21; 2,268 ms with `encode` for all).
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
VERY_LONG_CHARS = 256 << 10  # leaves megabytes behind
_NICER = 10


def encode_text(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """Token ids, as `backend` encodes them. Raises InvalidRequest for text that is no Unicode (a lone
    surrogate)."""
    try:
        if len(text) <= LONG_CHARS:
            ids: list[int] = backend.encode(text, add_special_tokens=add_special_tokens).ids
            return ids
        # The encoding is dropped with the list, before its memory is asked for.
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
        give_memory_back()
    return ids


@contextlib.contextmanager
def panics_as(kind: type[OctavoError], source: str) -> Iterator[None]:
    """What the library gives up on within it is an error of that kind."""
    try:
        yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise kind(f"{source}: the tokenizer library gave up on it: {error!s:.200}") from None


def _is_panic(error: BaseException) -> bool:
    """The library's own, which is no Exception and has no module."""
    return type(error).__name__ == "PanicException"


def start_library_threads(backend: tokenizers.Tokenizer) -> threading.Thread:
    """Have the library make its threads, which last as long as the process, with a low priority: they inherit
    it from the thread that first asks for them. Without effect where they are there already, or where
    TOKENIZERS_PARALLELISM forbids them. Returns the thread that asks, started."""
    thread = threading.Thread(target=_start, args=(backend,), name="octavo-tokenizer-start", daemon=True)
    thread.start()
    return thread


def _start(backend: tokenizers.Tokenizer) -> None:
    # Not everywhere is the priority a thread's own, or may be changed; then they share evenly.
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICER)
    with contextlib.suppress(OctavoError), panics_as(OctavoError, "the first text"):
        backend.encode_batch_fast(["a"])


def give_memory_back() -> None:
    """What the C library keeps of freed memory goes back to the system, where it can be asked for it."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _why(text: str, error: Exception) -> Exception:
    """The library only says that it wants a text."""
    try:
        text.encode()
    except UnicodeEncodeError as why:
        return why
    return error
