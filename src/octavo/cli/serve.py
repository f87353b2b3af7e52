"""`octavo serve`: bind, load, serve, drain."""

from __future__ import annotations

import signal
from pathlib import Path

from rich.console import Console

from octavo.cli.terminal import running_engine
from octavo.config import StartOptions
from octavo.server.app import ServerSettings
from octavo.server.roster import Roster
from octavo.server.run import bind, serve


def run(
    model: str | None,
    options: StartOptions,
    *,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    drain_timeout_s: float,
    tenants: str | None = None,
) -> None:
    """Serve until a signal. The port is taken and the tenants are read before the model is loaded, so what is
    wrong with them is known at once."""
    if tenants is not None:  # which ends a process that does not expect it; the server will
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listener = bind(host, port)
    roster = None if tenants is None else Roster(Path(tenants))
    settings = ServerSettings(host=host, api_keys=api_keys, drain_timeout_s=drain_timeout_s, roster=roster)
    with_key = bool(api_keys) or roster is not None
    policies_of = None if roster is None else roster.tenants.policies
    with running_engine(model, options, policies_of) as llm:
        serve(llm, listener, settings, lambda url: show_ready(url, llm.name, with_key=with_key))


def show_ready(url: str, name: str, *, with_key: bool) -> None:
    """The banner, with a request that can be copied."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if with_key else ""
    body = '{"messages": [{"role": "user", "content": "What is a book?"}], "stream": true, "max_tokens": 64}'
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold]octavo[/] serves {name} at {url}/v1   (ctrl-c ends it)")
    if not with_key and not url.startswith(("http://127.", "http://[::1]", "http://localhost")):
        console.print("anyone who reaches this port can use it: give --api-key", style="yellow")
    console.print("try:", style="dim")
    console.print(f"  curl -N {url}/v1/chat/completions{key} -d '{body}'", markup=False)
