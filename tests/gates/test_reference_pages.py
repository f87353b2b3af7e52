"""The tables of docs/ that are printed from the code say what the code says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from octavo.errors import OctavoError
from octavo.server.routes import CLUSTER_ROUTES
from octavo.step.events import EventKind

DOCS = Path(__file__).parents[2] / "docs"
sys.path.append(str(DOCS))  # its printers are no package
reference = importlib.import_module("reference")
PAGES = {path: found for path in DOCS.glob("*.md") if (found := reference.MARKED.findall(path.read_text()))}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_printed_table_says_what_the_code_says(path: Path) -> None:
    text = path.read_text()
    assert text == reference.filled(text), "print it again: python docs/reference.py"


def test_every_table_is_in_one_page() -> None:
    assert sorted(name for found in PAGES.values() for _, name, _ in found) == sorted(reference.TABLES)


def test_a_table_that_says_something_else_is_found_out() -> None:
    text = (DOCS / "events.md").read_text()
    spoilt = text.replace("`preempted`", "`pre-empted`")
    assert spoilt != text
    assert reference.filled(spoilt) == text


def test_every_error_event_and_route_has_a_row_with_words() -> None:
    errors = list(reference.error_rows())[1:]
    assert len(errors) == len({row[0] for row in errors}) > len(OctavoError.__subclasses__())
    happened = list(reference.event_rows())[1:]
    assert len(happened) == len(EventKind)
    assert len(list(reference.route_rows())) == len(CLUSTER_ROUTES) + 1
    assert [row for row in [*errors, *happened] if not row[1]] == []


def test_labels_and_buckets_of_metrics_are_reported() -> None:
    rows = {row[0]: row for row in reference.metric_rows()}
    assert rows["`octavo_blocks`"][2].endswith("`state` (cached, free, held)")
    assert rows["`octavo_events_total`"][2] == "`kind`"
    assert "buckets" in rows["`octavo_time_to_first_token_seconds`"][3]
