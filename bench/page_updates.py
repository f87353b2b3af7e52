"""The cost of an update on the page's main thread: a recorded stream of a busy pool, frame by frame.

    python -m bench.page_updates [BLOCKS]

The stream is that of the scene of bench/watching: 100,000 blocks, 200 requests, 64 of which stream. The time
is measured in Chromium, from a frame's bytes to the finished layout: state, map, tables.
`make test-ui` installs the dependencies.
"""

from __future__ import annotations

import base64
import json
import statistics
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from playwright.sync_api import sync_playwright

from bench.chromium import QUIET, find_chromium
from bench.watching.watching import BusyScheduler, Scene
from octavo.engine.port import inspector_of
from octavo.server.frames import FrameWriter
from octavo.server.ui import page_file

FRAMES = 80
STEPS_A_FRAME = 4
# A frame is applied at once and drawn in the next animation frame: both are timed, the wait between is not.
TIMED = """async (frames) => {
  const picture = (act) => new Promise((resolve) => requestAnimationFrame(() => {
    act();
    resolve(performance.now());
  }));
  const times = [];
  for (const text of frames) {
    const frame = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).slice(4).buffer;
    await picture(() => {});
    const begun = picture(() => {});
    const before = performance.now();
    window.octavo.page.take(frame);
    const taken = performance.now() - before;
    const ended = picture(() => document.body.offsetHeight);
    times.push(taken + (await ended) - (await begun));
  }
  return times;
}"""


class Shell(BaseHTTPRequestHandler):
    """Serves the page's files, without a stream."""

    def do_GET(self) -> None:
        """Send a file of the page; 404 for all other paths."""
        name = "index.html" if self.path == "/ui" else self.path.removeprefix("/ui/")
        file = page_file(name)
        self.send_response(404 if file is None else 200)
        if file is not None:
            self.send_header("Content-Type", file.media_type)
        self.end_headers()
        self.wfile.write(b"{}" if file is None else file.plain)

    def log_message(self, *args: object) -> None:
        """Log nothing."""


def record(scene: Scene) -> list[bytes]:
    """Record frames of the scene: a snapshot, then changes."""
    busy = BusyScheduler(scene)
    about = {
        "run": "r",
        "tenant": None,
        "model": "recorded",
        "context_length": 8192,
        "version": "",
        "begun": 0,
    }
    writer, frames, offloaded_from = FrameWriter(about), list[bytes](), 0
    while len(frames) < FRAMES:
        for _ in range(STEPS_A_FRAME):
            busy.step()
        glimpse = inspector_of(busy.scheduler).glimpse(busy.steps * scene.step_s, offloaded_from)
        offloaded_from = glimpse.next_offloaded_from
        number = writer.number
        stats = dict.fromkeys(
            ("steps", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"), busy.steps
        )
        if writer.write(glimpse, {"stats": stats}):
            frames.append(writer.frame_after(number))
    return frames


def main(blocks: int) -> None:
    """Record, replay, and print the times."""
    frames = record(Scene(blocks))
    server = HTTPServer(("127.0.0.1", 0), Shell)
    Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=QUIET)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"http://127.0.0.1:{server.server_port}/ui")
        page.wait_for_function("window.octavo && window.octavo.page.painter.current")
        times = page.evaluate(TIMED, [base64.b64encode(frame).decode() for frame in frames])
        browser.close()
    first, others = times[0], sorted(times[5:])
    result = {
        "blocks": blocks,
        "snapshot_ms": round(first, 1),
        "update_p50_ms": round(statistics.median(others), 2),
        "update_p95_ms": round(others[int(0.95 * len(others))], 2),
        "frame_bytes": round(statistics.mean(len(frame) for frame in frames[5:])),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
