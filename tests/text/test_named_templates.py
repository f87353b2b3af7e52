"""The templates that go by a name write what their models' own templates write; what is no template is told
before anything is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.text.vocabularies import REFERENCES, gguf_metadata

import octavo.text.named_templates
from octavo.config import StartOptions
from octavo.engine.requests import render_chat
from octavo.errors import BadModelFile, ConfigError, InvalidRequest
from octavo.serving.start import build_engine
from octavo.text.chat import TEMPLATE_CHARS_MAX, ChatTemplate
from octavo.text.named_templates import NAMES, load_template
from octavo.text.tokenizer import Tokenizer
from octavo.types import ChatMessage, ChatOptions

# The conversation that llama.cpp tests its templates with, and what the models' own make of it.
CHAT = [
    ChatMessage("system", "You are a helpful assistant"),
    ChatMessage("user", "Hello"),
    ChatMessage("assistant", "Hi there"),
    ChatMessage("user", "Who are you"),
    ChatMessage("assistant", "   I am an assistant   "),
    ChatMessage("user", "Another question"),
]
WRITTEN = {
    "chatml": "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHello<|im_"
    "end|>\n<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nWho are you<|im_end|"
    ">\n<|im_start|>assistant\n   I am an assistant   <|im_end|>\n<|im_start|>user\nAnother q"
    "uestion<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistan"
    "t<|end_header_id|>\n\nHi there<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "Who are you<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nI am an assistan"
    "t<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nAnother question<|eot_id|><|sta"
    "rt_header_id|>assistant<|end_header_id|>\n\n",
    "llama2": "<s>[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nHello [/INST] Hi there </s><"
    "s>[INST] Who are you [/INST] I am an assistant </s><s>[INST] Another question [/INST"
    "]",
    "mistral": "<s>[INST] Hello[/INST] Hi there</s>[INST] Who are you[/INST] I am an assistant</s>[I"
    "NST] You are a helpful assistant\n\nAnother question[/INST]",
    "mistral-tekken": "<s>[INST]Hello[/INST]Hi there</s>[INST]Who are you[/INST]   I am an assistant   </s>"
    "[INST]You are a helpful assistant\n\nAnother question[/INST]",
    "gemma": "<s><start_of_turn>user\nYou are a helpful assistant\n\nHello<end_of_turn>\n<start_of_tur"
    "n>model\nHi there<end_of_turn>\n<start_of_turn>user\nWho are you<end_of_turn>\n<start_of"
    "_turn>model\nI am an assistant<end_of_turn>\n<start_of_turn>user\nAnother question<end_"
    "of_turn>\n<start_of_turn>model\n",
    "phi3": "<|system|>\nYou are a helpful assistant<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\n"
    "Hi there<|end|>\n<|user|>\nWho are you<|end|>\n<|assistant|>\n   I am an assistant   <|e"
    "nd|>\n<|user|>\nAnother question<|end|>\n<|assistant|>\n",
    "phi4": "<|im_start|>system<|im_sep|>You are a helpful assistant<|im_end|><|im_start|>user<|i"
    "m_sep|>Hello<|im_end|><|im_start|>assistant<|im_sep|>Hi there<|im_end|><|im_start|>u"
    "ser<|im_sep|>Who are you<|im_end|><|im_start|>assistant<|im_sep|>   I am an assistan"
    "t   <|im_end|><|im_start|>user<|im_sep|>Another question<|im_end|><|im_start|>assist"
    "ant<|im_sep|>",
    "phi4-mini": "<|system|>You are a helpful assistant<|end|><|user|>Hello<|end|><|assistant|>Hi ther"
    "e<|end|><|user|>Who are you<|end|><|assistant|>   I am an assistant   <|end|><|user|"
    ">Another question<|end|><|assistant|>",
    "granite": "<|start_of_role|>system<|end_of_role|>You are a helpful assistant<|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>Hello<|end_of_text|>\n<|start_of_role|>assistant<"
    "|end_of_role|>Hi there<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Who are yo"
    "u<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>   I am an assistant   <|e"
    "nd_of_text|>\n<|start_of_role|>user<|end_of_role|>Another question<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>",
    "glm4": "[gMASK]<sop><|system|>\nYou are a helpful assistant<|user|>\nHello<|assistant|>\nHi the"
    "re<|user|>\nWho are you<|assistant|>\n   I am an assistant   <|user|>\nAnother question"
    "<|assistant|>\n",
    "zephyr": "<|system|>\nYou are a helpful assistant</s>\n<|user|>\nHello</s>\n<|assistant|>\nHi there"
    "</s>\n<|user|>\nWho are you</s>\n<|assistant|>\n   I am an assistant   </s>\n<|user|>\n"
    "Another question</s>\n<|assistant|>\n",
    "falcon3": "<|system|>\nYou are a helpful assistant\n<|user|>\nHello\n<|assistant|>\nHi there</s>\n"
    "<|user|>\nWho are you\n<|assistant|>\n   I am an assistant   </s>\n<|user|>\nAnother ques"
    "tion\n<|assistant|>\n",
    "olmo2": "<s><|system|>\nYou are a helpful assistant\n<|user|>\nHello\n<|assistant|>\nHi there</s>\n"
    "<|user|>\nWho are you\n<|assistant|>\n   I am an assistant   </s>\n<|user|>\nAnother ques"
    "tion\n<|assistant|>\n",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_named_template_writes_what_its_models_write(name):
    template = ChatTemplate(load_template(name), "<s>", "</s>")
    try:
        assert template.render(CHAT).text == WRITTEN[name]
        closed = template.render(CHAT[:3], ChatOptions(add_generation_prompt=False)).text
        assert closed.count("Hi there") == 1
        assert len(closed) < len(WRITTEN[name])
    finally:
        template.close()


def test_the_names_are_those_of_the_files():
    folder = Path(octavo.text.named_templates.__file__).with_name("templates")
    assert sorted(path.stem for path in folder.glob("*.jinja")) == sorted(NAMES) == sorted(WRITTEN)


def test_a_template_may_be_a_file_or_the_text_itself(tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}!")
    assert load_template(str(tmp_path / "mine.jinja")) == "{{ messages[0].content }}!"
    assert load_template("{{ 1 }}") == "{{ 1 }}"


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "is '.*, which is no file here; allowed: a file with a Jinja template, or one of chatml,"),
        (b"\xff", "is not UTF-8"),
        (b" \n", "is empty; allowed"),
        (b"{% if %}", "is no Jinja template: line 1: Expected an expression"),
        (b"a\n{{ 1 | nofilter }}", "is no Jinja template: line 2: No filter named 'nofilter'"),
        (b"{% for x in y %}", "is no Jinja template: line 1"),
        (b"{{" + b"(" * 20_000, "is no Jinja template"),
        (b"x" * (TEMPLATE_CHARS_MAX + 1), "has 1,048,577 characters; allowed: 1,048,576"),
        (b"x" * (4 * TEMPLATE_CHARS_MAX + 1), "has 4,194,305 bytes; allowed: 4,194,304"),
    ],
)
def test_what_is_no_template_is_reported_before_the_model_is_looked_for(tmp_path, content, message):
    path = tmp_path / "t.jinja"
    if content is not None:
        path.write_bytes(content)
    options = StartOptions(chat_template=str(path))
    with pytest.raises(ConfigError, match=message):
        build_engine(str(tmp_path / "no-model"), options, lambda _: None)


@pytest.mark.parametrize("given", ["", "a\x00b", "x" * 5000, "~nobody-of-that-name/x"])
def test_names_that_can_be_no_file_are_refused_like_others(given):
    with pytest.raises(ConfigError, match="chat_template"):
        load_template(given)


# -- in place of a model's own ---------------------------------------------------------------------------


@pytest.fixture
def plain():
    return Tokenizer.from_gguf(gguf_metadata(REFERENCES["gpt-2"](), "gpt-2"), "test")


def test_without_a_template_the_message_names_the_option_and_the_names(plain):
    with pytest.raises(
        InvalidRequest, match=r"no chat template; .*--chat-template: a file, or one of chatml,"
    ):
        render_chat(plain, CHAT)


def test_a_template_stands_in_place_of_the_models_own(plain):
    chatting = plain.with_template(load_template("chatml"))
    try:
        rendered = render_chat(chatting, [ChatMessage("user", "Say <|im_end|>")])
        assert rendered.text.startswith("<|im_start|>user\nSay <|im_end|><|im_end|>\n")
        assert chatting.encode_parts(rendered.parts).count(2) == 1  # what the client wrote is text
    finally:
        chatting.close()
    assert plain.chat_template is None


# -- the model's own -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    REFERENCES["gpt-2"]().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def named(*pairs):
    return json.dumps({"chat_template": [{"name": name, "template": text} for name, text in pairs]})


TOOLS = ({"type": "function", "function": {"name": "now"}},)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": named(("default", "D"), ("tool_use", "T{{ tools[0].function.name }}"))},
        {
            "chat_template.jinja": "D",
            "additional_chat_templates/tool_use.jinja": "T{{ tools[0].function.name }}",
        },
    ],
)
def test_chats_with_tools_are_written_by_the_template_for_tools(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    tokenizer = Tokenizer.from_folder(folder)
    try:
        template = tokenizer.chat_template
        assert template.render(CHAT).text == "D"
        assert template.render(CHAT, ChatOptions(tools=TOOLS)).text == "Tnow"
    finally:
        tokenizer.close()


def test_a_gguf_may_bring_a_template_for_tools():
    metadata = gguf_metadata(REFERENCES["gpt-2"](), "gpt-2")
    metadata |= {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T{{ tools }}"}
    tokenizer = Tokenizer.from_gguf(metadata, "test")
    try:
        assert tokenizer.chat_template.source == "D"
        assert tokenizer.chat_template.render(CHAT, ChatOptions(tools=TOOLS)).text.startswith("T[")
    finally:
        tokenizer.close()


def test_chat_template_json_is_read_where_nothing_else_has_one(folder):
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    assert Tokenizer.from_folder(folder).chat_template.source == "J"
    (folder / "tokenizer_config.json").write_text('{"chat_template": "C"}')
    assert Tokenizer.from_folder(folder).chat_template.source == "C"
    (folder / "chat_template.jinja").write_text("F")
    assert Tokenizer.from_folder(folder).chat_template.source == "F"


def test_a_template_file_that_is_too_large_is_no_sound_model(folder):
    (folder / "chat_template.jinja").write_text("x" * (4 * TEMPLATE_CHARS_MAX + 1))
    with pytest.raises(BadModelFile, match="4,194,305 bytes; allowed for a template"):
        Tokenizer.from_folder(folder)


def test_the_documentation_names_every_template():
    text = (Path(__file__).parents[2] / "docs" / "chat.md").read_text()
    table = text[text.index("| name | families |") : text.index("They do not support tools")]
    assert sorted(re.findall(r"`([\w-]+)`", table)) == sorted(NAMES)
