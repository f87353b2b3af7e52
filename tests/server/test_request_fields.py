"""No field of a request is ignored in silence, in any API: what does nothing is in one list, and the list is
true."""

import copy

import pytest

from octavo.server import field_list as fields
from octavo.server.dialects.anthropic import AnthropicOutput, CountTokensBody, MessagesBody
from octavo.server.dialects.anthropic_messages import AnthropicBlock
from octavo.server.dialects.anthropic_tools import AnthropicTool
from octavo.server.dialects.ollama import OllamaChatBody, OllamaGenerateBody, OllamaOptions
from octavo.server.dialects.ollama_embed import OllamaEmbedBody, OllamaEmbeddingsBody
from octavo.server.dialects.ollama_messages import OllamaMessage
from octavo.server.dialects.ollama_models import OllamaShowBody
from octavo.server.dialects.responses_request import ResponsesBody, ResponsesReasoning, ResponsesText
from octavo.server.embeddings import EmbeddingsBody
from octavo.server.openai_schema import ChatBody, CompletionBody, OpenAIMessage, StreamOptions, TokenizeBody

SAYS = {"messages": [{"role": "user", "content": "hi"}]}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
MESSAGE = {"max_tokens": 50, **SAYS}
BLOCKS = {"max_tokens": 50, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
TOOL = {"name": "f", "input_schema": {}}
OLLAMA = {"model": "fake-model", **SAYS}
# Each model that has fields which do nothing: a right request, and the way to its object in it.
OBJECTS = {
    ChatBody: (CHAT, SAYS),
    StreamOptions: (CHAT, {"stream": True, "stream_options": {}, **SAYS}, "stream_options"),
    OpenAIMessage: (CHAT, {"messages": [{"role": "assistant", "content": "hi"}]}, "messages", 0),
    CompletionBody: ("/v1/completions", {"prompt": "hi"}),
    EmbeddingsBody: ("/v1/embeddings", {"input": "hi"}),
    TokenizeBody: ("/tokenize", {"prompt": "hi"}),
    ResponsesBody: (RESPONSES, {"input": "hi"}),
    ResponsesText: (RESPONSES, {"input": "hi", "text": {}}, "text"),
    ResponsesReasoning: (RESPONSES, {"input": "hi", "reasoning": {}}, "reasoning"),
    MessagesBody: (MESSAGES, MESSAGE),
    CountTokensBody: ("/v1/messages/count_tokens", SAYS),
    AnthropicBlock: (MESSAGES, BLOCKS, "messages", 0, "content", 0),
    AnthropicTool: (MESSAGES, {"tools": [TOOL], **MESSAGE}, "tools", 0),
    AnthropicOutput: (MESSAGES, {"output_config": {}, **MESSAGE}, "output_config"),
    OllamaChatBody: ("/api/chat", OLLAMA),
    OllamaOptions: ("/api/chat", {"options": {}, **OLLAMA}, "options"),
    OllamaMessage: ("/api/chat", OLLAMA, "messages", 0),
    OllamaGenerateBody: ("/api/generate", {"model": "fake-model", "prompt": "hi"}),
    OllamaEmbedBody: ("/api/embed", {"model": "fake-model", "input": "hi"}),
    OllamaEmbeddingsBody: ("/api/embeddings", {"model": "fake-model", "prompt": "hi"}),
    OllamaShowBody: ("/api/show", {"model": "fake-model"}),
}
LISTS = {schema: fields.field_list(schema) for schema in OBJECTS}  # each asserts that it has no field twice
MADE_UP = {"asked": "for"}


def ask(edge, schema, name, value):
    """The answer to a request that is right but for one field."""
    path, body, *way = OBJECTS[schema]
    body = inner = copy.deepcopy(body)
    for step in way:
        inner = inner[step]
    inner[name] = value
    return edge.post(path, body)


def where(schema):
    """The object in the words of a refusal, such as "messages[0]."."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in OBJECTS[schema][2:])
    return f"{''.join(steps)}.".lstrip(".")


def listed(treatment):
    cases = [(schema, name) for schema, rows in LISTS.items() for name in getattr(rows, treatment)]
    ids = [f"{schema.__name__}-{name}" for schema, name in cases]
    return pytest.mark.parametrize("schema, name", cases, ids=ids)


def test_the_list_is_of_models_that_requests_have():
    assert fields._table().keys() <= {cls.__name__ for schema in OBJECTS for cls in schema.__mro__}
    rows = [row for one in LISTS.values() for row in (*one.refused.values(), *one.ignored.values())]
    assert [row for row in rows if len(row.note) < 5 or row.harmless[0] is not None] == []


@listed("refused")
def test_what_is_not_built_is_refused_by_name_with_what_to_use_instead(edge, schema, name):
    answer = ask(edge, schema, name, MADE_UP)
    assert answer.status_code == 400
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    note = LISTS[schema].refused[name].note
    assert message == f"{where(schema)}{name} is not supported by this server: {note}"
    if "code" in error:
        assert (error["code"], error["param"]) == ("unsupported_parameter", (*OBJECTS[schema][2:], name)[0])
    assert edge.model.submitted == []


@listed("refused")
def test_values_that_ask_for_what_happens_anyway_are_let_through(edge, schema, name):
    for value in LISTS[schema].refused[name].harmless:
        answer = ask(edge, schema, name, value)
        assert answer.status_code == 200, answer.text


@listed("ignored")
def test_what_changes_no_answer_is_let_through(edge, schema, name):
    ask(edge, schema, "nobody_has_this", None)
    plainly = [stream.params for stream in edge.model.submitted], [*edge.model.encodings]
    answer = ask(edge, schema, name, MADE_UP)
    assert answer.status_code == 200, answer.text
    assert [stream.params for stream in edge.model.submitted] == plainly[0] * 2
    assert edge.model.encodings == plainly[1] * 2


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
def test_an_overlong_prompt_is_reported_in_the_words_that_clients_look_for(edge, path, body):
    error = edge.post(path, body).json()["error"]
    assert "this model's maximum context length is 1,000 tokens" in error["message"]
    assert error["code"] == "context_length_exceeded"
