"""Tool calls by the default model, in every family's form: they always parse, their arguments follow the
schema, and tokens that are forced change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import jsonschema
import pytest

from octavo import LLM, SamplingParams
from octavo.config import StartOptions
from octavo.grammar import Grammar, of_schema
from octavo.tools.answer import AnswerKind, AnswerReader
from octavo.tools.definitions import ToolUse, tool_use, tools_of
from octavo.tools.events import ArgumentsText, CallStart, Content
from octavo.tools.formats import FORMATS, HERMES, PYTHONIC, Body, ToolFormat
from octavo.tools.grammars import calls_grammar

pytestmark = pytest.mark.full

TOPICS = [
    "the weather in Paris",
    "a flight to Rome",
    "an email to Anna",
    "the news of today",
    "a table for two",
]
ASKED = ["Find", "Get me", "Please look for", "I need", "What about"]
PROMPTS = [f"{asked} {topic}. Call:\n" for asked in ASKED for topic in TOPICS]
DAY = {"type": "integer", "minimum": 1, "maximum": 9}
CITY = {"type": "string", "maxLength": 12}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": CITY,
                    "unit": {"enum": ["C", "F"]},
                    "is_exact": {"type": "boolean"},
                    "days": {
                        "type": "array",
                        "items": DAY,
                        "maxItems": 3,
                    },
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
    {
        "type": "function",
        "function": {
            "name": "book",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "from": {
                        "type": "object",
                        "properties": {"city": CITY, "is_near": {"type": "boolean"}},
                        "required": ["city", "is_near"],
                        "additionalProperties": False,
                    },
                    "seats": {"type": "integer", "minimum": 1, "maximum": 4},
                    "class": {"type": ["string", "null"], "enum": ["first", "second", None]},
                },
                "required": ["from", "seats", "class"],
                "additionalProperties": False,
            },
        },
    },
]
SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}  # type: ignore[attr-defined]


@pytest.fixture(scope="module", params=[0, 1], ids=["", "overlap"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(None, StartOptions(kv_memory_bytes=2**27, context_length=1024, overlap=request.param)) as llm:
        yield llm


def grammar(llm: LLM, form: ToolFormat, choice: object = "required", parallel: bool = True) -> Grammar:
    use = tool_use(TOOLS, choice, parallel)
    assert isinstance(use, ToolUse)
    grammars = llm.started.facts.grammars
    assert grammars is not None
    made = calls_grammar(use, form, None, lambda text: None, grammars.check)
    assert made is not None
    return made


def calls_of(text: str, form: ToolFormat) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls."""
    content, calls = "", list[tuple[str, str]]()
    for event in AnswerReader(AnswerKind(None, form, tools=tools_of(TOOLS))).push(text, is_last=True):
        match event:
            case Content(more):
                content += more
            case CallStart(_, name):
                calls.append((name, ""))
            case ArgumentsText(_, more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
    return content, calls


def check(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        value = json.loads(arguments)
        assert isinstance(value, dict)
        jsonschema.validate(value, SCHEMAS[name])


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_required_calls_always_parse_and_follow_their_schemas(llm: LLM, form: ToolFormat) -> None:
    """25 prompts for each of 8 families."""
    params = SamplingParams(
        max_tokens=400, temperature=1.0, seed=7, grammar=grammar(llm, form, parallel=False)
    )
    for output in llm.generate(PROMPTS, params):
        [choice] = output.outputs
        assert choice.finish_reason == "stop"
        content, calls = calls_of(choice.text, form)
        assert (content, len(calls)) == ("", 1), choice.text
        check(calls)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_parallel_calls_parse_and_end(llm: LLM, form: ToolFormat) -> None:
    params = SamplingParams(max_tokens=350, temperature=1.0, seed=3, grammar=grammar(llm, form))
    most = 0
    for output in llm.generate(PROMPTS[:8], params):
        [choice] = output.outputs
        content, calls = calls_of(choice.text, form)
        assert calls
        assert content == ""
        check(calls if choice.finish_reason == "stop" else calls[:-1])
        most = max(most, len(calls))
    assert most > 1 or form.body is Body.PYTHON


def test_a_named_function_is_the_one_that_is_called(llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "now"}}
    params = SamplingParams(max_tokens=60, temperature=0.0, grammar=grammar(llm, HERMES, choice))
    [output] = llm.generate(PROMPTS[:1], params)
    assert calls_of(output.outputs[0].text, HERMES) == ("", [("now", "{}")])


SHOTS = "".join(
    f"User: weather in {city}?\nAnswer: Sure, "
    f'{HERMES.call_open}get_weather", "arguments": {{"city": "{city}"}}{HERMES.call_close}\n\n'
    for city in ("Rome", "Oslo", "Lima")
)


def test_a_call_that_the_model_begins_by_itself_is_constrained_from_there_on(llm: LLM) -> None:
    """And what is forced in it is what would have been sampled; neither does a neighbour matter."""
    guided = grammar(llm, HERMES, "auto")
    params = SamplingParams(n=4, max_tokens=120, temperature=0.3, seed=5, grammar=guided)
    prompt = SHOTS + "User: weather in Paris?\nAnswer:"
    told = [choice.token_ids for choice in llm.generate([prompt], params)[0].outputs]
    texts = [choice.text for choice in llm.generate([prompt], params)[0].outputs]
    begun = [text for text in texts if HERMES.begins[0] in text]
    assert begun, texts
    for text in begun:
        _, calls = calls_of(text, HERMES)
        assert calls
        check(calls[:-1])  # the last may be cut
    runner = llm.engine.executor._runner  # type: ignore[attr-defined]
    forced = llm.engine.stats.forced_tokens
    runner.walker.fast_forward = False
    try:
        assert [choice.token_ids for choice in llm.generate([prompt], params)[0].outputs] == told
    finally:
        runner.walker.fast_forward = True
    assert llm.engine.stats.forced_tokens == forced
    plain = SamplingParams(max_tokens=50, temperature=0.0)
    crowd = llm.generate([prompt, *PROMPTS[:6]], [params, *[plain] * 6])
    assert crowd[0].outputs[0].token_ids == told[0]


def test_a_strict_function_whose_schema_cannot_be_followed_is_named(llm: LLM) -> None:
    from octavo.errors import InvalidRequest

    grammars = llm.started.facts.grammars
    assert grammars is not None
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    function = {"name": "odd", "parameters": schema, "strict": True}
    use = tool_use([{"type": "function", "function": function}], "required", True)
    assert use is not None
    with pytest.raises(InvalidRequest, match="the function odd cannot be followed: not supported: not"):
        calls_grammar(use, HERMES, None, lambda text: None, grammars.check)
    lenient = tool_use([{"type": "function", "function": function | {"strict": False}}], "required", True)
    assert lenient is not None
    made = calls_grammar(lenient, PYTHONIC, None, lambda text: None, grammars.check)
    assert made is not None
    grammars.check(made)


def test_content_that_must_follow_a_schema_or_a_call_instead(llm: LLM) -> None:
    grammars = llm.started.facts.grammars
    use = tool_use(TOOLS, "auto", True)
    assert grammars is not None
    assert use is not None
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    made = calls_grammar(use, HERMES, of_schema(schema), lambda text: None, grammars.check)
    params = SamplingParams(max_tokens=300, temperature=1.5, seed=1, grammar=made)
    kinds = set()
    for output in llm.generate(PROMPTS, params):
        content, calls = calls_of(output.outputs[0].text, HERMES)
        assert bool(content) != bool(calls)
        if content:
            assert json.loads(content)["answer"] in ("yes", "no")
        elif output.outputs[0].finish_reason == "stop":
            check(calls)
        kinds.add(bool(content))
    assert kinds


def test_marks_that_are_special_tokens_are_written_as_such(llm: LLM) -> None:
    """As Mistral's and DeepSeek's are; here two tokens of the default model stand for them."""
    tokenizer = llm.started.loaded.tokenizer
    form = replace(
        HERMES,
        call_open='<repo_name>{"name": "',
        call_close="}<file_sep>",
        begins=("<repo_name>",),
        next_begins="<repo_name>",
        between="",
        markers=("<repo_name>", "<file_sep>"),
    )
    ids = {mark: tokenizer.encode(mark, add_bos=False)[0] for mark in form.markers}
    assert set(ids.values()) <= tokenizer.special_ids
    grammars = llm.started.facts.grammars
    assert grammars is not None
    for choice in ("required", "auto"):
        use = tool_use(TOOLS, choice, False)
        assert use is not None
        made = calls_grammar(use, form, None, ids.get, grammars.check)
        params = SamplingParams(
            max_tokens=300,
            temperature=1.0,
            seed=2,
            grammar=made,
            skip_special_tokens=False,
            logit_bias=((ids["<repo_name>"], 60.0),),
        )
        for output in llm.generate(PROMPTS[:8], params):
            [told] = output.outputs
            content, calls = calls_of(told.text, form)
            assert (content, len(calls), told.finish_reason) == ("", 1, "stop")
            check(calls)
            assert told.token_ids[0] == ids["<repo_name>"]
            assert ids["<file_sep>"] in told.token_ids
