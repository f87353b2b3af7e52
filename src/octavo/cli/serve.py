"""`octavo serve`: bind, load, serve, drain."""

from __future__ import annotations

from rich.console import Console

from octavo.cli.terminal import running_engine
from octavo.config import StartOptions
from octavo.server.logs import configure_logging
from octavo.server.run import ignore_signals, listening, reach_in_words, serve
from octavo.server.settings import ServerSettings


def run(model: str | None, options: StartOptions, settings: ServerSettings) -> None:
    """Serve until a signal. The port is taken and the tenants are read before the model is loaded, so what is
    wrong with them is known at once."""
    configure_logging(settings.log_level, settings.log_format)
    ignore_signals()
    policies_of = None if settings.roster is None else settings.roster.tenants.policies
    with (
        listening(settings) as listener,
        running_engine(model, options, policies_of) as llm,
    ):
        serve(llm, listener, settings, lambda url: show_ready(url, llm.name, settings))


def show_ready(url: str, name: str, settings: ServerSettings) -> None:
    """The banner: where, for whom, and a request that can be copied."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.has_keys else ""
    body = '{"messages": [{"role": "user", "content": "What is a book?"}], "stream": true, "max_tokens": 64}'
    is_file = settings.unix_socket is not None
    scheme = "http" if settings.tls_cert is None else "https"
    base, where = (f"{scheme}://localhost", url) if is_file else (url, f"{url}/v1")
    curl = f"curl -N --unix-socket {settings.unix_socket}" if is_file else "curl -N"
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold]octavo[/] serves {name} at {where}   (ctrl-c ends it)")
    reach = reach_in_words(settings)
    if settings.has_keys:
        console.print(f"reachable by {reach}; every request needs a key", style="dim")
    elif settings.insecure:
        console.print(f"reachable by {reach}; there are no keys: anyone there can use it", style="yellow")
    if not is_file:
        console.print(f"see it: {url}/ in a browser shows the memory, live, and a playground", style="dim")
    console.print("try:", style="dim")
    console.print(f"  {curl} {base}/v1/chat/completions{key} -d '{body}'", markup=False)
