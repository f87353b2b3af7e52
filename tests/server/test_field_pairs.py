"""Every field of the sampler beside every field that says what an answer must follow, over the tiny model:
each pair works, or is refused before anything is sent."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping

import pytest
from tests.engine.grammar_cases import PIECES
from tests.engine.served import FACTS
from tests.server.conftest import Edge
from tests.tiny import EOS, VOCAB, tiny_engine

from octavo.kernels.native_ops import NativeOps
from octavo.sampling.grammars import Grammars, Words
from octavo.server.settings import ServerSettings
from octavo.serving.client import EngineClient
from octavo.text.chat import ChatTemplate

_TEMPLATE = (
    "{% for m in messages %}[{{ m.role[0] }}]{{ m.content }}{% endfor %}"
    "{% if tools %}<tool_call>{% for t in tools %}{{ t.function.name }}{% endfor %}{% endif %}"
    "{% if add_generation_prompt %}[a]{% if enable_thinking %}<think>{% endif %}{% endif %}"
)
PIECES_HERE = [*PIECES[:-1], b"\n"]  # calls have line ends
BY_LENGTH = sorted(range(2, VOCAB), key=lambda token: -len(PIECES_HERE[token]))


class PieceTokenizer:
    """The vocabulary of the random grammars, with a template of a model that thinks and calls."""

    special_ids = control_ids = frozenset[int]([EOS])
    stop_ids = frozenset([EOS])
    chat_template = ChatTemplate(_TEMPLATE)
    vocab_size = VOCAB

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        data, tokens = text.encode(), list[int]()
        while data:
            token = next(one for one in BY_LENGTH if data.startswith(PIECES_HERE[one]))
            tokens.append(token)
            data = data[len(PIECES_HERE[token]) :]
        return tokens

    def close(self) -> None:
        """Its template is for all."""

    def token_bytes(self, token: int) -> bytes:
        return PIECES_HERE[token]


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    tokenizer = PieceTokenizer()
    grammars = Grammars(lambda: Words(PIECES_HERE, [EOS], [EOS], tokenizer.encode))
    engine = tiny_engine(NativeOps(), grammars=grammars)
    llm = EngineClient.over(engine, tokenizer, dataclasses.replace(FACTS, grammars=grammars), 100)  # type: ignore[arg-type]
    yield Edge(llm, ServerSettings())
    llm.close()


A, B, TRUE = PIECES.index(b"a"), PIECES.index(b"b"), PIECES.index(b"true")
BUDGET: Mapping[str, object] = {"enable_thinking": True, "max_thinking_tokens": 2}
SAMPLER: Mapping[str, Mapping[str, object]] = {
    "min_tokens": {"min_tokens": 24},
    "min_tokens 1": {"min_tokens": 1},
    "stop": {"stop": ["a", '"']},
    "stop_token_ids": {"stop_token_ids": [A, TRUE]},
    "include_stop": {"stop": ["e"], "include_stop_str_in_output": True},
    "ignore_eos": {"ignore_eos": True},
    "logit_bias": {"logit_bias": {str(token): -100 for token in range(VOCAB)}},
    "logit_bias of the end": {"logit_bias": {str(EOS): 100}},
    "allowed_token_ids": {"allowed_token_ids": [A, B, EOS]},
    "allowed and banned": {"allowed_token_ids": [A, B, EOS], "bad_words": ["aa", "b"]},
    "bad_words": {"bad_words": ["a", "{", '"', "true", "<", "</"]},
    "bad_words of all": {"bad_words": [piece.decode() for piece in PIECES[2:] if piece.strip()]},
    "n": {"n": 2},
    "beams": {"use_beam_search": True, "beam_width": 2, "temperature": 0},
    "penalties": {"repetition_penalty": 100.0, "presence_penalty": 2.0, "frequency_penalty": -2.0},
    "temperature 0": {"temperature": 0},
    "filters": {"top_k": 1, "top_p": 0.01, "min_p": 1.0},
    "max_tokens": {"max_tokens": 1},
    "thinking": BUDGET,
    "thinking, then long": {"enable_thinking": True, "max_thinking_tokens": 0, "min_tokens": 5},
    "thinking, few tokens": {**BUDGET, "allowed_token_ids": [A, B]},
    "thinking, banned end": {**BUDGET, "bad_words": ["</think>", "<", ">", "/"]},
    "skip_special_tokens": {"skip_special_tokens": False},
    "speculate": {"speculate": False},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": 1},
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["abc", "true"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
OPEN = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
FUNCTION = {"name": "number", "parameters": SCHEMA}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {"name": "is", "parameters": OPEN}},
]
NAMED = {"type": "function", "function": {"name": "number"}}
SOME = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
IN_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
STRUCTURE: Mapping[str, Mapping[str, object]] = {
    "none": {},
    "text": {"response_format": {"type": "text"}},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {"response_format": IN_SCHEMA},
    "an open schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": OPEN}}},
    "structured_outputs": {"structured_outputs": {"json": SCHEMA}},
    "guided_json": {"guided_json": SCHEMA},
    "guided_regex": {"guided_regex": "(abc|is){1,3}"},
    "guided_choice": {"guided_choice": ["abc", "is true"]},
    "guided_grammar": {"guided_grammar": 'start: "abc" /[a-z]*/'},
    "grammar": {"grammar": 'root ::= "abc" [a-f]*'},
    "regex of nothing": {"regex": "a?"},
    "tools": {"tools": TOOLS},
    "tools required": {"tools": TOOLS, "tool_choice": "required"},
    "a named tool": {"tools": TOOLS, "tool_choice": NAMED},
    "some tools": {"tools": TOOLS, "tool_choice": SOME},
    "no tool": {"tools": TOOLS, "tool_choice": "none"},
    "no tool, schema": {"tools": TOOLS, "tool_choice": "none", "response_format": IN_SCHEMA},
    "tools or a schema": {"tools": TOOLS, "response_format": IN_SCHEMA},
    "tools and a regex": {"tools": TOOLS, "guided_regex": "[a-f]+"},
    "strict tools": {
        "tools": [{"type": "function", "function": FUNCTION | {"strict": True}}],
        "tool_choice": "required",
    },
}
SHORT = {"max_tokens": 40, "seed": 3}


def ask(edge: Edge, structure: str, sampler: str, *more: Mapping[str, object]):
    fields: dict[str, object] = dict(SHORT)
    for one in (STRUCTURE[structure], SAMPLER[sampler], *more):
        fields |= one
    return edge.chat(**fields)


@pytest.mark.parametrize("structure", STRUCTURE)
def test_each_pair_works_or_is_refused_before_anything_is_sent(edge: Edge, structure: str) -> None:
    wrong = []
    for sampler in SAMPLER:
        answer = ask(edge, structure, sampler)
        told = answer.json()
        if answer.status_code == 400:
            streamed = ask(edge, structure, sampler, {"stream": True})
            # A dead end is met while tokens are made: a stream has begun by then.
            if told["error"]["code"] == "dead_end" or streamed.status_code != 400:
                wrong.append((sampler, told["error"]["message"]))
            assert "allowed" in told["error"]["message"], told
        elif answer.status_code != 200:
            wrong.append((sampler, answer.text))
        else:
            found = (broken(structure, sampler, choice) for choice in told["choices"])
            wrong += [(sampler, one) for one in found if one]
    assert wrong == []


def broken(structure: str, sampler: str, choice: Mapping[str, object]) -> str:
    """What is wrong with an answer that has ended by itself."""
    message = choice["message"]
    assert isinstance(message, dict)
    if choice["finish_reason"] == "tool_calls":
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            if "a" not in arguments:
                return str(arguments)
        return ""
    if choice["finish_reason"] != "stop" or SAMPLER[sampler].get("stop") or "stop_token_ids" in sampler:
        return ""
    text = message["content"]
    patterns = {"guided_regex": "(abc|is){1,3}", "guided_choice": "abc|is true", "grammar": "abc[a-f]*"}
    if structure in patterns:
        return "" if re.fullmatch(patterns[structure], text) else text
    if "response_format" in STRUCTURE[structure] and structure != "text":
        return "" if isinstance(json.loads(text), dict) else str(text)
    return ""


REFUSED = ("min_tokens", "ignore_eos", "allowed_token_ids")


@pytest.mark.parametrize("structure", ["json_schema", "regex of nothing", "tools required"])
@pytest.mark.parametrize("sampler", REFUSED)
def test_what_contradicts_a_grammar_is_refused_by_its_name(edge: Edge, structure: str, sampler: str) -> None:
    answer = ask(edge, structure, sampler)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == sampler
    named = next(iter(STRUCTURE[structure]))
    assert f"allowed with {named}: " in answer.json()["error"]["message"]


@pytest.mark.parametrize("structure", [name for name, fields in STRUCTURE.items() if "tools" not in fields])
def test_completions_take_or_refuse_each_pair_too(edge: Edge, structure: str) -> None:
    for sampler in SAMPLER:
        answer = edge.complete(**{**SHORT, "prompt": "abc", **STRUCTURE[structure], **SAMPLER[sampler]})
        assert answer.status_code in (200, 400), answer.text
        assert answer.status_code == 200 or answer.json()["error"]["code"] != "dead_end", (
            sampler,
            answer.text,
        )


def test_a_text_alongside_tools_is_at_least_so_long(edge: Edge) -> None:
    for seed in range(8):
        answer = ask(edge, "tools", "min_tokens", {"seed": seed, "temperature": 1.5})
        assert answer.status_code == 200, answer.text
        if answer.json()["choices"][0]["finish_reason"] == "stop":
            assert answer.json()["usage"]["completion_tokens"] >= 24


def test_a_word_that_the_schema_wants_comes_though_it_is_bad(edge: Edge) -> None:
    answer = ask(edge, "json_schema", "bad_words")
    assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) == {"a", "b"}
