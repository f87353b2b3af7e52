"""Text to token ids and back to bytes, over the `tokenizers` library.

Two sources: a folder (`vocabulary_folder`), and the metadata of a GGUF file (`gguf_vocabulary`). Two styles
of vocabulary decide the bytes of a token: byte-level (every letter of a token is one byte) and SentencePiece
("▁" is a space, <0xNN> a byte). It knows nothing of models or weights; unknown ids have no bytes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import tokenizers

from octavo.errors import BadModelFile, UnsupportedModel
from octavo.fields import Fields, parse_json_object
from octavo.text.aliases import AliasEncoder
from octavo.text.byte_level import byte_level_bytes
from octavo.text.chat import ChatTemplate
from octavo.text.control import ControlTokens
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.encoding import encode_text, panics_as, start_library_threads
from octavo.text.gguf_vocabulary import build_vocabulary, named_ids
from octavo.text.growth import growth_of
from octavo.text.infill import infill_tokens
from octavo.text.model_templates import ModelTemplates, templates_of_folder, templates_of_gguf
from octavo.text.sentencepiece import SPACE
from octavo.text.vocabulary_folder import named_token, optional_fields, read_vocabulary

_IDS_MAX = 1 << 24
_BYTES_REMEMBERED = 1 << 15  # tokens in the cache
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
_TURN_ENDS = (  # files often name one end token, and models generate another
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",
    "<|eot|>",  # Llama 4
    "<|im_end|>",  # Qwen, SmolLM
    "<end_of_turn>",  # Gemma
    "<|end_of_text|>",  # Granite, Llama 3
    "<|return|>",  # gpt-oss
    "<|call|>",
    "</s>",
)
_PHI_END, _HARMONY_END = "<|end|>", "<|return|>"
# GLM-4 ends a turn with the token of the next role; in other models tokens of these names begin a turn.
_GLM_MARK, _GLM_ENDS = "[gMASK]", ("<|user|>", "<|observation|>")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """`stop_ids` end an answer; `special_ids` have no text in one. `begin_ids` go before plain prompts."""

    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int]
    special_ids: frozenset[int]
    begin_ids: tuple[int, ...]
    pad_id: int | None = None
    named_ids: frozenset[int] = frozenset()  # those that the files name as special, flagged or not


class Tokenizer:
    """One model's tokenizer. Thread-safe: after its construction, only caches change."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: SpecialTokens,
        *,
        byte_level: bool,
        strips_leading_space: bool,
        templates: ModelTemplates,
    ) -> None:
        self._backend = backend
        self._special = special
        self._byte_level = byte_level
        # Each token of an answer is looked up twice; a few tokens make up most of any text.
        self._remembered_bytes = lru_cache(_BYTES_REMEMBERED)(self._bytes_of)
        added = backend.get_added_tokens_decoder()
        self._added = {id_: token.content for id_, token in added.items()}
        self.strips_leading_space = strips_leading_space
        # A token that begins or ends a text or a turn is a control token even if its file does not flag it. A
        # token of nothing but space is text, in the template and in a client's message.
        named = {special.bos_id, special.eos_id, special.pad_id, *special.named_ids} - {None}
        control_texts = {i: self._content(i) for i in {*special.special_ids, *special.stop_ids, *named}}
        self._controls = {i: text for i, text in control_texts.items() if i in added and text.strip()}
        self._growth = growth_of(backend)
        with panics_as(BadModelFile, "the tokenizer"):
            self._aliases = AliasEncoder(backend, self._controls)
        self.chat_template = self._template(templates)
        self.infill = infill_tokens(backend.token_to_id)  # None: the model does not fill in the middle

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], source: str) -> Tokenizer:
        """From the metadata of a GGUF file; `source` names it in messages.

        Raises BadModelFile, UnsupportedModel. O(tokens), about 0.15 s for 49,152.
        """
        fields = Fields(source, metadata)
        vocabulary = build_vocabulary(fields)
        last = vocabulary.size - 1
        named = named_ids(fields, vocabulary.size)
        stop_ids = set(ends_of_turn(vocabulary.backend, vocabulary.special_ids))
        stop_ids |= {named[name] for name in ("eos", "eot", "eom") if name in named}
        padding = metadata.get("tokenizer.ggml.padding_token_id")  # only reported: a wrong one does no harm
        byte_level, strips = _decoder_style(vocabulary.backend, source)
        special = SpecialTokens(
            named.get("bos"),
            named.get("eos"),
            frozenset(stop_ids),
            vocabulary.special_ids,
            vocabulary.begin_ids,
            padding if type(padding) is int and 0 <= padding <= last else None,
        )
        made = cls(
            vocabulary.backend,
            special,
            byte_level=byte_level,
            strips_leading_space=strips,
            templates=templates_of_gguf(fields),
        )
        made.infill = infill_tokens(vocabulary.backend.token_to_id, metadata, vocabulary.size)
        return made

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """From tokenizer.json or another vocabulary of the folder, with the tokens and the template that the
        folder's other files name.

        Raises ModelNotFound, BadModelFile, UnsupportedModel.
        """
        vocabulary = read_vocabulary(folder)
        backend = vocabulary.backend
        settings = optional_fields(folder / "tokenizer_config.json")
        bos_id = named_token(settings, "bos_token", backend, vocabulary.bos_id)
        eos_id = named_token(settings, "eos_token", backend, vocabulary.eos_id)
        byte_level, strips = _decoder_style(backend, vocabulary.source)
        added = backend.get_added_tokens_decoder()
        special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        stop_ids = _stop_ids(folder)
        if not stop_ids:
            stop_ids = ends_of_turn(backend, special_ids) | (frozenset() if eos_id is None else {eos_id})
        pad_id = named_token(settings, "pad_token", backend)
        named_ids = _named_ids(backend, settings, optional_fields(folder / "special_tokens_map.json"))
        # The post-processor of a tokenizer.json adds the begin token, as Hugging Face does.
        special = SpecialTokens(
            bos_id, eos_id, stop_ids, special_ids, vocabulary.begin_ids, pad_id, named_ids
        )
        return cls(
            backend,
            special,
            byte_level=byte_level,
            strips_leading_space=strips,
            templates=templates_of_folder(folder, settings),
        )

    def with_template(self, source: str) -> Tokenizer:
        """This tokenizer with another chat template, a Jinja text."""
        other = copy.copy(self)
        other.chat_template = self._template(ModelTemplates(source))
        return other

    @property
    def vocab_size(self) -> int:
        """The number of tokens; the model may have more rows, which are never used."""
        size: int = self._backend.get_vocab_size()
        return size

    def vocabulary(self) -> dict[str, int]:
        """Every token as the files spell it, with its id. O(tokens)."""
        vocabulary: dict[str, int] = self._backend.get_vocab()
        return vocabulary

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        return self._special.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, if there is one; `stop_ids` has it and others."""
        return self._special.eos_id

    @property
    def stop_ids(self) -> frozenset[int]:
        """All tokens that end an answer."""
        return self._special.stop_ids

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens without text in an answer."""
        return self._special.special_ids

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that a client's text never becomes in a chat."""
        return frozenset(self._controls)

    def to_json(self) -> str:
        """The tokenizer in the format of tokenizer.json. O(tokens)."""
        text: str = self._backend.to_str()
        return text

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Token ids; special tokens written in the text are encoded as such, as with Hugging Face.

        `add_bos` puts the begin token in front if the model needs one; not for chats, whose template writes
        it. Raises InvalidRequest for text that is not Unicode (a lone surrogate), or could become too long.
        """
        self._growth.check(text)
        ids = encode_text(self._backend, text, add_bos)
        return [*self._special.begin_ids, *ids] if add_bos else ids

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        """Token ids of text, control token, text, ... (`RenderedText.parts`): nothing in a text becomes a
        control token. Raises InvalidRequest as `AliasEncoder.encode`, and as `encode`."""
        self._growth.check("".join(parts))
        return self._aliases.encode(parts)

    def start_threads(self) -> None:
        """Lower the priority of the threads that encode long texts (`start_library_threads`)."""
        start_library_threads(self._backend)

    def close(self) -> None:
        """End the processes that render chats; a later chat starts one."""
        if self.chat_template is not None:
            self.chat_template.close()

    def info(self) -> dict[str, object]:
        """What a client needs to tokenise the same way, in the shape of vLLM's /tokenizer_info: JSON
        values."""
        special, template = self._special, self.chat_template
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": self._content(special.bos_id) or None,
            "eos_token": self._content(special.eos_id) or None,
            "pad_token": self._content(special.pad_id) or None,
            "unk_token": getattr(self._backend.model, "unk_token", None),
            "add_bos_token": self._begins_texts(),
            "add_eos_token": False,
            "chat_template": None if template is None else template.source,
            "vocab_size": self.vocab_size,
            "added_tokens_decoder": {
                str(i): {"content": text, "special": i in special.special_ids}
                for i, text in self._added.items()
            },
        }

    def _begins_texts(self) -> bool:
        """Whether `encode` puts the begin token in front of a text."""
        bos = self._special.bos_id
        return bos is not None and self.encode("")[:1] == [bos]

    def _template(self, templates: ModelTemplates) -> ChatTemplate | None:
        """The template with the tokens that it may write, and with the one for tools, if there is one."""
        if templates.default is None:
            return None
        bos, eos = self._content(self._special.bos_id), self._content(self._special.eos_id)
        controls = self._control_tokens(self._backend.get_added_tokens_decoder())
        tools = templates.with_tools
        with_tools = None if tools is None else ChatTemplate(tools, bos, eos, controls)
        return ChatTemplate(templates.default, bos, eos, controls, with_tools)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, b"" for an id without a token."""
        return self._remembered_bytes(token)

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added:
            content, is_special = self._added[token], token in self._special.special_ids
            # SentencePiece's user-defined pieces spell spaces like the others.
            return (content if self._byte_level or is_special else content.replace(SPACE, " ")).encode()
        piece = self._backend.id_to_token(token) if 0 <= token < _IDS_MAX else None
        if piece is None:
            return b""
        if self._byte_level:
            return byte_level_bytes(piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        return bytes.fromhex(byte.group(1)) if byte else piece.replace(SPACE, " ").encode()

    def decode(self, tokens: Iterable[int], skip_special: bool = True) -> str:
        """The text of tokens that begin a text (so a SentencePiece model's first space is dropped)."""
        skip = self._special.special_ids if skip_special else frozenset()
        detokenizer = IncrementalDetokenizer(
            self.token_bytes, skip, strip_leading_space=self.strips_leading_space
        )
        return "".join(map(detokenizer.push, tokens)) + detokenizer.finish()

    def _control_tokens(self, added: Mapping[int, tokenizers.AddedToken]) -> ControlTokens:
        return ControlTokens(
            self._controls.values(),
            [token.content for i, token in added.items() if i not in self._controls and not token.normalized],
            {token.content for token in added.values() if token.single_word},
            always=any(added[i].normalized for i in self._controls),
        )

    def _content(self, token: int | None) -> str:
        piece: str | None = None if token is None else self._backend.id_to_token(token)
        return piece or ""


def _named_ids(backend: tokenizers.Tokenizer, *files: Fields) -> frozenset[int]:
    """The ids of all tokens that these files name as special."""
    named: list[object] = []
    for fields in files:
        for key, value in fields.values.items():
            if key.endswith(("_token", "_special_tokens")):
                named += value if isinstance(value, list) else [value]
    contents = (one.get("content") if isinstance(one, dict) else one for one in named)
    ids = (backend.token_to_id(content) for content in contents if isinstance(content, str))
    return frozenset(id_ for id_ in ids if id_ is not None)


def _stop_ids(folder: Path) -> frozenset[int]:
    """All end tokens of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        fields = optional_fields(folder / name)
        value = fields.values.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and 0 <= token < _IDS_MAX for token in ids):
            raise fields.bad("eos_token_id", "a token id or a list of them")
        if ids:
            return frozenset(ids)
    return frozenset()


def _decoder_style(backend: tokenizers.Tokenizer, source: str) -> tuple[bool, bool]:
    """Whether tokens are byte-level, and whether the first space of a text is dropped."""
    state = parse_json_object(backend.decoder.__getstate__(), source) if backend.decoder else {}
    inner = state.get("decoders", [])
    steps = [step for step in (inner if isinstance(inner, list) else []) if isinstance(step, dict)] or [state]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return True, False
    strips = any(step.get("type") == "Strip" and step.get("start") for step in steps)
    metaspace = any(
        step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never" for step in steps
    )
    if kinds & {"ByteFallback", "Metaspace"}:
        return False, strips or metaspace
    raise UnsupportedModel(f"{source}: a decoder of {kinds}; allowed: ByteLevel, ByteFallback, Metaspace")


def ends_of_turn(backend: tokenizers.Tokenizer, special_ids: Collection[int]) -> frozenset[int]:
    """The special tokens that end a turn in the model's family."""
    names = [*_TURN_ENDS]
    if backend.token_to_id(_HARMONY_END) is None:
        names.append(_PHI_END)  # with gpt-oss it ends a message, and the answer continues
    if backend.token_to_id(_GLM_MARK) is not None:
        names += _GLM_ENDS
    ids = map(backend.token_to_id, names)
    return frozenset(id_ for id_ in ids if id_ is not None and id_ in special_ids)
