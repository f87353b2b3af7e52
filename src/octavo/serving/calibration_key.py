"""The key of a calibration: the machine, and the settings that change how long steps take.

`octavo bench calibrate` stores under it, `octavo plan` looks it up, and a running server reports its own.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace

from octavo import __version__
from octavo.config import MEASURED, StartOptions
from octavo.kernels.probe import probe
from octavo.setting import settings_of

_FOLDER = "FOLDER"  # stands for the disk cache's folder, which does not matter


def calibration_key(model: str | None, options: StartOptions) -> str:
    """24 hexadecimal digits: model, settings, this machine and this version."""
    machine, settings = probe(), _calibrated_settings(options)
    what = (model or "", settings, machine.cpu, machine.cores, machine.chosen, __version__)
    return hashlib.blake2b(repr(what).encode(), digest_size=12).hexdigest()


def calibrate_command(model: str | None, options: StartOptions) -> str:
    """ "octavo bench calibrate smollm2-135m --max-seqs 8": the command that measures these settings."""
    flags = {each.field: each.flag for each in settings_of(StartOptions)}
    words = ["octavo", "bench", "calibrate", *([model] if model else [])]
    for name, value in _calibrated_settings(options).items():
        words += [] if value is None else [flags[name], str(value)]
    return shlex.join(words)


def _calibrated_settings(options: StartOptions) -> dict[str, object]:
    """The settings that differ from their defaults, and None for the others."""
    plain = replace(options, disk_cache=None if options.disk_cache is None else _FOLDER)
    return {
        name: None if getattr(plain, name) == getattr(StartOptions(), name) else getattr(plain, name)
        for name in MEASURED
    }
