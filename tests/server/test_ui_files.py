"""The page: its files are for everybody, nothing else is, and they load nothing from elsewhere."""

from __future__ import annotations

import asyncio
import gzip
import re
from importlib import resources

import pytest
from tests.doubles.fake_model import FakeModel
from tests.server.conftest import Edge
from tests.server.test_tenant_keys import NOBODY, TENANTS
from tests.server.viewers import scope_of

from octavo.server.app import create_app
from octavo.server.route import Access
from octavo.server.routes import ROUTES
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry

UI = resources.files("octavo.server").joinpath("ui")
OWN = sorted(entry.name for entry in UI.iterdir() if entry.is_file())
VENDOR = sorted(entry.name for entry in UI.joinpath("vendor").iterdir())
SHELL = ("/", "/ui", "/ui/main.js", "/ui/vendor/uplot.js")
BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture(params=["nothing", "keys", "tenants"])
def guarded(request, model, tmp_path):
    """The application with each kind of guard."""
    (tmp_path / "tenants.toml").write_text(TENANTS)
    settings = {
        "nothing": ServerSettings(),
        "keys": ServerSettings(api_keys=("one",)),
        "tenants": ServerSettings(roster=TenantRegistry(tmp_path / "tenants.toml")),
    }
    return Edge(model, settings[request.param])


def raw_get(path, **headers):
    """The answer to exactly this path: clients would put it in order before they ask."""
    app, sent = create_app(FakeModel(), ServerSettings()), []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope_of(path, headers), receive, send))
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])


# -- who gets them -------------------------------------------------------------------------------------------
def test_the_page_needs_no_key(guarded):
    for path in SHELL:
        for key in ({}, {"Authorization": f"Bearer {NOBODY}"}):
            answer = guarded.get(path, headers=BROWSER | key)
            assert answer.status_code == (307 if path == "/" else 200), path


def test_nothing_else_is_open(model, tmp_path):
    (tmp_path / "tenants.toml").write_text(TENANTS)
    opened = {route.path for route in ROUTES if route.access is Access.OPEN}
    assert opened == {"/", "/ui", "/ui/{name:path}", "/health", "/ping"}
    for settings in (
        ServerSettings(api_keys=("one",)),
        ServerSettings(roster=TenantRegistry(tmp_path / "tenants.toml")),
    ):
        house = Edge(model, settings)
        for route in ROUTES:
            if route.path not in opened:
                path = re.sub(r"\{.*?\}", "x", route.path)
                assert house.request(route.method, path, json={}).status_code == 401, path
        for path in ("/uix", "/ui.js", "/UI", "/v1/ui/main.js"):
            assert house.get(path, headers=BROWSER).status_code == 401, path
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert house.request(method, "/ui/main.js").status_code == 401, method


def test_only_browsers_are_sent_to_the_page(edge):
    answer = edge.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui")
    for accept in ("*/*", "application/json", ""):
        told = edge.get("/", headers={"Accept": accept})
        assert (told.status_code, told.text, told.headers["vary"]) == (200, "Ollama is running", "Accept")
        assert told.headers["content-type"].startswith("text/plain")
    for headers in ({}, BROWSER):
        assert edge.request("HEAD", "/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../app.py", "/ui/vendor/../../app.py", "/ui/./main.js", "/ui//main.js", "/ui/", "/ui/vendor",
        "/ui/vendor/", "/ui/nothing.js", "/ui/%2e%2e/app.py", "/ui/..%2fapp.py", "/ui/..\\app.py",
        "/ui//etc/passwd", "/ui/main.js\0", "/ui/main.js/", "/ui/MAIN.JS", "/ui/vendor/vendor/uplot.js",
        "/ui/__init__.py",
    ],
)  # fmt: skip
def test_what_is_no_file_of_the_page_is_not_found(path):
    status, body = raw_get(path)
    assert status == 404
    assert b"import" not in body
    assert b"root:" not in body


def test_an_encoded_way_out_is_none(edge):
    for path in ("/ui/%2e%2e/app.py", "/ui/%2e%2e%2fapp.py", "/ui/vendor/..%2f..%2fapp.py"):
        assert edge.get(path).status_code == 404


# -- how they are sent ---------------------------------------------------------------------------------------
def test_every_file_is_served_as_it_is(edge):
    for name in [*OWN, *(f"vendor/{name}" for name in VENDOR)]:
        data = UI.joinpath(name).read_bytes()
        assert raw_get(f"/ui/{name}") == (200, data)
        status, packed = raw_get(f"/ui/{name}", **{"Accept-Encoding": "br, gzip"})
        assert (status, gzip.decompress(packed)) == (200, data)


def test_types_are_those_that_browsers_insist_on(edge):
    for name, media_type in [
        ("", "text/html; charset=utf-8"),
        ("/main.js", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/icon.svg", "image/svg+xml"),
    ]:
        answer = edge.get("/ui" + name)
        assert answer.headers["content-type"] == media_type
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_file_that_the_browser_has_is_not_sent_again(edge):
    first = edge.get("/ui/main.js", headers={"Accept-Encoding": "gzip"})
    assert (first.headers["content-encoding"], first.headers["vary"]) == ("gzip", "Accept-Encoding")
    again = edge.get("/ui/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert edge.get("/ui/main.js", headers={"If-None-Match": '"another"'}).status_code == 200
    assert edge.get("/ui/style.css").headers["etag"] != first.headers["etag"]


def test_no_script_runs_but_the_pages_own(edge):
    for path in ("/ui", "/ui/main.js"):
        policy = edge.get(path).headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
        assert "unsafe" not in policy
        assert "http" not in policy


def test_the_page_has_no_inline_script_or_style():
    text = UI.joinpath("index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"<style|\son\w+=|\sstyle=|javascript:", text) == []


# -- what they are -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*OWN, *(f"vendor/{name}" for name in VENDOR if name != "LICENSES.txt")])
def test_no_file_loads_from_elsewhere(name):
    text = UI.joinpath(name).read_text()
    text = re.sub(r"/\*.*?\*/|^\s*//[^\n]*|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    for namespace in (
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/1998/Math/MathML",
    ):
        text = text.replace(namespace, "")
    assert re.findall(r"""https?://[^\s'"`)]*""", text) == []
    assert re.findall(r"""(?:src|href|from|import\(?|url\()\s*=?\s*["']?//\w""", text) == []


def test_every_file_that_others_wrote_is_named_with_its_licence():
    text = UI.joinpath("vendor/LICENSES.txt").read_text()
    for name in VENDOR:
        assert name in text or name == "LICENSES.txt"
    for licence in ("MIT License", "Apache License"):
        assert licence in text


def test_what_others_wrote_is_small():
    packed = [gzip.compress(UI.joinpath("vendor", name).read_bytes(), 9) for name in VENDOR]
    assert sum(map(len, packed)) < 40_000
