"""The sample text for measurements: the language reference that ships with Python, as its help prints it.

It is prose with examples, about 460,000 characters, under the PSF licence. It differs a little between Python
versions: figures are comparable only if the digests of the texts are equal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Sample:
    """A text and its source."""

    text: str
    source: str

    @property
    def digest(self) -> str:
        """The first 12 hexadecimal digits of its SHA-256 in UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


def sample_text(path: Path | None) -> Sample:
    """The file's text, or Python's topics in alphabetical order. Raises ConfigError if it cannot be read.

    Trailing line ends are dropped, because a peer that reads the same file drops them too.
    """
    if path is None:
        from pydoc_data.topics import topics

        return Sample("\n".join(topics[name] for name in sorted(topics)).rstrip("\n"), "pydoc_data.topics")
    try:
        return Sample(path.read_text(encoding="utf-8").rstrip("\n"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {path} cannot be read: {error}") from None
