"""Which calibration is whose: of the settings, those that change what steps take, and the machine.

`octavo bench calibrate` stores under the key, `octavo plan` looks it up, and a running server names its own.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace

from octavo import __version__
from octavo.config import MEASURED, StartOptions
from octavo.kernels.probe import probe
from octavo.setting import settings_of

_FOLDER = "FOLDER"  # in place of the disk cache's, which may be any


def calibration_key(model: str | None, options: StartOptions) -> str:
    """24 hexadecimal digits: model, settings, this machine and this version."""
    machine, settings = probe(), _measured(options)
    what = (model or "", settings, machine.cpu, machine.cores, machine.chosen, __version__)
    return hashlib.blake2b(repr(what).encode(), digest_size=12).hexdigest()


def calibrate_command(model: str | None, options: StartOptions) -> str:
    """ "octavo bench calibrate smollm2-135m --max-seqs 8": what measures these settings."""
    flags = {each.field: each.flag for each in settings_of(StartOptions)}
    words = ["octavo", "bench", "calibrate", *([model] if model else [])]
    for name, value in _measured(options).items():
        words += [] if value is None else [flags[name], str(value)]
    return shlex.join(words)


def _measured(options: StartOptions) -> dict[str, object]:
    """The settings that differ from their defaults, and None for the others."""
    plain = replace(options, disk_cache=None if options.disk_cache is None else _FOLDER)
    return {
        name: None if getattr(plain, name) == getattr(StartOptions(), name) else getattr(plain, name)
        for name in MEASURED
    }
