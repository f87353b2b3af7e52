"""A list of fields and what becomes of each: a page of the docs is printed from it, and it refuses requests.

    done      it does what it says there, or what its note says
    alias     another name of a field that is done
    refused   it would change the answer and is not built, so it is refused by name; values that ask for what
              happens anyway are let through
    ignored   it changes no answer

A field that is in no list is let through, as clients expect of a server. There is a list for OpenAI's routes
(`request_fields`) and one for each dialect. It knows nothing of what a value must look like.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from octavo.errors import unsupported


class Place(enum.StrEnum):
    """Where a field stands."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    EMBEDDINGS = "embeddings"
    STREAM_OPTIONS = "stream_options"
    MESSAGE = "message"
    # Of Anthropic's API, whose fields are in `dialects.anthropic_fields`.
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    BLOCK = "block"
    TOOL = "tool"
    OUTPUT_CONFIG = "output_config"
    # Of the Responses API, whose fields are in `dialects.responses_fields`.
    RESPONSES = "responses"
    RESPONSES_TEXT = "text"
    REASONING = "reasoning"
    # Of Ollama's, whose fields are in `dialects.ollama_fields`.
    OLLAMA_CHAT = "ollama_chat"
    OLLAMA_GENERATE = "ollama_generate"
    OLLAMA_OPTIONS = "ollama_options"
    OLLAMA_MESSAGE = "ollama_message"
    OLLAMA_EMBED = "ollama_embed"
    OLLAMA_EMBEDDINGS = "ollama_embeddings"
    OLLAMA_SHOW = "ollama_show"


class Treatment(enum.StrEnum):
    """What becomes of a field."""

    DONE = "done"
    ALIAS = "alias"
    REFUSED = "refused"
    IGNORED = "ignored"


@dataclass(frozen=True, slots=True)
class Field:
    """A field; `note` says what else to know: what to use instead of a refused one, what an alias means.

    `owners` are letters of `_OWNERS`. `harmless` are the values under which a refused one changes nothing.
    """

    name: str
    places: tuple[Place, ...]
    owners: str
    treatment: Treatment
    note: str = ""
    harmless: tuple[object, ...] = (None,)


@dataclass(frozen=True, slots=True)
class FieldsAt:
    """Makes fields of these places, where no others are named."""

    places: tuple[Place, ...]

    def done(self, name: str, note: str = "", places: tuple[Place, ...] = ()) -> Field:
        """One that does something."""
        return Field(name, places or self.places, "", Treatment.DONE, note)

    def refused(self, name: str, note: str, *harmless: object, places: tuple[Place, ...] = ()) -> Field:
        """One that is refused, but with null or `harmless` values."""
        return Field(name, places or self.places, "", Treatment.REFUSED, note, (None, *harmless))

    def ignored(self, name: str, note: str, places: tuple[Place, ...] = ()) -> Field:
        """One that changes no answer."""
        return Field(name, places or self.places, "", Treatment.IGNORED, note)


class FieldList:
    """The fields of one API."""

    def __init__(
        self,
        head: str,
        places: Mapping[Place, str],
        fields: tuple[Field, ...],
        *,
        owners: Mapping[str, str] | None = None,
        besides: Mapping[Place, tuple[Field, ...]] | None = None,
    ) -> None:
        """`places` are as the page writes them, below its `head`; `owners` names the letters of
        `Field.owners`, where fields have any. `besides` are refused there too, unless `fields` have them, and
        not printed."""
        self.fields = fields
        self._head, self._places, self._owners = head, places, owners or {}
        self._refused = {
            place: (
                *(f for f in fields if place in f.places and f.treatment is Treatment.REFUSED),
                *(f for f in (besides or {}).get(place, ()) if f.name not in self._names_at(place)),
            )
            for place in places
        }

    def refused_at(self, place: Place) -> tuple[Field, ...]:
        """The fields that may be refused there."""
        return self._refused[place]

    def check(self, body: Mapping[str, object], place: Place, where: str = "") -> None:
        """Raise InvalidRequest for a field that asks for something that is not built. `where` leads to a
        nested object, such as "messages[3]."."""
        for field in self._refused[place]:
            if field.name in body and body[field.name] not in field.harmless:
                raise unsupported(
                    f"{where}{field.name} is not supported by this server: {field.note}",
                    re.split(r"[.[]", where)[0] or field.name,
                )

    def page(self) -> str:
        """The page that tells of them all."""
        return "\n".join(self._lines()) + "\n"

    def _names_at(self, place: Place) -> set[str]:
        return {field.name for field in self.fields if place in field.places}

    def _lines(self) -> Iterator[str]:
        yield from self._head.split("\n")
        columns = ["field", "where", *(["known to"] if self._owners else []), "here", "note"]
        yield _row(columns)
        yield _row(["---"] * len(columns))
        for field in self.fields:
            where = ", ".join(self._places[place] for place in field.places)
            owners = [", ".join(self._owners[letter] for letter in field.owners)] if self._owners else []
            yield _row([f"`{field.name}`", where, *owners, field.treatment, _note(field)])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _note(field: Field) -> str:
    allowed = [f"`{json.dumps(value)}`" for value in field.harmless if value is not None]
    if field.treatment is Treatment.REFUSED and allowed:
        return f"{field.note}; let through: {', '.join(allowed)}"
    return field.note
