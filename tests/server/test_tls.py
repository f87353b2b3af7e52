"""TLS: what is wrong with the files is said before anything is loaded; connections keep their bounds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import ssl
import subprocess
import sys

import httpx
import pytest
from tests.doubles.fake_model import FakeModel
from tests.processes import running
from tests.server.test_connections import HEALTH, run, serving
from tests.waiting import LIMIT_S, until

from octavo.errors import ConfigError
from octavo.server.connections import BoundedConnection
from octavo.server.run import open_listener
from octavo.server.settings import ServerSettings
from octavo.server.tls import tls_context

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def make_pair(folder, name, *more, kind=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
    """A key and a certificate of its own for localhost."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    made = ["openssl", "req", "-x509", "-newkey", *kind, "-days", "2"]
    of = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*made, *of, "-keyout", key, "-out", cert, *(more or ["-nodes"])], check=True, capture_output=True
    )
    return cert, key


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    made = {name: make_pair(folder, name) for name in ("first", "second")}
    return made | {"rsa": make_pair(folder, "rsa", kind=("rsa:2048",))}


def settings(pair, **more):
    return ServerSettings(tls_cert=pair[0], tls_key=pair[1], drain_timeout_s=0.1, **more)


def trusting(pair):
    return ssl.create_default_context(cafile=str(pair[0]))


def test_one_file_without_the_other_is_refused(pairs):
    cert, key = pairs["first"]
    with pytest.raises(ConfigError, match="--tls-cert is given without --tls-key"):
        tls_context(ServerSettings(tls_cert=cert))
    with pytest.raises(ConfigError, match="--tls-key is given without --tls-cert"):
        tls_context(ServerSettings(tls_key=key))


def test_what_is_wrong_with_the_files_is_reported_before_a_model_is_loaded(pairs, tmp_path):
    (cert, key), (_, other) = pairs["first"], pairs["second"]
    garbage, large = tmp_path / "garbage.pem", tmp_path / "large.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    with large.open("wb") as file:
        file.truncate(2**20 + 1)
    for chosen, words in (
        ((tmp_path / "none.pem", key), "--tls-cert .*none.pem cannot be read: No such file"),
        ((cert, tmp_path / "none.key"), "--tls-key .*none.key cannot be read: No such file"),
        ((tmp_path, key), "--tls-cert .* cannot be read: Is a directory"),
        ((cert, other), "second.key is not the key of the certificate in --tls-cert .*first.pem"),
        ((garbage, key), "garbage.pem and --tls-key .* cannot be used"),
        ((key, cert), "cannot be used"),
        ((large, key), "has more than 1,048,576 bytes"),
    ):
        with pytest.raises(ConfigError, match=words), open_listener(settings(chosen, port=0)):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_key_that_may_not_be_read_is_named(pairs, tmp_path):
    key = tmp_path / "closed.key"
    key.write_bytes(pairs["first"][1].read_bytes())
    key.chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        tls_context(settings((pairs["first"][0], key)))


def test_a_passphrase_is_never_asked_for(tmp_path):
    pair = make_pair(tmp_path, "closed", "-passout", "pass:secret")
    with pytest.raises(ConfigError, match="needs a passphrase"):
        tls_context(settings(pair))


def test_certificate_and_key_may_be_one_file(pairs, tmp_path):
    both = tmp_path / "both.pem"
    both.write_bytes(pairs["first"][1].read_bytes() + pairs["first"][0].read_bytes())
    assert tls_context(settings((both, both))) is not None


def test_an_answer_and_a_stream_come_over_tls(pairs):
    async def scenario():
        own = {"tls_cert": pairs["first"][0], "tls_key": pairs["first"][1]}
        async with serving(**own) as port, httpx.AsyncClient(verify=trusting(pairs["first"])) as client:
            url = f"https://127.0.0.1:{port}"
            assert (await client.get(f"{url}/health")).json() == {"status": "ok"}
            body = {"messages": [{"role": "user", "content": "hi " * 20_000}], "stream": True}
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            assert answer.status_code == 400  # too long for the model, and whole on the way
            body["messages"][0]["content"] = "hi"
            answer = await client.post(f"{url}/v1/chat/completions", json=body)
            assert answer.text.endswith("data: [DONE]\n\n")

    run(scenario())


def test_plain_http_gets_no_answer_and_harms_no_one(pairs):
    async def scenario():
        async with serving(tls_cert=pairs["first"][0], tls_key=pairs["first"][1]) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTH)
            with contextlib.suppress(ConnectionError):
                assert b"200" not in await asyncio.wait_for(reader.read(), LIMIT_S)
            writer.close()
            assert await health(port, pairs["first"]) == b"HTTP/1.1 200 OK\r\n"

    run(scenario())


