"""Chromium for the scripts beside this one: found, and kept from asking for its maker's hosts."""

from __future__ import annotations

import shutil
import sys

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]


def find_chromium() -> str:
    """The program; without one the script ends and says what to do."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("this needs a browser; on Debian: apt-get install chromium")
    return found
