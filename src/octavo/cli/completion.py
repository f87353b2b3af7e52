"""What a shell completes beside commands, options and their choices: models by name.

A shell runs the command at each tab: nothing heavy is loaded, no network is asked, and a cache that cannot be
read completes nothing. Files are the shell's own to complete, where nothing here fits.
"""

from __future__ import annotations

import contextlib

from octavo.errors import OctavoError


def complete_model(incomplete: str) -> list[str]:
    """The aliases and the fetched models that a name begins with."""
    from octavo.model.hub.alias import ALIASES

    names = dict.fromkeys([*ALIASES, *complete_cached(incomplete)])
    return [name for name in names if name.startswith(incomplete)]


def complete_cached(incomplete: str) -> list[str]:
    """The fetched models that a name begins with."""
    from octavo.model.hub.cache import cached_models

    with contextlib.suppress(OctavoError, OSError):
        return [model.name for model in cached_models() if model.name.startswith(incomplete)]
    return []