async def health(port, pair):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(pair))
    writer.write(HEALTH)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), LIMIT_S)
    writer.close()
    return answer


def test_hands_that_are_not_shaken_end_the_connection(pairs):
    async def scenario():
        own = {"tls_cert": pairs["first"][0], "tls_key": pairs["first"][1]}
        async with serving(headers_timeout_s=0.3, **own) as port:
            for begun in (b"", b"\x16\x03\x01\x02\x00\x01"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(begun)
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
                writer.close()
            assert await health(port, pairs["first"]) == b"HTTP/1.1 200 OK\r\n"

    run(scenario())


def test_headers_that_do_not_come_after_the_handshake_end_the_connection(pairs):
    async def scenario():
        own = {"tls_cert": pairs["first"][0], "tls_key": pairs["first"][1]}
        async with serving(headers_timeout_s=0.3, **own) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(pairs["first"]))
            writer.write(b"GET /health HT")
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""

    run(scenario())


def test_a_handshake_under_way_is_closed_when_the_server_stops_before_what_runs_has_ended(pairs):
    async def scenario():
        own = {"tls_cert": pairs["first"][0], "tls_key": pairs["first"][1]}
        model = FakeModel("ab")
        model.hold = asyncio.Event()
        async with serving(model, headers_timeout_s=600, drain_timeout_s=600, **own) as port:
            _, asking = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(pairs["first"]))
            asking.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n")
            asking.write(b'{"prompt": "x"}')
            await until(lambda: model.submitted)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await health(port, pairs["first"])  # the server has taken both

            async def release():
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                model.hold.set()

            released = asyncio.ensure_future(release())
        await released
        writer.close()
        asking.close()

    run(scenario())


def test_silent_handshakes_that_were_closed_are_freed_at_once(pairs):
    async def scenario():
        own = {"tls_cert": pairs["first"][0], "tls_key": pairs["first"][1]}
        async with serving(headers_timeout_s=0.2, **own) as port:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
                writer.close()
            await until(lambda: not [one for one in gc.get_objects() if isinstance(one, BoundedConnection)])

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


def test_a_client_without_a_handshake_is_closed_for_one_that_asks(pairs):
    async def scenario():
        own = {"tls_cert": pairs["first"][0], "tls_key": pairs["first"][1]}
        async with serving(connections_max=4, **own) as port:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
            assert await health(port, pairs["first"]) == b"HTTP/1.1 200 OK\r\n"
            for _, writer in idle:
                writer.close()

    run(scenario())


SERVE = """
import sys
from pathlib import Path
from octavo.server.logs import configure_logging
from octavo.server.run import bind, serve
from octavo.server.settings import ServerSettings
from tests.doubles.fake_model import FakeModel
configure_logging("info", "text")
settings = ServerSettings(tls_cert=Path(sys.argv[1]), tls_key=Path(sys.argv[2]))
serve(FakeModel(), bind("127.0.0.1", 0), settings, lambda url: print(url, flush=True))
"""


def test_a_hangup_reads_the_files_again_and_keeps_the_old_ones_where_they_do_not_fit(pairs, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(name_of_cert, name_of_key):
        cert.write_bytes(pairs[name_of_cert][0].read_bytes())
        key.write_bytes(pairs[name_of_key][1].read_bytes())

    def is_served(name):
        with contextlib.suppress(httpx.ConnectError):
            return httpx.get(f"{url}/health", verify=trusting(pairs[name])).status_code == 200
        return False

    put("first", "first")
    command = [sys.executable, "-c", SERVE, str(cert), str(key)]
    with running(command, stderr=subprocess.PIPE) as process:
        url = process.stdout.readline().strip()
        assert url.startswith("https://")
        assert is_served("first")
        put("second", "first")
        process.send_signal(signal.SIGHUP)
        wait_for_line(process, "stay as they were")
        assert is_served("first")
        put("second", "second")
        process.send_signal(signal.SIGHUP)
        wait_for_line(process, "new connections get")
        assert is_served("second")
        assert not is_served("first")
        put("rsa", "rsa")  # a context would keep the old one beside it
        process.send_signal(signal.SIGHUP)
        wait_for_line(process, "new connections get")
        assert is_served("rsa")
        assert not is_served("second")
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        assert "Traceback" not in process.stderr.read()


def wait_for_line(process, words):
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"the log never says {words!r}")
