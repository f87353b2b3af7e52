"""How a process reaches a cluster's Ray, and the key of the replicas' private ports.

    token (file or variable of each node) --+
                                            +-- HMAC-SHA256 --> key: computed where it is needed, sent nowhere
    salt (random, in Ray's own store)     --+

Without Ray's token everyone who reaches Ray's ports runs code on every node, and the salt alone makes the
key: it is then no secret from them. Variables are set before Ray is imported, which reads them once.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
from pathlib import Path

from octavo.errors import ConfigError, OctavoError

RAY_VERSION = "2.60.0"
NAMESPACE = "octavo"
ENGINES, RELAY = "engines", "relay"  # applications of Ray Serve
ENGINE_DEPLOYMENT, RELAY_DEPLOYMENT = "Engine", "Relay"
_CONNECT_S = 5.0
_ALLOW_OPEN = "--allow-open-cluster (args: allow_open_cluster: true)"
_KV = b"octavo"
_SALT = b"salt"
_SHARED_MEMORY_BYTES = 80 * 2**20  # Ray takes no less than 75 MiB; nothing large goes through it


class ClusterFailed(OctavoError):
    """Ray, or an application on it, does not do what was asked: in words."""


def check_ray() -> None:
    """Raises ConfigError where Ray is missing, or is not the version that this was written for."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("ray")
    except PackageNotFoundError:
        raise ConfigError("Ray is not installed; allowed: pip install 'octavo[ray]' on every node") from None
    if found != RAY_VERSION:
        raise ConfigError(
            f"Ray is {found}; allowed: {RAY_VERSION}, whose router interface is not settled yet "
            "(pip install 'octavo[ray]')"
        )


def set_environment(token: Path | None, *, is_open: bool = False) -> None:
    """Ray's variables for this process and what it starts: no usage reports; requests between its processes
    need the token. None: what the environment or ~/.ray/auth_token has."""
    check_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_worker_niceness", "0")  # else 15: engines would wait for every other process
    os.environ["RAY_AUTH_MODE"] = "disabled" if is_open else "token"
    if token is not None:
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)


def start_ray() -> str:
    """Start Ray's head in processes of this one; they end with it. Returns the address of its GCS."""
    import ray

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    ray.init(
        address="local",
        namespace=NAMESPACE,
        include_dashboard=False,
        object_store_memory=_SHARED_MEMORY_BYTES,
        logging_level=logging.WARNING,
    )
    return str(ray.get_runtime_context().gcs_address)


def join_ray(address: str, *, is_open: bool = False, quiet: bool = False) -> None:
    """Become a client of a Ray that runs. Raises ClusterFailed where it is not reached, or refuses the token;
    ConfigError where it takes requests without one, unless that `is_open` is known."""
    import ray

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    _check_reached(address)
    if not is_open:
        check_token(address)
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=not quiet,
            logging_level=logging.ERROR if quiet else logging.WARNING,
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ClusterFailed(f"Ray at {address} cannot be joined: {str(error)[:500]}") from None


def leave_ray() -> None:
    """Disconnect; a Ray that this process started ends."""
    import ray

    ray.shutdown()


def check_token(address: str) -> None:
    """Raises ConfigError where Ray at `address` asks for no token, or this process has none; ClusterFailed
    where that is not known."""
    _token_of_closed()
    if _answers_without_token(address):
        raise ConfigError(
            f"Ray at {address} asks for no token: everyone who reaches its ports runs code on every node; "
            f"allowed: start it with RAY_AUTH_MODE=token, or {_ALLOW_OPEN}"
        )


def cluster_key(*, is_open: bool) -> str:
    """64 hex digits, the same in every process of this cluster. Raises ConfigError where there is no token,
    unless that `is_open` is known."""
    token = _token() if is_open else _token_of_closed()
    salt = read_value(_SALT)
    if salt is None:
        write_value(_SALT, secrets.token_hex(32).encode(), overwrite=False)
        salt = read_value(_SALT)
    assert salt is not None
    return hmac.new(token.encode(), b"octavo: private ports" + salt, "sha256").hexdigest()


def read_value(name: bytes) -> bytes | None:
    """What a process of this cluster wrote in Ray's store, which lives as long as its head."""
    from ray.experimental.internal_kv import _internal_kv_get

    found = _internal_kv_get(name, namespace=_KV)
    return None if found is None else bytes(found)


def write_value(name: bytes, value: bytes, *, overwrite: bool = True) -> None:
    """For all processes of this cluster."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(name, value, overwrite=overwrite, namespace=_KV)


def forget_values() -> None:
    """Remove what was written: a cluster of Octavo's has ended, and Ray runs on."""
    from ray.experimental.internal_kv import _internal_kv_del

    for name in (_SALT, b"spec", b"slots"):
        _internal_kv_del(name, namespace=_KV)


def _token() -> str:
    """Ray's token, as this node has it; "" without one."""
    from ray._raylet import AuthenticationMode, AuthenticationTokenLoader, get_authentication_mode

    loader = AuthenticationTokenLoader.instance()
    if get_authentication_mode() != AuthenticationMode.TOKEN or not loader.has_token(ignore_auth_mode=True):
        return ""
    return str(loader.get_raw_token(ignore_auth_mode=True))


def _token_of_closed() -> str:
    if token := _token():
        return token
    raise ConfigError(
        "there is no token for Ray; allowed: RAY_AUTH_MODE=token on every node, and RAY_AUTH_TOKEN_PATH, "
        f"RAY_AUTH_TOKEN or ~/.ray/auth_token with the cluster's; or {_ALLOW_OPEN}"
    )


def _check_reached(address: str) -> None:
    """Raises ClusterFailed where nothing listens there: Ray itself would try for minutes. ConfigError where
    it is no address."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(
            f"--address is {address[:80]!r}; allowed: HOST:PORT of a Ray's GCS, such as 10.0.0.1:6379"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterFailed(f"no Ray is reached at {address}: {error}") from None


def _answers_without_token(address: str) -> bool:
    """Whether GCS answers a client that has none. Raises ClusterFailed where it does neither that nor refuse
    it."""
    import grpc
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            stub.GetAllNodeInfo(gcs_service_pb2.GetAllNodeInfoRequest(), timeout=_CONNECT_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return False
            raise ClusterFailed(
                f"Ray at {address} does not say whether it asks for a token: {error.code().name}"
            ) from None
    return True
