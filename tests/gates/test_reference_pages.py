"""The tables of docs/ that are printed from the code say what the code says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from octavo.errors import OctavoError
from octavo.server.routes import ROUTES
from octavo.step.events import EventKind

DOCS = Path(__file__).parents[2] / "docs"


def printer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


reference = printer()


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_printed_table_says_what_the_code_says(name: str) -> None:
    text = (DOCS / name).read_text()
    assert text == reference.filled(name, text), "print it again: python docs/reference.py"


def test_a_table_that_says_something_else_is_found_out() -> None:
    text = (DOCS / "events.md").read_text()
    spoilt = text.replace("`preempted`", "`pre-empted`")
    assert spoilt != text
    assert reference.filled("events.md", spoilt) == text


def test_every_error_event_and_route_has_a_row_with_words() -> None:
    errors = list(reference.error_rows())[1:]
    assert len(errors) == len({row[0] for row in errors}) > len(OctavoError.__subclasses__())
    happened = list(reference.event_rows())[1:]
    assert len(happened) == len(EventKind)
    assert len(list(reference.route_rows())) == len(ROUTES) + 1
    assert [row for row in [*errors, *happened] if not row[1]] == []


def test_labels_and_buckets_of_metrics_are_told() -> None:
    rows = {row[0]: row for row in reference.metric_rows()}
    assert rows["`octavo_blocks`"][2].endswith("`state` (cached, free, held)")
    assert rows["`octavo_events_total`"][2] == "`kind`"
    assert "buckets" in rows["`octavo_time_to_first_token_seconds`"][3]
