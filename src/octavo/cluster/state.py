"""What this machine knows of its clusters: a small folder for each, readable by its owner alone.

    CACHE/clusters/octavo/  0700
        cluster.json        where its Ray is, and which process serves
        token               Ray's; made before anything starts
        api_keys            the keys of --api-key, which no argument of Ray's may hold

It knows no Ray. Machines that only join have the token, by the operator's hand, and no folder.
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
    """Where a cluster's Ray is. `pid`: of the process that serves; `token`: the file, None: Ray's usual."""

    address: str
    pid: int
    token: str | None = None
    is_open: bool = False


class ClusterFolder:
    """The folder of one cluster; it need not exist. Raises ConfigError for a name that is none."""

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--name is {shown(name)}; allowed: 1 to 40 letters, digits, dashes and underscores"
            )
        self.name = name
        from octavo.model.hub.paths import cache_folder  # it loads numpy, which --help has not

        self.path = cache_folder() / "clusters" / name

    def make_token(self) -> Path:
        """A new random token, in a file of mode 0600."""
        return self._write("token", secrets.token_hex(32))

    def write_keys(self, keys: Iterable[str]) -> Path:
        """Clients' keys in a file of mode 0600."""
        return self._write("api_keys", "\n".join(keys) + "\n")

    def write_address(self, address: ClusterAddress) -> None:
        """Say where the cluster is."""
        self._write("cluster.json", msgspec.json.encode(address).decode())

    def find_address(self) -> ClusterAddress | None:
        """None: no cluster of that name was started here. Raises ConfigError for a file that is damaged."""
        path = self.path / "cluster.json"
        if not path.exists():
            return None
        data = read_named_file(path, _BYTES_MAX, "--name names another")
        try:
            return msgspec.json.decode(data, type=ClusterAddress)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path} cannot be read: {error}; remove it") from None

    def read_address(self) -> ClusterAddress:
        """The same. Raises ConfigError where there is none."""
        if (found := self.find_address()) is not None:
            return found
        raise ConfigError(
            f"there is no cluster {shown(self.name)} on this machine; allowed: one that octavo cluster serve "
            "--name started here, or --address of its Ray"
        )

    def forget(self) -> None:
        """The cluster has ended: its files go, and the folder if nothing else is in it."""
        for name in ("cluster.json", "token", "api_keys"):
            (self.path / name).unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _write(self, name: str, text: str) -> Path:
        """Whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)
        path, new = self.path / name, self.path / f".{name}.{os.getpid()}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
        return path
