"""Spoilt model files: a tiny model of each format taken apart, changed in one place, and written again.

Writers of their own, since a library's refuses to write what a damaged or hostile file holds.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.model.chunks import run_chunks

from octavo.errors import ModelError, OctavoError
from octavo.kernels.native_ops import NativeOps
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.text.tokenizer import Tokenizer

GROWTH_MAX = 64 << 20
ADDRESSES_MAX = 1 << 30  # beyond what the process has: an allocation that is never touched counts too
SECONDS_MAX = 5.0  # of the processor, for one file: they take 3 ms
GGUF_CODES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0", 12: "Q4_K", 14: "Q6_K", 30: "BF16"}
GGUF_CODES |= {6: "Q5_0", 7: "Q5_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 20: "IQ4_NL", 23: "IQ4_XS"}
GGUF_CODES |= {39: "MXFP4"}
_NUMBERS = {
    "u1": 0,
    "i1": 1,
    "u2": 2,
    "i2": 3,
    "u4": 4,
    "i4": 5,
    "f4": 6,
    "b1": 7,
    "u8": 10,
    "i8": 11,
    "f8": 12,
}

# What a setting may be replaced by: wrong types, wrong signs, ends of every range, and what is no number.
ODD_VALUES: tuple[object, ...] = (
    0, 1, 2, 3, 7, 127, -1, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, -(2**63), 0.0, 0.5, -1.0,
    1e-30, 1e300, float("inf"), float("-inf"), float("nan"), "", "x", "llama", "\0", "x" * 5000, True, False,
)  # fmt: skip


@dataclass
class Tally:
    """What became of the spoilt files."""

    refused: list[str] = field(default_factory=list)
    num_loaded: int = 0


@contextmanager
def within_bounds() -> Iterator[None]:
    """What runs inside takes little memory at its peak, touched or not. A timer that runs out raises."""
    with suppress(PermissionError), Path("/proc/self/clear_refs").open("w") as reset:
        reset.write("5")  # the peak is counted from here
    before = _status("VmHWM")
    limits, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, _raise_too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + ADDRESSES_MAX, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, handler)
    grown = _status("VmHWM") - before
    assert grown <= GROWTH_MAX, f"{grown >> 20} MiB at the peak"


def _raise_too_slow(*given: object) -> None:
    raise AssertionError(f"more than {SECONDS_MAX} s of the processor")


def try_tokenizers(folder: Path, spoil: Callable[[int], object], count: int) -> Tally:
    """Spoil a folder's files, build its tokenizer, and have it encode if that goes well; as `try_each`."""
    tally, path = Tally(), ModelPath("tiny", folder, "safetensors")
    with within_bounds():
        for trial in range(count):
            done = spoil(trial)
            try:
                Tokenizer.from_folder(folder).encode("words, 123 and \u4e16")
                tally.num_loaded += 1
            except OctavoError as error:
                tally.refused.append(checked(error, path, (trial, done)))
            except Exception as error:
                raise AssertionError(f"trial {trial}, {done!r:.300}: {error!r:.300}") from error
    return tally


def try_each(path: ModelPath, spoil: Callable[[int], object], count: int) -> Tally:
    """Spoil the files, load the model, and have it answer if that goes well; so many times.

    Anything but an OctavoError that names one of its files fails the test, and so does a slow one.
    """
    tally, ops = Tally(), NativeOps("auto")
    with within_bounds():
        for trial in range(count):
            done = spoil(trial)
            try:
                signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
                model = load_model(path, ops).model
                num_tokens = min(3, model.spec.context_length)
                run_chunks(ops, model, [1, 2, 3][:num_tokens], [num_tokens])
                tally.num_loaded += 1
            except OctavoError as error:
                tally.refused.append(checked(error, path, (trial, done)))
            except Exception as error:
                raise AssertionError(f"trial {trial}, {done!r:.300}: {error!r:.300}") from error
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    return tally


def checked(error: OctavoError, path: ModelPath, what: object) -> str:
    """The message, which is a model's error, short, and names a file of the model."""
    message = str(error)
    folder = path.path.parent if path.kind == "gguf" else path.path
    names = {path.path.name, *os.listdir(folder)}
    if not isinstance(error, ModelError) or len(message) > 1000 or not any(n in message for n in names):
        raise AssertionError(f"{what}: {type(error).__name__}: {message:.1500}")
    return message


def flipped(data: bytes, generator: np.random.Generator, stop: int) -> bytes:
    """One to five bytes of the first `stop` set to something, mostly to what hurts."""
    changed = np.frombuffer(data, np.uint8).copy()
    where = generator.integers(0, stop, generator.integers(1, 6))
    changed[where] = generator.choice([0, 1, 0x7F, 0x80, 0xFF, generator.integers(256)], len(where))
    return changed.tobytes()


def resized(data: bytes, generator: np.random.Generator, stop: int) -> bytes:
    """A few bytes of the first `stop` taken out, or put in twice."""
    start = int(generator.integers(0, stop))
    length = int(generator.integers(1, 9))
    if generator.integers(2):
        return data[:start] + data[start + length :]
    return data[: start + length] + data[start:]


def changed_shape(shape: tuple[int, ...], generator: np.random.Generator) -> tuple[int, ...]:
    """Another shape: turned, longer, shorter, huge, of more dimensions or of fewer."""
    sizes = list(shape)
    axis = int(generator.integers(len(sizes)))
    choices: list[list[int]] = [
        [*sizes[:axis], sizes[axis] + 1, *sizes[axis + 1 :]],
        [*sizes[:axis], sizes[axis] * 2, *sizes[axis + 1 :]],
        [*sizes[:axis], max(sizes[axis] // 2, 1), *sizes[axis + 1 :]],
        [*sizes[:axis], 2**40, *sizes[axis + 1 :]],
        [*sizes[:axis], 0, *sizes[axis + 1 :]],
        [*sizes, 1],
        [1, *sizes],
        sizes[:-1],
        [*sizes[:-1], sizes[-1] * 32],
    ]
    return tuple(choices[generator.integers(len(choices))])


@dataclass
class GgufTensor:
    """As the file's header describes it, true or not; `data` None: where another tensor's is."""

    name: str
    code: int
    shape: tuple[int, ...]
    data: bytes
    offset: int | None = None  # None: where the data was put


def gguf_bytes(metadata: dict[str, object], tensors: list[GgufTensor]) -> bytes:
    """A GGUF file that says just this."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % 32)
        offset = len(data) if tensor.offset is None else tensor.offset
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        header += _text(tensor.name) + dims + struct.pack("<IQ", tensor.code, offset)
        data += tensor.data
    return header + bytes(-len(header) % 32) + data


def _text(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if 0 <= value < 2**32 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, tuple):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    assert isinstance(value, np.ndarray)
    code = _NUMBERS[value.dtype.str[1:]]
    return struct.pack("<IIQ", 9, code, value.size) + value.tobytes()


def write_safetensors(path: Path, header: dict[str, object], data: bytes) -> None:
    """A safetensors file that says just this."""
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))
