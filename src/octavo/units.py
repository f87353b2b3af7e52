"""Parsing and formatting of sizes and times, and the division of positions into blocks."""

from __future__ import annotations

import re

from octavo.errors import ConfigError, shown

_SECONDS = re.compile(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)?\s*")
_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*(?:([KMGTkmgt])([Ii]?[Bb])?|[Bb])?\s*")


def blocks_for(num_positions: int, block_size: int) -> int:
    """Blocks that hold `num_positions` positions: 600 in blocks of 16 take 38."""
    return -(-num_positions // block_size)


def padded_positions(count: int) -> int:
    """The padded number of positions that a device computes: 1, 2, 4, 8, 16, 24, ... 256, 320, ..."""
    if count <= 8:
        return 1 << (count - 1).bit_length()
    unit = 8 if count <= 256 else 64
    return -(-count // unit) * unit


def parse_bytes(text: str, setting: str) -> int:
    """ "2GiB", "500 MB" or "1073741824" as bytes; anything else is a ConfigError that names the setting."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{setting} is {shown(text)}; allowed: a size such as 512MiB, 2GiB or 1.5GB")
    number, prefix, end = match.groups("")
    base = 1024 if len(end) == 2 else 1000
    return int(float(number) * base ** " KMGT".find(prefix.upper() or " "))


def parse_seconds(text: str, setting: str) -> float:
    """ "50ms", "0.05" or "1.5s" as seconds; anything else is a ConfigError that names the setting."""
    match = _SECONDS.fullmatch(text)
    if match is None:
        raise ConfigError(f"{setting} is {shown(text)}; allowed: a time such as 50ms, 0.05 or 1.5s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def format_bytes(num_bytes: float) -> str:
    """2.9 GiB, 512 MiB, 80 KiB: at most three significant digits."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{num_bytes:.0f} B"


def format_part(num_bytes: float, total: float) -> str:
    """1.2 of 4.6 GiB: both in the unit of the whole."""
    whole, _, unit = format_bytes(total).rpartition(" ")
    size = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}[unit]
    digits = 1 if "." in whole else 0
    return f"{num_bytes / size:.{digits}f} of {whole} {unit}"


def format_age(seconds: float) -> str:
    """40 days, 3 hours, 12 minutes, 5 s: whole units, rounded down."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count:,} {unit}{'s' if count > 1 else ''}"
    return f"{max(0.0, seconds):.0f} s"
