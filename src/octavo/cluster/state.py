"""The folder of a cluster on the machine that started it, readable by its owner alone.

    CACHE/clusters/octavo/  0700
        cluster.json        the address of its Ray, and the serving process
        token               of Ray; made before anything starts
        api_keys            the keys of --api-key, which no argument of Ray may hold

Nothing here imports Ray. On machines that only join, the operator installs the token, and there is no folder.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec

from octavo.errors import ConfigError, shown
from octavo.files import read_named_file

DEFAULT_NAME = "octavo"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_BYTES_MAX = 1 << 20


class ClusterAddress(msgspec.Struct, frozen=True):
    """The address of a cluster's Ray. `pid`: of the serving process; `token`: its file, None: Ray's
    default."""

    address: str
    pid: int
    token: str | None = None
    is_open: bool = False


class ClusterFolder:
    """The folder of one cluster; it need not exist. Raises ConfigError for a wrong name."""

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--name is {shown(name)}; allowed: 1 to 40 letters, digits, dashes and underscores"
            )
        self.name = name
        from octavo.model.hub.paths import cache_folder  # it loads numpy, which --help does without

        self.path = cache_folder() / "clusters" / name

    def make_token(self) -> Path:
        """Write a new random token to a file of mode 0600."""
        return self._write("token", secrets.token_hex(32))

    def write_keys(self, keys: Iterable[str]) -> Path:
        """Write clients' keys to a file of mode 0600."""
        return self._write("api_keys", "\n".join(keys) + "\n")

    def write_address(self, address: ClusterAddress) -> None:
        """Store the cluster's address."""
        self._write("cluster.json", msgspec.json.encode(address).decode())

    def find_address(self) -> ClusterAddress | None:
        """The address; None: no cluster of this name was started here. Raises ConfigError for a damaged
        file."""
        path = self.path / "cluster.json"
        if not path.exists():
            return None
        data = read_named_file(path, _BYTES_MAX, "--name names another")
        try:
            return msgspec.json.decode(data, type=ClusterAddress)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path} cannot be read: {error}; remove it") from None

    def read_address(self) -> ClusterAddress:
        """The address. Raises ConfigError if there is none."""
        if (found := self.find_address()) is not None:
            return found
        raise ConfigError(
            f"there is no cluster {shown(self.name)} on this machine; allowed: one that octavo cluster serve "
            "--name started here, or --address of its Ray"
        )

    def forget(self) -> None:
        """Delete the files of an ended cluster, and the folder if nothing else is in it."""
        for name in ("cluster.json", "token", "api_keys"):
            (self.path / name).unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _write(self, name: str, text: str) -> Path:
        """Write a file atomically."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        path, new = self.path / name, self.path / f".{name}.{os.getpid()}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
        return path
