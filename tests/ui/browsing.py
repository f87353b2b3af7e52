"""A page of the browser, and how a person uses it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCREENSHOTS = Path(os.environ.get("OCTAVO_SCREENSHOTS", "build/screenshots"))


class Window:
    """A page, and everything that its console said."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []  # URLs
        page.on("console", lambda message: self._hear(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))

    def _hear(self, line: str) -> None:
        if not line.startswith("error: Failed to load resource"):  # Chromium's note of a refusal, or an end
            self.said.append(line)

    def open(self, url: str) -> Page:
        """Until the map is live."""
        self.page.goto(url)
        self.page.wait_for_selector(".state.live", timeout=20_000)
        return self.page

    def close(self) -> None:
        """Before its server ends: a stream that breaks off is a line on the console."""
        self.page.goto("about:blank")


def say(page: Page, text: str) -> None:
    """In the chat that is open."""
    page.fill(".composer .grow textarea", text)
    page.press(".composer .grow textarea", "Enter")


def wait_for_answer(page: Page) -> None:
    """Of the chat that is open."""
    page.evaluate(
        """() => new Promise((done) => {
            const look = () => (window.octavo.page.chats.open.isBusy ? setTimeout(look, 20) : done());
            look();
        })"""
    )
    drawn(page)


def drawn(page: Page) -> None:
    """What was changed is on the screen."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def settle(page: Page, **settings: object) -> None:
    """Settings of the chat that is open, by their words."""
    if page.locator(".composer details[open]").count() == 0:
        page.click(".composer summary")
    for word, value in settings.items():
        page.get_by_label(word.replace("_", " "), exact=True).fill(str(value))
        page.keyboard.press("Tab")


def screenshot(page: Page, name: str) -> None:
    """Kept for people to look at, out of git."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / name)
