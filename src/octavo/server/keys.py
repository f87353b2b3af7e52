"""API keys from the command line, the environment or a file, checked before the server listens.

An empty or unsendable key would disable authentication silently. So a key must be printable ASCII without
blanks, as a header carries it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError
from octavo.files import read_named_file

KEYS_MAX = 1024
KEY_CHARS_MAX = 512
_FILE_BYTES_MAX = 1 << 20
_ALLOWED = "allowed: 1 to 512 printable ASCII characters without blanks (octavo tenants new-key makes one)"


def check_key(key: str, source: str) -> str:
    """Return the key. Raises ConfigError, whose message has the source and never the key."""
    if not key.strip():
        raise ConfigError(f"{source} is an empty key, which would disable authentication; {_ALLOWED}")
    if len(key) > KEY_CHARS_MAX:
        raise ConfigError(f"{source} has {len(key):,} characters; {_ALLOWED}")
    if len(key.splitlines()) > 1 or key != key.rstrip("\r\n"):
        raise ConfigError(f"{source} has several lines; {_ALLOWED}")
    if not key.isascii():
        raise ConfigError(f"{source} has characters beyond ASCII, which no header can carry; {_ALLOWED}")
    if not key.isprintable() or " " in key:
        raise ConfigError(f"{source} has blanks or control characters; {_ALLOWED}")
    return key


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of keys, as read at start."""

    path: Path
    keys: tuple[str, ...]


def read_key_file(text: str, source: str) -> KeyFile:
    """The keys of the file that a setting names, one a line, without lines that are empty or begin with #.

    Raises ConfigError for a file without keys, and for a line that is not a key.
    """
    path = Path(text)
    data = read_named_file(path, _FILE_BYTES_MAX, f"{source} names another")
    lines = enumerate(data.decode("utf-8", "replace").split("\n"), 1)
    keys = [
        check_key(line.removesuffix("\r"), f"{path}, line {number},")
        for number, line in lines
        if line.strip() and not line.startswith("#")
    ]
    if not keys:
        raise ConfigError(
            f"{path} has no key in it, so no client could use the server; allowed: one key a line"
        )
    return KeyFile(path, tuple(keys))
