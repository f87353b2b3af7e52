"""The tables of the reference, printed from the code into the pages that hold them.

    python docs/reference.py            write them
    python docs/reference.py --check    write nothing; exit status 1 if a page differs from the code

A page is written by hand, except for the text between two marks:

    <!-- printed by docs/reference.py: errors -->
    | error | when | ...
    <!-- end -->

It is not part of the package.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import models_page
import settings_page
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel

from octavo import errors
from octavo.inspect.stats import EngineStats
from octavo.inspect.views import FirstTokenView, TargetView
from octavo.server import metrics
from octavo.server.errors import error_body, status_of
from octavo.server.field_list import Body, field_list
from octavo.server.route import Access, Route
from octavo.server.routes import CLUSTER_ROUTES, ROUTES
from octavo.step import events
from octavo.types import RankState

FOLDER = Path(__file__).parent
MARKED = re.compile(r"(<!-- printed by docs/reference\.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_VALUES_SHOWN = 6
_ALWAYS = "model_name"  # a label of every family, which the page's text names


def error_rows() -> Iterator[tuple[str, ...]]:
    """Every error, parents first, with what a client sees of it."""
    yield "error", "when", "HTTP", "code"
    for cls in _tree(errors.OctavoError):
        error = cls("")
        body = error_body(error)["error"]
        assert isinstance(body, dict)
        is_parent = cls in (errors.OctavoError, errors.ModelError, errors.ConfigError)
        has_status = not is_parent and not issubclass(cls, errors.ModelError | errors.TenantsRefused)
        yield (
            f"`{cls.__name__}`",
            _sentences(inspect.getdoc(cls) or ""),
            str(status_of(error).value) if has_status else "",
            f"`{body['code']}`" if has_status and body["code"] else "",
        )


def event_rows() -> Iterator[tuple[str, ...]]:
    """Every kind of event, with its comment in the code as its meaning."""
    yield "event", "what happened"
    comments = re.findall(r'= "(\w+)"  # (.+)', inspect.getsource(events.EventKind))
    assert [kind for kind, _ in comments] == list(events.EventKind)
    for kind, comment in comments:
        yield f"`{kind}`", comment


def metric_rows() -> Iterator[tuple[str, ...]]:
    """Every family of metrics: those in the registries of a new server."""
    yield "metric", "type", "labels", "meaning"
    made, rows = metrics.Metrics(), {}
    made._stats = EngineStats(
        ranks=(RankState(0, 0, "", 0, 0.0),),
        target=TargetView(0.0, 0.0, 0.0, 0, 0, 0),
        first_tokens=FirstTokenView(0.0, 0.0, 0, 0, 0),
    )
    own = {metric.name for collector in made._registry._collector_to_names for metric in collector.collect()}
    others = [collector for registry in made.registries for collector in registry._collector_to_names]
    for collector in [*others, *made._registry._collector_to_names]:
        for metric in collector.collect():
            if collector in others and metric.name in own:
                continue  # the same, summed over processes
            suffix = "_total" if metric.type == "counter" else ""
            edges = {float(sample.labels["le"]) for sample in metric.samples if "le" in sample.labels}
            bounds = (getattr(collector, "_upper_bounds", ()) or sorted(edges))[:-1]
            text = metric.documentation + (f"; buckets {bounds[0]:g} to {bounds[-1]:,g}" if bounds else "")
            labels = ", ".join(_labels_of(collector, metric))
            rows[metric.name] = f"`{metric.name}{suffix}`", metric.type, labels, text
    yield from sorted(rows.values(), key=lambda row: row[0].strip("`"))


def route_rows() -> Iterator[tuple[str, ...]]:
    """Every route, and who may call it."""
    yield "route", "what it does", "key", "in a cluster", "fields of the body", "answers"
    words: Mapping[Access, str] = {Access.OPEN: "none", Access.TENANT: "any", Access.OPERATOR: "operator's"}
    for route in CLUSTER_ROUTES:
        statuses = ", ".join(map(str, route.statuses)) + (" (or a stream)" if route.streams else "")
        name, key, spread = f"`{route.method} {_path(route)}`", words[route.access], route.spread.value
        yield name, route.summary, key, spread, _fields(route), statuses


def field_rows(api: str) -> Iterator[tuple[str, ...]]:
    """Every field of the models in modules of this name, with its places and its treatment."""
    names: dict[type[BaseModel], str] = {}
    for route in ROUTES:
        if route.body is not None:
            names.setdefault(route.body, route.template)  # routes that render have the same
    docs = {model: inspect.getdoc(model) or "" for model in Body.__subclasses__()}
    names |= {model: doc.rstrip(".") for model, doc in docs.items() if doc.startswith("`")}  # nested models
    places: dict[tuple[str, ...], list[str]] = {("field", "known to", "here", "note"): ["where"]}
    for model, name in names.items():
        for row in sorted(_fields_of(model)) if re.search(api, model.__module__) else ():
            places.setdefault(row, []).append(name)
    has_owners = any(owners for _, owners, _, _ in [*places][1:])
    for (field, owners, here, note), where in places.items():
        yield field, ", ".join(where), *([owners] if has_owners else []), here, note


def _fields_of(model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        assert isinstance(field.json_schema_extra, dict), (
            f"{model.__name__}.{name} is not described by done()"
        )
        yield f"`{name}`", str(field.json_schema_extra.get("x-known-to", "")), "done", field.description or ""
    for route in ROUTES:
        for name in route.more_fields if route.body is model else ():
            yield f"`{name}`", "", "done", "as in a chat"
    listed = field_list(model)
    for here, fields in (("refused", listed.refused), ("ignored", listed.ignored)):
        for name, row in fields.items():
            allowed = ", ".join(f"`{json.dumps(value)}`" for value in row.harmless if value is not None)
            note = row.note + (f"; accepted: {allowed}" if allowed else "")
            yield f"`{name}`", row.owners, here, note


TABLES: Mapping[str, Callable[[], Iterator[tuple[str, ...]]]] = {
    "errors": error_rows,
    "events": event_rows,
    "metrics": metric_rows,
    "routes": route_rows,
    "openai_fields": partial(field_rows, "openai|embeddings"),
    "responses_fields": partial(field_rows, "responses"),
    "anthropic_fields": partial(field_rows, "anthropic"),
    "ollama_fields": partial(field_rows, "ollama"),
    **models_page.TABLES,
    **settings_page.TABLES,
}


def filled(text: str) -> str:
    """The text of a page with its tables from the code."""
    return MARKED.sub(lambda found: f"{found[1]}\n{''.join(_table(TABLES[found[2]]()))}\n{found[3]}", text)


def _table(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """A table whose first row names the columns. A title may precede each table."""
    has_head = False
    for row in rows:
        if row[0].startswith("#"):
            yield ("\n" if has_head else "") + f"{row[0]}\n\n"
            has_head = False
            continue
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n"
        if not has_head:
            yield f"| {' | '.join(['---'] * len(row))} |\n"
            has_head = True


def _tree(cls: type[errors.OctavoError]) -> Iterator[type[errors.OctavoError]]:
    if cls.__module__ == errors.__name__:
        yield cls
        for child in cls.__subclasses__():
            yield from _tree(child)


def _sentences(doc: str) -> str:
    return " ".join(doc.split()).rstrip(".")


def _labels_of(collector: Collector, metric: Metric) -> Iterator[str]:
    """Names of labels, with their values if they are few and known."""
    known = getattr(metric, "_labelnames", None) or getattr(collector, "_labelnames", None)
    for name in known or sorted({name for sample in metric.samples for name in sample.labels}):
        values = sorted({sample.labels.get(name, "") for sample in metric.samples} - {""})
        shown = f" ({', '.join(values)})" if 1 < len(values) <= _VALUES_SHOWN else ""
        if name not in (_ALWAYS, "le"):
            yield f"`{name}`{shown}"


def _path(route: Route) -> str:
    query = "&".join(f"{name}=" for name in route.query)
    return route.template + (f"?{query}" if query else "")


def _fields(route: Route) -> str:
    """Names of the body's fields, or a link to the page of an API with many fields."""
    if route.body is None:
        return ""
    names = list(route.body.model_fields)
    page = _FIELD_PAGES.get(route.template.removesuffix("/render"))
    return f"[{len(names)} fields]({page})" if page else ", ".join(f"`{name}`" for name in names)


_FIELD_PAGES: Mapping[str, str] = {
    "/v1/chat/completions": "compatibility.md",
    "/v1/completions": "compatibility.md",
    "/v1/embeddings": "embeddings.md#fields",
    "/v1/responses": "responses.md#fields",
    "/v1/messages": "anthropic.md#fields",
    "/v1/messages/count_tokens": "anthropic.md#fields",
    "/api/chat": "ollama.md#fields",
    "/api/generate": "ollama.md#fields",
    "/api/embed": "ollama.md#fields",
    "/api/embeddings": "ollama.md#fields",
}


def main() -> int:
    """Write all pages, or list those that differ from the code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    old = []
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text()
        if (new := filled(text)) != text:
            old.append(path.name)
            if not check:
                path.write_text(new)
    verb = "differ from the code" if check else "written"
    sys.stdout.write(f"{', '.join(old)}: {verb}\n" if old else "all pages agree with the code\n")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
