"""Reads and checks the server's certificate and key, at the start and at each SIGHUP."""

from __future__ import annotations

import ssl
from pathlib import Path

from octavo.errors import ConfigError
from octavo.server.settings import ServerSettings

_FILE_BYTES_MAX = 2**20


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """The context for TLS 1.2 or newer; None: plain HTTP. Raises ConfigError for files that are missing,
    unreadable, or do not match."""
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_key is None:
        raise ConfigError("--tls-cert is given without --tls-key; allowed: both, or neither")
    if settings.tls_cert is None:
        raise ConfigError("--tls-key is given without --tls-cert; allowed: both, or neither")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    _load_files(context, settings.tls_cert, settings.tls_key)
    return context


def _load_files(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Raises ConfigError."""
    _check_readable("--tls-cert", cert)
    _check_readable("--tls-key", key)
    try:
        context.load_cert_chain(cert, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"--tls-key {key} is not the key of the certificate in --tls-cert {cert}; allowed: its own "
                "(a chain begins with the server's certificate)"
            ) from None
        raise ConfigError(
            f"--tls-cert {cert} and --tls-key {key} cannot be used: {error.reason or error}; allowed: a "
            "certificate (chain) and a key, in PEM"
        ) from None


def _check_readable(option: str, path: Path) -> None:
    allowed = "allowed: a PEM file that this user may read"
    try:
        with path.open("rb") as file:
            if len(file.read(_FILE_BYTES_MAX + 1)) > _FILE_BYTES_MAX:
                raise ConfigError(f"{option} {path} has more than {_FILE_BYTES_MAX:,} bytes; {allowed}")
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {error.strerror}; {allowed}") from None


def _refuse_passphrase() -> str:
    raise ConfigError(
        "--tls-key needs a passphrase; allowed: a key without one, readable by this user alone (openssl pkey "
        "-in KEY -out NEW)"
    )
