"""The folder that Dynamo's frontend reads says of a model what the engine itself does."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from octavo.config import StartOptions
from octavo.dynamo.model_folder import model_folder
from octavo.serving.start import start_renderer
from octavo.text.tokenizer import Tokenizer

pytestmark = pytest.mark.real_model


@pytest.fixture
def renderer():
    renderer = start_renderer(None, StartOptions(served_name="a/b c"), lambda words: None)
    yield renderer
    renderer.close()


def test_a_gguf_becomes_a_folder_with_its_tokenizer_template_and_ends(renderer, tmp_path):
    folder = model_folder(renderer, tmp_path / "dynamo")
    ours, again = renderer.tokenizer, Tokenizer.from_folder(folder)
    text = "Hello <|im_start|>, é世🙂 don't  12345"
    assert again.encode(text) == ours.encode(text)
    assert (again.stop_ids, again.bos_id, again.eos_id) == (ours.stop_ids, ours.bos_id, ours.eos_id)
    assert again.special_ids == ours.special_ids
    assert again.chat_template.source == ours.chat_template.source
    config = json.loads((folder / "config.json").read_text())
    assert config["max_position_embeddings"] == renderer.context_length
    assert config["vocab_size"] == renderer.vocab_size


def test_equal_models_have_one_folder_and_others_their_own(renderer, tmp_path):
    folder = model_folder(renderer, tmp_path)
    assert model_folder(renderer, tmp_path) == folder
    shorter = start_renderer(None, StartOptions(context_length=64), lambda words: None)
    try:
        assert model_folder(shorter, tmp_path) != folder
    finally:
        shorter.close()
    assert {path.name[0] for path in tmp_path.iterdir()} == {"a", "s"}  # nothing half made is left


def test_a_worker_that_comes_second_takes_the_folder_of_the_first(renderer, tmp_path, monkeypatch):
    rename = os.rename

    def after_another(made, folder):
        shutil.copytree(made, folder)
        rename(made, folder)

    monkeypatch.setattr("octavo.dynamo.model_folder.os.rename", after_another)
    folder = model_folder(renderer, tmp_path)
    assert list(tmp_path.iterdir()) == [folder]
    assert len(list(folder.iterdir())) == 4
