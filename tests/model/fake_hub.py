"""A Hugging Face hub and its file store, on two ports of this machine: what huggingface_hub asks of them.

    127.0.0.1:A   GET /api/models/OWNER/NAME           the commit, names, sizes, SHA-256
                  HEAD, GET /OWNER/NAME/resolve/...    small files; large ones (LFS) are redirected
    localhost:B   GET /SHA256                          the bytes, with ranges

It records every request, and does wrong what it is told to do wrong.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" + 34 * "0"


@dataclass
class FakeHub:
    """`files` of one repository. What is listed in `cuts` ends early, each once: after so many bytes."""

    name: str = "owner/name"
    commit: str = COMMIT
    files: dict[str, bytes] = field(default_factory=dict)
    small: set[str] = field(default_factory=set)  # no LFS
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)  # answers of the file store, each once
    refused: tuple[int, str] | None = None  # every answer's status, and the hub's own code for why
    refused_files: tuple[int, str] | None = None
    spoilt: set[str] = field(default_factory=set)  # its bytes are not what the hub says
    untold: set[str] = field(default_factory=set)  # neither LFS nor git: nobody tells a checksum
    etags: dict[str, str] = field(default_factory=dict)  # told instead of a checksum
    sizes: dict[str, object] = field(default_factory=dict)  # listed instead of the right ones
    listing: bytes | None = None  # sent instead of a description
    store_headers: dict[str, str] = field(default_factory=dict)  # sent with the bytes
    location: str = ""  # where large files are, instead of the file store
    ranges: bool = True
    stall: threading.Event | None = None  # a cut waits for it before it ends
    seen: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    tokens: list[tuple[str, str]] = field(default_factory=list)  # "hub" or "store", Authorization
    url: str = ""
    store_url: str = ""

    def gets(self) -> list[str]:
        """The ranges that were asked of the file store, in their order."""
        return [wanted for method, path, wanted in self.seen if method == "GET" and len(path) == 65]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub
    place = "hub"

    def log_message(self, *_arguments: object) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.seen.append((self.command, path, self.headers.get("Range", "")))
        if "Authorization" in self.headers:
            self.hub.tokens.append((self.place, self.headers["Authorization"]))
        self.respond(path)

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, refused: tuple[int, str]) -> None:
        self.send(refused[0], {"X-Error-Code": refused[1], "X-Error-Message": "no"} if refused[1] else {})

    def respond(self, path: str) -> None:
        hub = self.hub
        if hub.refused is not None:
            self.refuse(hub.refused)
        elif path == f"/api/models/{hub.name}" and hub.listing is not None:
            self.send(200, {"Content-Type": "application/json"}, hub.listing)
        elif path == f"/api/models/{hub.name}":
            self.send(200, {"Content-Type": "application/json"}, json.dumps(self.info()).encode())
        elif path.startswith(f"/{hub.name}/resolve/"):
            self.resolve(path.removeprefix(f"/{hub.name}/resolve/").partition("/")[2])
        else:
            self.send(404, {"X-Error-Code": "RepoNotFound"})

    def info(self) -> dict[str, object]:
        siblings = []
        for name, data in self.hub.files.items():
            one: dict[str, object] = {"rfilename": name, "size": self.hub.sizes.get(name, len(data))}
            if name not in self.hub.untold:
                one["blobId"] = git_sha1(data)
            if name not in self.hub.small | self.hub.untold:
                one["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
            siblings.append(one)
        return {"id": self.hub.name, "sha": self.hub.commit, "siblings": siblings, "tags": []}

    def resolve(self, name: str) -> None:
        hub = self.hub
        if hub.refused_files is not None:
            self.refuse(hub.refused_files)
        elif name not in hub.files:
            self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": hub.commit})
        elif name in hub.small:
            data = hub.files[name]
            self.send(200, {"X-Repo-Commit": hub.commit, "ETag": self.etag(name, git_sha1(data))}, data)
        else:
            data = hub.files[name]
            told = f"mirror-{len(data)}" if name in hub.untold else sha256(data)
            linked = {"X-Linked-Etag": self.etag(name, told), "X-Linked-Size": str(len(data))}
            where = {
                "X-Repo-Commit": hub.commit,
                "Location": hub.location or f"{hub.store_url}/{sha256(data)}",
            }
            self.send(302, linked | where)

    def etag(self, name: str, told: str) -> str:
        return f'"{self.hub.etags.get(name, told)}"'


class _Store(_Handler):
    place = "store"

    def respond(self, path: str) -> None:
        hub = self.hub
        found = [(name, data) for name, data in hub.files.items() if sha256(data) == path[1:]]
        if hub.statuses:
            self.send(hub.statuses.pop(0), {})
        elif not found:
            self.send(404, {})
        else:
            name, data = found[0]
            self.send_range(bytes(byte ^ 1 for byte in data) if name in hub.spoilt else data)

    def send_range(self, data: bytes) -> None:
        first, _, last = self.headers.get("Range", "bytes=0-")[6:].partition("-")
        start = int(first) if self.hub.ranges else 0
        if start and start >= len(data):
            self.send(416, {"Content-Range": f"bytes */{len(data)}"})
            return
        whole = len(data)
        if last and self.hub.ranges:
            data = data[: int(last) + 1]
        status = 206 if "Range" in self.headers and self.hub.ranges else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) - start))
        for name, value in self.hub.store_headers.items():
            self.send_header(name, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{whole}")
        self.end_headers()
        if not self.hub.cuts:
            self.wfile.write(data[start:])
            return
        self.wfile.write(data[start : start + self.hub.cuts.pop(0)])
        self.wfile.flush()
        if self.hub.stall is not None:
            self.hub.stall.wait(60.0)
        self.close_connection = True


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@contextmanager
def serving_hub() -> Iterator[FakeHub]:
    """A hub that answers until the block ends."""
    hub = FakeHub()
    servers = []
    for base, host in ((_Handler, "127.0.0.1"), (_Store, "localhost")):
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (base,), {"hub": hub}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        address = f"http://{host}:{server.server_address[1]}"
        hub.url, hub.store_url = hub.url or address, address
    try:
        yield hub
    finally:
        if hub.stall is not None:
            hub.stall.set()
        for server in servers:
            server.shutdown()
            server.server_close()


def use_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, cache: object) -> None:
    """Have huggingface_hub ask this hub, and keep what it fetches in that folder."""
    from huggingface_hub import constants, file_download

    from octavo.model.hub import download

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    for module in (constants, file_download):  # older versions have it by value
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(download, "RETRY_WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache) + "-token")
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
