"""A real browser before a real server, each started once. What a page says on its console fails its test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.attack.house import House, serving
from tests.ui.browsing import Window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Without these, Chromium asks for hosts of its maker's all the time.
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: make test-ui installs it")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium; on Debian: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """On the default model, with a disk below the pool."""
    folder = tmp_path_factory.mktemp("house")
    with serving(folder, "--disk-cache", str(folder / "disk"), "--disk-size", "256MiB") as house:
        yield house


@pytest.fixture
def window(browser: Browser) -> Iterator[Window]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    window = Window(context.new_page())
    yield window
    context.close()
    assert window.said == []
