"""Records the demo for the README: an animated WebP under 1 MB, and a still of three chats that share blocks.

    python bench/record_demo.py docs/demo.webp docs/map.png

It starts a server, plays the demo in Chromium, and takes a screenshot every half second.
`make demo` installs the dependencies.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from chromium import QUIET, find_chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright

SIZE = (1280, 720)
SHOWN = (960, 540)
PAUSE_S = 1 / 2
BYTES_MAX = 1_000_000


def main(film: Path, still: Path) -> None:
    """Record, and write both files."""
    chromium = find_chromium()
    with serving() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        page.goto(f"{url}/ui")
        page.click("nav >> text=demo")  # a link from elsewhere would wait for a click
        page.wait_for_selector(".caption[data-phase=plays]")
        frames = list(watch(page, still))
        browser.close()
    for quality in (60, 45, 30, 20, 10):
        data = encode(frames, quality)
        print(f"{len(frames)} pictures, quality {quality}: {len(data):,} bytes")
        if len(data) < BYTES_MAX:
            film.write_bytes(data)
            return
    sys.exit(f"the film has {len(data):,} bytes at the lowest quality; allowed: {BYTES_MAX:,}")


def watch(page: Page, still: Path) -> Iterator[tuple[float, Image.Image]]:
    """Screenshots with their times, until the end of the demo."""
    started, caption, has_still = time.monotonic(), "", False
    while page.locator(".caption[data-phase=over]").count() == 0:
        at = time.monotonic()
        picture = page.screenshot(type="png")
        now = page.locator(".caption").inner_text() if page.locator(".caption").count() else ""
        if now != caption:
            caption = now
            print(f"{at - started:5.1f} s  {caption}")
        if caption.startswith("Selected") and not has_still:
            page.wait_for_timeout(1200)
            page.screenshot(path=still)
            has_still = True
        yield (
            at - started,
            Image.open(io.BytesIO(picture)).convert("RGB").resize(SHOWN, Image.Resampling.LANCZOS),
        )
        time.sleep(max(0.0, PAUSE_S - (time.monotonic() - at)))


def encode(frames: list[tuple[float, Image.Image]], quality: int) -> bytes:
    """The animation, each screenshot shown for its own duration."""
    times = [at for at, _ in frames] + [frames[-1][0] + 2.0]
    shown_ms = [round(1000 * (b - a)) for a, b in itertools.pairwise(times)]
    data = io.BytesIO()
    first, *others = [picture for _, picture in frames]
    first.save(
        data,
        "WEBP",
        save_all=True,
        append_images=others,
        duration=shown_ms,
        loop=0,
        quality=quality,
        method=4,
    )
    return data.getvalue()


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server on the default model with a disk cache; its URL."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        disk = ["--disk-cache", folder, "--disk-size", "256MiB", "--kv-memory", "512MiB"]
        command = [
            sys.executable,
            "-m",
            "octavo",
            "serve",
            "--port",
            str(port),
            "--log-level",
            "error",
            *disk,
        ]
        process = subprocess.Popen(command)
        try:
            while process.poll() is None:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
