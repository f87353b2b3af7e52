"""The connection to a cluster's Ray, and the key of the replicas' private ports.

    token (file or variable of each node) --+
                                            +-- HMAC-SHA256 --> key: computed on each node, sent nowhere
    salt (random, in Ray's own store)     --+

Without Ray's token every client of Ray's ports can run code on every node. The key is then made of the salt
alone, which such a client can read. Variables are set before Ray is imported, which reads them once.
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
_SHARED_MEMORY_BYTES = 80 * 2**20  # Ray's minimum is 75 MiB; nothing large goes through it


class ClusterFailed(OctavoError):
    """Ray, or an application on it, has failed."""


def check_ray() -> None:
    """Raises ConfigError if Ray is missing or has another version."""
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
    """Set Ray's variables for this process and its children: no usage reports, and requests between Ray's
    processes need the token. `token` None: that of the environment or ~/.ray/auth_token."""
    check_ray()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # Ray's default is 15: other processes would slow engines
    os.environ["RAY_AUTH_MODE"] = "disabled" if is_open else "token"
    if token is not None:
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)


def start_ray() -> str:
    """Start Ray's head in child processes, which end with this one. Returns the address of its GCS."""
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
    """Become a client of a running Ray. Raises ClusterFailed if it is not reached or refuses the token;
    ConfigError if it accepts requests without a token, unless `is_open`."""
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
    """Disconnect; stop a Ray that this process started."""
    import ray

    ray.shutdown()


def check_token(address: str) -> None:
    """Raises ConfigError if Ray at `address` requires no token, or this process has none; ClusterFailed if
    Ray gives another error."""
    _token_of_closed()
    if _answers_without_token(address):
        raise ConfigError(
            f"Ray at {address} requires no token: every client of its ports can run code on every node; "
            f"allowed: start it with RAY_AUTH_MODE=token, or {_ALLOW_OPEN}"
        )


def cluster_key(*, is_open: bool) -> str:
    """64 hex digits, the same in every process of this cluster. Raises ConfigError without a token, unless
    `is_open`."""
    token = _token() if is_open else _token_of_closed()
    salt = read_value(_SALT)
    if salt is None:
        write_value(_SALT, secrets.token_hex(32).encode(), overwrite=False)
        salt = read_value(_SALT)
    assert salt is not None
    return hmac.new(token.encode(), b"octavo: private ports" + salt, "sha256").hexdigest()


def read_value(name: bytes) -> bytes | None:
    """A value of this cluster in Ray's store, which lives as long as Ray's head."""
    from ray.experimental.internal_kv import _internal_kv_get

    value = _internal_kv_get(name, namespace=_KV)
    return None if value is None else bytes(value)


def write_value(name: bytes, value: bytes, *, overwrite: bool = True) -> None:
    """Store a value for all processes of this cluster."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(name, value, overwrite=overwrite, namespace=_KV)


def delete_values() -> None:
    """Delete all values: the cluster has ended, while Ray may go on."""
    from ray.experimental.internal_kv import _internal_kv_del

    for name in (_SALT, b"spec", b"slots"):
        _internal_kv_del(name, namespace=_KV)


def _token() -> str:
    """Ray's token on this node; "" without one."""
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
    """Raises ClusterFailed if nothing listens there, as Ray itself would retry for minutes; ConfigError for
    text that is no address."""
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
    """Whether GCS answers a client without a token. Raises ClusterFailed for any error but a refusal."""
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
                f"Ray at {address} was asked for its nodes without a token, and failed: {error.code().name}"
            ) from None
    return True
