"""No field of a request is ignored in silence: each that other servers know is in one list, and the list is
true."""

from pathlib import Path

import pytest

from octavo.server.embeddings import EmbeddingsBody
from octavo.server.field_list import Place, Treatment
from octavo.server.openai_schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    StreamOptions,
    TokenizeBody,
)
from octavo.server.request_fields import OPENAI_FIELDS

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
BODIES = {
    Place.CHAT: ChatBody,
    Place.COMPLETIONS: CompletionBody,
    Place.TOKENIZE: TokenizeBody,
    Place.DETOKENIZE: DetokenizeBody,
    Place.EMBEDDINGS: EmbeddingsBody,
    Place.STREAM_OPTIONS: StreamOptions,
}
MADE_UP = {"asked": "for"}
REFUSED = [
    (field, place)
    for field in OPENAI_FIELDS.fields
    for place in field.places
    if field.treatment is Treatment.REFUSED
]
IGNORED = [
    (field, place)
    for field in OPENAI_FIELDS.fields
    for place in field.places
    if field.treatment is Treatment.IGNORED and place in (Place.CHAT, Place.COMPLETIONS, Place.EMBEDDINGS)
]


def ask(edge, place, name, value):
    """The answer to a request that is right but for one field."""
    if place is Place.MESSAGE:
        return edge.chat(messages=[{"role": "assistant", "content": "hi", name: value}])
    if place is Place.CHAT:
        return edge.chat(**{name: value})
    if place is Place.COMPLETIONS:
        return edge.complete(**{name: value})
    if place is Place.EMBEDDINGS:
        return edge.post("/v1/embeddings", {"input": "hi", name: value})
    return edge.post("/tokenize", {"prompt": "hi", name: value})


def named(cases):
    return [f"{place}-{field.name}" for field, place in cases]


def test_the_document_is_printed_from_the_list():
    assert DOCUMENT.read_text() == OPENAI_FIELDS.page()


def test_a_field_is_listed_once_for_each_place():
    listed = [(field.name, place) for field in OPENAI_FIELDS.fields for place in field.places]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("place", BODIES)
def test_done_are_exactly_the_fields_that_bodies_have(place):
    done = {
        field.name
        for field in OPENAI_FIELDS.fields
        if place in field.places and field.treatment in (Treatment.DONE, Treatment.ALIAS)
    }
    assert done == set(BODIES[place].model_fields)


@pytest.mark.parametrize("field, place", REFUSED, ids=named(REFUSED))
def test_what_is_not_built_is_refused_by_name_with_what_to_use_instead(edge, field, place):
    answer = ask(edge, place, field.name, MADE_UP)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == ("messages" if place is Place.MESSAGE else field.name)
    assert field.name in error["message"]
    assert field.note in error["message"]
    assert len(field.note) >= 5
    assert edge.model.submitted == []


@pytest.mark.parametrize("field, place", REFUSED, ids=named(REFUSED))
def test_values_that_ask_for_what_happens_anyway_are_let_through(edge, field, place):
    assert None in field.harmless
    for value in field.harmless:
        answer = ask(edge, place, field.name, value)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("field, place", IGNORED, ids=named(IGNORED))
def test_what_changes_no_answer_is_let_through(edge, field, place):
    answer = ask(edge, place, field.name, MADE_UP)
    assert answer.status_code == 200
    assert edge.model.submitted[0].params == ask_plainly(edge, place)


def ask_plainly(edge, place):
    """The parameters of a request without the field."""
    ask(edge, place, "nobody_has_this", None)
    return edge.model.submitted[-1].params


def test_a_session_in_a_header_of_a_completion_is_refused_too(edge):
    answer = edge.post("/v1/completions", {"prompt": "a"}, headers={"X-Octavo-Session": "new"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "session"
    answer = edge.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}]},
        headers={"X-Octavo-Session": ""},
    )
    assert answer.status_code == 400


def test_a_pin_takes_no_cache_salt(edge):
    answer = edge.post("/v1/kv/pins", {"name": "p", "prompt": "a", "cache_salt": "s"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "cache_salt"


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/completions", {"prompt": [1] * 1001}),
        ("/v1/completions", {"prompt": "a" * 20_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 1001}),
        ("/detokenize", {"tokens": [1] * 1001}),
    ],
)
def test_an_overlong_prompt_is_told_in_the_words_that_clients_look_for(edge, path, body):
    error = edge.post(path, body).json()["error"]
    assert "this model's maximum context length is 1,000 tokens" in error["message"]
    assert error["code"] == "context_length_exceeded"
