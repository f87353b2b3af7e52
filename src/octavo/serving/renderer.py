"""A served model without weights: tokenizer, chat template and grammars, from the headers of its files. It
renders what an engine would get, and generates nothing."""

from __future__ import annotations

import tempfile
import threading
from functools import partial
from pathlib import Path

from octavo.config import StartOptions
from octavo.engine.no_engine import NoEngine
from octavo.engine.requests import ModelFacts
from octavo.model.hub.headers import fetch_headers
from octavo.model.hub.paths import resolve
from octavo.model.loader import open_files, read_tokenizer, spec_within
from octavo.sampling.grammars import Grammars
from octavo.serving.client import EngineClient
from octavo.serving.model_parts import prepared_tokenizer, words_of
from octavo.serving.start import Progress, try_template
from octavo.text.named_templates import load_template


def start_renderer(model: str | None, options: StartOptions, progress: Progress) -> EngineClient:
    """A client without an engine; of a repository that is not on this machine only headers are fetched.
    Raises ModelError or ConfigError. O(header and tokenizer bytes)."""
    if options.chat_template is not None:
        load_template(options.chat_template)  # what is wrong with it is known before anything is fetched
    with tempfile.TemporaryDirectory(prefix="octavo-headers-") as folder:
        path = resolve(model, progress, partial(fetch_headers, Path(folder)))
        opened = open_files(path)
        spec = spec_within(opened.description, options.context_length, opened.label)
        tokenizer = prepared_tokenizer(read_tokenizer(opened), options)
    tokenizer.start_threads()
    threading.Thread(target=try_template, args=(tokenizer,), name="octavo-template", daemon=True).start()
    grammars = Grammars(lambda: words_of(tokenizer, spec.vocab_size))
    name = options.served_name or path.name
    facts = ModelFacts(name, spec.context_length, spec.vocab_size, grammars)
    host = NoEngine(frozenset(tokenizer.stop_ids))
    return EngineClient(host, tokenizer, facts, options.max_queue + options.max_seqs)
