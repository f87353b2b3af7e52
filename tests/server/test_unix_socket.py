"""A socket file in place of address and port: who may connect, and what is replaced."""

from __future__ import annotations

import os
import socket
import stat
import sys
from pathlib import Path

import httpx
import pytest
from tests.processes import running
from tests.waiting import LIMIT_S

from octavo.errors import ConfigError
from octavo.server.run import open_listener
from octavo.server.settings import ServerSettings
from octavo.server.unix_socket import unix_listener

SERVE = """
import sys
from pathlib import Path
from octavo.server.run import open_listener, serve
from octavo.server.settings import ServerSettings
from tests.doubles.fake_model import FakeModel
settings = ServerSettings(unix_socket=Path(sys.argv[1]), api_keys=tuple(sys.argv[2:]))
with open_listener(settings) as listener:
    serve(FakeModel(), listener, settings, lambda url: print(url, flush=True))
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "octavo.sock"


def ask(path, route="/health", **options):
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
        return client.get(route, **options)


def test_a_server_answers_there_and_leaves_no_socket_behind(path):
    with running([sys.executable, "-c", SERVE, path]) as process:
        assert process.stdout.readline().strip() == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert ask(path).json() == {"status": "ok"}
        assert ask(path, "/v1/models").status_code == 200
        assert ask(path, "/v1/models", headers={"Host": "evil.example"}).status_code == 403
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert not path.exists()


def test_keys_hold_there_as_everywhere(path):
    with running([sys.executable, "-c", SERVE, path, "secret"]) as process:
        process.stdout.readline()
        assert ask(path, "/metrics").status_code == 401
        assert ask(path, "/metrics", headers={"x-api-key": "secret"}).status_code == 200
        process.terminate()
        assert process.wait(LIMIT_S) == 0


def test_the_file_is_for_owner_and_group_whatever_the_umask(path):
    before = os.umask(0o077)
    try:
        with unix_listener(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
    finally:
        os.umask(before)


def test_a_socket_that_nothing_answers_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with unix_listener(path) as listener:
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_socket_that_something_answers_is_not(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match="which answers"), unix_listener(path):
            pass
    assert path.exists()


def test_a_server_that_does_not_listen_yet_keeps_its_path(path):
    with (
        unix_listener(path),
        pytest.raises(ConfigError, match="another server's"),
        unix_listener(path),
    ):
        pass
    with unix_listener(path):  # gone: free again
        pass


def test_another_file_is_never_touched(path):
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"), unix_listener(path):
        pass
    assert path.read_text() == "precious"
    path.unlink()
    with unix_listener(path):
        path.unlink()
        path.write_text("came meanwhile")
    assert path.read_text() == "came meanwhile"


def test_a_link_is_no_socket(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="no socket"), unix_listener(path):
        pass


def test_a_folder_that_is_not_there_is_named(tmp_path):
    settings = ServerSettings(unix_socket=tmp_path / "none" / "a.sock")
    with pytest.raises(ConfigError, match="No such file or directory"), open_listener(settings):
        pass


def test_it_takes_the_place_of_an_address():
    with pytest.raises(ConfigError, match="both given"):
        ServerSettings(unix_socket=Path("/run/octavo.sock"), host="0.0.0.0", insecure=True)


def test_a_path_longer_than_the_system_takes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="allowed: up to 107"):
        ServerSettings(unix_socket=tmp_path / ("a" * 108))
