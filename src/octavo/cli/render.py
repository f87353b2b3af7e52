"""`octavo render`: bind, load tokenizer and template, serve the render routes, drain."""

from __future__ import annotations

from rich.console import Console

from octavo.cli.terminal import phases
from octavo.config import StartOptions
from octavo.server.logs import configure_logging
from octavo.server.run import describe_reach, ignore_signals, open_listener, serve
from octavo.server.settings import ServerSettings


def run(model: str | None, options: StartOptions, settings: ServerSettings) -> None:
    """Render until a signal. The port is taken and the tenants are read before anything is loaded."""
    from octavo.serving.start import start_renderer

    configure_logging(settings.log_level, settings.log_format)
    ignore_signals()
    with open_listener(settings) as listener:
        with phases() as report:
            renderer = start_renderer(model, options, report)
        try:
            serve(renderer, listener, settings, lambda url: _show_ready(url, renderer.name, settings))
        finally:
            renderer.close()


def _show_ready(url: str, name: str, settings: ServerSettings) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold]octavo[/] renders prompts for {name} at {url}/v1   (ctrl-c ends it)")
    keys = "every request needs a key" if settings.has_keys else "no key is asked for"
    console.print(f"reachable by {describe_reach(settings)}; {keys}", style="dim")
