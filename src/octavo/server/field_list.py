"""Fields of requests: the notes on the supported ones, and the list of the unsupported ones.

    done      a field of a model, with a note (`done`)
    refused   it would change the answer and is not supported, so it is refused by name; values that request
              the default behaviour are accepted
    ignored   it does not change the answer

Refused and ignored fields are in `unsupported_fields.toml`. A field that is neither there nor in its model is
ignored, as clients expect of a server. /openapi.json has the models' notes; `docs/reference.py` prints all
fields into the pages of the APIs. Values are checked elsewhere.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, TypeAdapter
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from octavo.errors import unsupported

KNOWN_TO: Final = {"O": "OpenAI", "V": "vLLM", "L": "llama-server", "S": "SGLang", "X": "Octavo"}


class Body(BaseModel):
    """A body, or an object in one: values are not converted, and unknown fields are ignored. The validator is
    built on first use, because many models are only bases, or only described."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, defer_build=True)


def done(note: str = "", known_to: str = "", default: object = None) -> Any:  # noqa: ANN401  as pydantic's
    """A supported field. `note`: what its name does not say; `known_to`: letters of `KNOWN_TO`."""
    support: JsonDict = {"x-known-to": _owners(known_to)} if known_to else {}
    return Field(default, description=note or None, json_schema_extra=support)


@dataclass(frozen=True, slots=True)
class SchemaOf:
    """Annotates a value that is parsed by hand, for better errors: its JSON schema is that of `kind`."""

    kind: Any

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Called by pydantic for a model's JSON schema."""
        return handler(TypeAdapter(self.kind).core_schema)


Text = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


def texts_or_tokens(most: int) -> SchemaOf:
    """A text, token ids, or up to `most` of either."""
    many = Field(min_length=1, max_length=most)
    return SchemaOf(Text | TokenIds | Annotated[list[Text], many] | Annotated[list[TokenIds], many])


@dataclass(frozen=True, slots=True)
class UnsupportedField:
    """A row of the list. `harmless`: values with which a refused field changes nothing."""

    note: str
    owners: str
    harmless: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class FieldList:
    """The unsupported fields of one model, by name."""

    refused: dict[str, UnsupportedField] = field(default_factory=dict)
    ignored: dict[str, UnsupportedField] = field(default_factory=dict)

    def check(self, body: Mapping[str, object], where: str = "") -> None:
        """Raise InvalidRequest for a field that requests something unsupported. `where` is the path of a
        nested object, such as "messages[3]."."""
        for name, row in self.refused.items():
            if name in body and body[name] not in row.harmless:
                raise unsupported(
                    f"{where}{name} is not supported by this server: {row.note}",
                    re.split(r"[.[]", where)[0] or name,
                )


@cache
def field_list(model: type[BaseModel]) -> FieldList:
    """The list of a model and its bases. Each field must be listed once."""
    found = FieldList()
    for cls in model.__mro__:
        for treatment, rows in _table().get(cls.__name__, {}).items():
            listed = {name: _row(*row) for names, row in rows.items() for name in names.split(", ")}
            assert not listed.keys() & {*model.model_fields, *found.refused, *found.ignored}, (model, listed)
            getattr(found, treatment).update(listed)
    return found


@cache
def _table() -> dict[str, dict[str, dict[str, list[Any]]]]:
    return tomllib.loads(
        resources.files("octavo.server").joinpath("unsupported_fields.toml").read_text("utf-8")
    )


def _row(note: str, known_to: str = "", *harmless: object) -> UnsupportedField:
    return UnsupportedField(note, _owners(known_to), (None, *harmless))


def _owners(letters: str) -> str:
    return ", ".join(KNOWN_TO[letter] for letter in letters)
