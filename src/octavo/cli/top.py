"""`octavo top`: a running server's KV memory, live: its blocks, who waits and why, its chat sessions, what
happened lately."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from octavo.cli.remote import ask

_COLOURS = {".": "grey37", "c": "blue", "t": "yellow", "s": "green", "S": "cyan", "p": "magenta"}
_LEGEND = (
    "[green]one sequence[/] [cyan]shared[/] [magenta]pinned[/] [yellow]moving[/] [blue]cached[/] "
    "[grey37]free[/]"
)
_MAP_CELLS = 600  # more blocks than that share cells
_EVENTS = 6
_SESSIONS = 10
_SESSIONS_LOOKED_AT = 100  # those that do something are among these
_SESSION_STATES = ("active", "resuming", "suspending", "idle", "suspended")  # who is shown first
_STATES = ".ctsSp"  # what a cell shows is the last of its blocks' states in this order


def run(url: str, api_key: str, interval_s: float, once: bool) -> None:
    """Show until interrupted, or once. Raises RequestFailed when the server does not answer."""
    console = Console()
    if once:
        console.print(_screen(url, api_key))
        return
    with Live(_screen(url, api_key), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(_screen(url, api_key), refresh=True)
        except KeyboardInterrupt:
            return


def _screen(url: str, api_key: str) -> RenderableType:
    kv: dict[str, Any] = ask(url, api_key, "GET", "/v1/kv")
    states = str(ask(url, api_key, "GET", "/v1/kv/map")["states"])
    requests: Any = ask(url, api_key, "GET", "/v1/requests")["data"]
    sessions: Any = ask(url, api_key, "GET", f"/v1/sessions?limit={_SESSIONS_LOOKED_AT}")
    shown: list[RenderableType] = [_summary(url, kv), Panel(_map(states), title=_LEGEND), _requests(requests)]
    listed = [_sessions(sessions["data"], sessions["total"])] if sessions["data"] else []
    return Group(*shown, *listed, _events(kv))


def _summary(url: str, kv: dict[str, Any]) -> Text:
    if "counts" not in kv:  # the key is a tenant's, who sees its own alone
        return Text(
            f"{url}  {kv['tenant']}: {kv['held_by_sequences']:,} blocks held by sequences, "
            f"{kv['held_by_pins']:,} by pins  running {kv['running']}  waiting {kv['waiting']}"
        )
    counts = kv["counts"]
    return Text(
        f"{url}  blocks of {kv['block_size']} tokens: {counts['total']:,}  held {counts['held']:,}  "
        f"cached {counts['cached']:,}  free {counts['free']:,}  pins {len(kv['pins'])}  "
        f"running {kv['running']}  waiting {kv['waiting']}"
    )


def _map(states: str) -> Text:
    """A cell for each block, or for several: then the most used of them counts."""
    per_cell = -(-len(states) // _MAP_CELLS)
    text = Text()
    for first in range(0, len(states), per_cell):
        cell = max(states[first : first + per_cell], key=_STATES.index)
        text.append("■" if cell != "." else "·", style=_COLOURS[cell])
    return text


def _requests(views: list[dict[str, Any]]) -> Table:
    table = Table(expand=True, title=None)
    for column in (
        "request",
        "state",
        "age",
        "prompt",
        "output",
        "guessed",
        "cached",
        "blocks",
        "preempted",
        "why",
    ):
        table.add_column(column)
    for view in views[:20]:
        for sequence in view["sequences"]:
            usage = sequence["usage"]
            table.add_row(
                f"{view['request_id']}.{sequence['choice']}",
                sequence["state"],
                f"{view['age']:.1f} s",
                *(f"{usage[name]:,}" for name in ("num_prompt", "num_output")),
                f"{usage['num_accepted']:,} of {usage['num_drafted']:,}" if usage["num_drafted"] else "",
                *(f"{usage[name]:,}" for name in ("num_cached", "blocks_peak")),
                str(usage["preemptions"]),
                sequence["why"],
            )
    return table


def _sessions(views: list[dict[str, Any]], total: int) -> Table:
    """Of `total` sessions those that do something first, the newest of each kind in front."""
    newest_first = enumerate(reversed(views))
    ranked = sorted((_SESSION_STATES.index(view["state"]), i, view) for i, view in newest_first)
    views = [view for _, _, view in ranked]
    more = total - min(len(views), _SESSIONS)
    table = Table(expand=True, caption=f"and {more:,} sessions more" if more > 0 else None)
    for column in ("session", "tenant", "state", "tokens", "blocks", "held", "tier", "left"):
        table.add_column(column)
    for view in views[:_SESSIONS]:
        counts = (f"{view[name]:,}" for name in ("num_tokens", "num_blocks", "blocks_held"))
        left = f"{view['seconds_left']:,.0f} s"
        table.add_row(view["id"], view["tenant"], view["state"], *counts, view["tier"], left)
    return table


def _events(kv: dict[str, Any]) -> Text:
    lines = [f"{kv['now'] - event['at']:6.1f} s ago  {event['text']}" for event in kv["events"][:_EVENTS]]
    return Text("\n".join(lines))
