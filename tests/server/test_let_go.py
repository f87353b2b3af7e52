"""What of a schema is not followed is told: by a header of the answer, and while it runs."""

from __future__ import annotations

import pytest
from tests.server.conftest import Edge

from octavo.server.generation import NOT_ENFORCED_CHARS_MAX

PASSWORD = {"type": "string", "format": "password"}


def in_format(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def test_a_format_that_only_annotates_is_reported_in_a_header_of_every_answer(edge: Edge) -> None:
    fields = in_format({"type": "object", "properties": {"a": PASSWORD}})
    for answer in (edge.chat(**fields), edge.chat(**fields, stream=True), edge.complete(**fields)):
        assert answer.status_code == 200
        assert answer.headers["x-octavo-not-enforced"] == "format (at #/properties/a)"
    responses = {"type": "json_schema", "name": "x", "schema": PASSWORD}
    answer = edge.post("/v1/responses", {"input": "hi", "text": {"format": responses}})
    assert answer.headers["x-octavo-not-enforced"] == "format (at #)"


def test_nothing_is_reported_where_nothing_is_lost(edge: Edge) -> None:
    record = {"type": "object", "propertyNames": {"type": "string"}, "maxProperties": 1}
    for fields in ({}, in_format(record), {"response_format": {"type": "json_object"}}):
        assert "x-octavo-not-enforced" not in edge.chat(**fields).headers


@pytest.mark.parametrize("name", ["a\r\nSet-Cookie: x", "é你", "\x7f\x00", "x" * 5000, "é" * 199])
def test_a_header_is_printable_and_short_whatever_names_a_schema_has(edge: Edge, name: str) -> None:
    answer = edge.chat(**in_format({"type": "object", "properties": {name: PASSWORD}}))
    told = answer.headers["x-octavo-not-enforced"]
    assert told.startswith("format (at #/properties/")
    assert told.isascii()
    assert told.isprintable()
    assert len(told) <= NOT_ENFORCED_CHARS_MAX
    assert "set-cookie" not in answer.headers
