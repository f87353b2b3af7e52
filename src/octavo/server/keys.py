"""API keys as they come from the command line, the environment or a file: checked before anything listens.

A key that nobody can send, or that everybody sends by sending nothing, would be an open door that looks shut.
So a key is printable ASCII without blanks, as it stands in a header, and nothing else is taken.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.errors import ConfigError
from octavo.files import read_regular_file

KEY_VARIABLE = "OCTAVO_API_KEY"
KEYS_MAX = 1024
KEY_CHARS_MAX = 512
_FILE_BYTES_MAX = 1 << 20
_ALLOWED = "allowed: 1 to 512 printable ASCII characters without blanks (octavo tenants new-key makes one)"


def check_key(key: str, source: str) -> str:
    """The key itself. Raises ConfigError, which says where it came from and never what it is."""
    if not key.strip():
        raise ConfigError(f"{source} is an empty key, which would let everybody in; {_ALLOWED}")
    if len(key) > KEY_CHARS_MAX:
        raise ConfigError(f"{source} has {len(key):,} characters; {_ALLOWED}")
    if len(key.splitlines()) > 1 or key != key.rstrip("\r\n"):
        raise ConfigError(f"{source} has several lines; {_ALLOWED}")
    if not key.isascii():
        raise ConfigError(f"{source} has characters that are no ASCII, which no header can carry; {_ALLOWED}")
    if not key.isprintable() or " " in key:
        raise ConfigError(f"{source} has blanks or control characters; {_ALLOWED}")
    return key


def collect_keys(
    options: Sequence[str], key_file: Path | None, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """All keys that were given: by --api-key, by --api-key-file (one a line), else by the environment.

    Raises ConfigError for any that is no key, also for a variable that is set and empty.
    """
    keys = [check_key(key, f"--api-key number {place}") for place, key in enumerate(options, 1)]
    if key_file is not None:
        keys += _read(key_file)
    elif not options and KEY_VARIABLE in environment:
        keys.append(check_key(environment[KEY_VARIABLE], KEY_VARIABLE))
    if len(keys) > KEYS_MAX:
        raise ConfigError(
            f"{len(keys):,} API keys; allowed: up to {KEYS_MAX:,} (--tenants tells users apart)"
        )
    return tuple(dict.fromkeys(keys))


def _read(path: Path) -> list[str]:
    """The keys of a file, one a line; lines that are empty or begin with # are none."""
    try:
        data = read_regular_file(path, _FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; --api-key-file names another") from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path} is too large; allowed: up to {_FILE_BYTES_MAX:,} bytes")
    lines = enumerate(data.decode("utf-8", "replace").split("\n"), 1)
    keys = [
        check_key(line.removesuffix("\r"), f"{path}, line {number},")
        for number, line in lines
        if line.strip() and not line.startswith("#")
    ]
    if not keys:
        raise ConfigError(f"{path} has no key in it, so nobody could come in; allowed: one key a line")
    return keys
