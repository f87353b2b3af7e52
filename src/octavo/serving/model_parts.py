"""A model's parts outside the engine: its tokenizer with the formats of the options, its vocabulary for
grammars, its figures. Front ends and renderers use them without an engine."""

from __future__ import annotations

from octavo.config import StartOptions
from octavo.engine.outputs import ModelCard
from octavo.model.loader import LoadedModel, WholeModel
from octavo.params import Pooling
from octavo.sampling.grammars import Words
from octavo.text.named_templates import load_template
from octavo.text.tokenizer import Tokenizer
from octavo.tools.formats import FORMAT_NAMES
from octavo.tools.thinking import THINKING_NAMES


def prepared_tokenizer(tokenizer: Tokenizer, options: StartOptions) -> Tokenizer:
    """The tokenizer with the options' chat template and formats of calls and thinking. Raises ConfigError."""
    if options.chat_template is not None:
        tokenizer = tokenizer.with_template(load_template(options.chat_template))
    if tokenizer.chat_template is not None:
        tokenizer.chat_template.give_formats(
            None if options.tool_parser is None else FORMAT_NAMES[options.tool_parser],
            None if options.reasoning_parser is None else THINKING_NAMES[options.reasoning_parser],
        )
    return tokenizer


def words_of(tokenizer: Tokenizer, vocab_size: int) -> Words:
    """The vocabulary for grammars; rows of the output layer without a token are empty."""
    count = tokenizer.vocab_size
    return Words(
        [tokenizer.token_bytes(token) if token < count else b"" for token in range(vocab_size)],
        sorted(tokenizer.special_ids),
        sorted(tokenizer.stop_ids),
        lambda text: tokenizer.encode(text, add_bos=False),
    )


def card_of(loaded: LoadedModel, pooling: Pooling, *, is_host: bool) -> ModelCard:
    """The model in figures; `is_host`: its weights are in host memory."""
    spec, weights, template = loaded.model.spec, loaded.model.weights, loaded.tokenizer.chat_template
    whole = loaded.whole or WholeModel(weights.num_parameters, weights.num_bytes)
    return ModelCard(
        family=spec.family,
        num_parameters=whole.num_parameters,
        weight_kind=weights.main_kind,
        weight_bytes=whole.weight_bytes,
        device_bytes=0 if is_host else whole.weight_bytes,
        hidden_size=spec.hidden_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        vocab_size=spec.vocab_size,
        context_length=spec.context_length,
        chat_template="" if template is None else template.source,
        fingerprint=loaded.model.fingerprint.hex(),
        pooling=pooling,
    )
