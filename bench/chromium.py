"""Chromium for the scripts in this folder: finds it, and keeps it from contacting its maker's hosts."""

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
    """The path of the program. Exits with a hint if there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        sys.exit("this needs a browser; on Debian: apt-get install chromium")
    return found
