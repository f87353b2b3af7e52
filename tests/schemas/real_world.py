"""Sixty schemas such as programs send: what they want extracted, decided, planned or filled in; by what they
describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Schema = dict[str, object]


def text(most: int = 60, **more: object) -> Schema:
    """A short string."""
    return {"type": "string", "maxLength": most, **more}


def whole(low: int = 0, high: int = 1000) -> Schema:
    """An integer."""
    return {"type": "integer", "minimum": low, "maximum": high}


def number(low: float = 0, high: float = 10_000) -> Schema:
    """Any number."""
    return {"type": "number", "minimum": low, "maximum": high}


def one_of(*words: str) -> Schema:
    """A word of these."""
    return {"type": "string", "enum": list(words)}


def maybe(schema: Schema) -> Schema:
    """That, or null, as pydantic writes it."""
    return {"anyOf": [schema, {"type": "null"}], "default": None}


def many(item: Schema, most: int = 4, least: int = 0) -> Schema:
    """A list."""
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


def thing(
    optional: tuple[str, ...] = (), defs: Mapping[str, Schema] | None = None, **fields: Schema
) -> Schema:
    """An object with these fields and no others."""
    required = [name for name in fields if name not in optional]
    schema: Schema = {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }
    return schema | ({"$defs": dict(defs)} if defs else {})


def ref(name: str) -> Schema:
    """Of its definitions."""
    return {"$ref": f"#/$defs/{name}"}


FLAG: Final[Schema] = {"type": "boolean"}
DATE, TIME, EMAIL = (
    text(10, format="date"),
    {"type": "string", "format": "date-time"},
    text(40, format="email"),
)
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
CODE = {"type": "string", "pattern": "^[A-Z]{2,3}-[0-9]{2,4}$"}
HEX = {"type": "string", "pattern": "^#[0-9a-f]{6}$"}
MONEY = thing(amount=number(), currency=one_of("EUR", "USD", "GBP"))
ADDRESS = thing(("zip",), street=text(), city=text(30), zip=text(8), country=text(20))
PERSON = thing(("email",), name=text(30), age=whole(0, 120), email=EMAIL)
POINT = thing(lat=number(-90, 90), lon=number(-180, 180))
TREE = thing(defs={"node": thing(label=text(20), children=many(ref("node"), 2))}, root=ref("node"))
STEP = thing(thought=text(120), action=one_of("search", "read", "answer"), input=text(60))

SCHEMAS: Final[Mapping[str, Schema]] = {
    "an address": ADDRESS,
    "a person": PERSON,
    "an invoice with two lines": thing(
        number=CODE,
        date=DATE,
        lines=many(thing(item=text(30), count=whole(1, 99), price=number()), 3, 1),
        total=MONEY,
    ),
    "a calendar event": thing(("place",), title=text(), begins=TIME, minutes=whole(5, 600), place=text(30)),
    "the arguments of a web search": thing(("limit",), query=text(80), limit=whole(1, 20)),
    "the arguments of an email tool": thing(
        to=many(EMAIL, 3, 1), subject=text(), body=text(200), urgent=FLAG
    ),
    "the arguments of a database query": thing(sql=text(120), limit=maybe(whole(1, 100))),
    "a product review": thing(stars=whole(1, 5), title=text(), pros=many(text(40)), cons=many(text(40))),
    "the sentiment of a text": thing(label=one_of("positive", "negative", "neutral"), score=number(0, 1)),
    "a support ticket": thing(
        id=UUID, priority=one_of("low", "high"), tags=many(text(12)), summary=text(120)
    ),
    "a triage of symptoms": thing(
        urgency=one_of("now", "today", "later"), symptoms=many(text(30), 5, 1), see_doctor=FLAG
    ),
    "a short resume": thing(
        name=text(30), skills=many(text(20), 5), jobs=many(thing(title=text(30), years=whole(0, 50)), 3)
    ),
    "an issue of a code project": thing(
        ("assignee",),
        title=text(),
        body=text(200),
        labels=many(one_of("bug", "docs")),
        assignee=maybe(text(20)),
    ),
    "a recipe": thing(
        name=text(),
        servings=whole(1, 12),
        ingredients=many(thing(what=text(20), grams=number()), 5, 1),
        steps=many(text(80), 4, 1),
    ),
    "a trip of two days": thing(
        city=text(30), days=many(thing(day=whole(1, 9), visits=many(text(30), 3)), 2, 1)
    ),
    "a settings file": thing(
        host=text(30), port=whole(1, 65535), tls=FLAG, level=one_of("debug", "info", "error")
    ),
    "a weather report": thing(
        city=text(30), celsius=number(-60, 60), wind=thing(speed=number(), from_=one_of("N", "E", "S", "W"))
    ),
    "a flight": thing(
        number=CODE,
        origin=text(3, minLength=3),
        to=text(3, minLength=3),
        departs=TIME,
        seats=many(text(3), 3),
    ),
    "a hotel booking": thing(hotel=text(), nights=whole(1, 30), guests=many(PERSON, 2, 1), breakfast=FLAG),
    "a bank transfer": thing(
        iban={"type": "string", "pattern": "^[A-Z]{2}[0-9]{14,20}$"}, amount=MONEY, note=maybe(text(40))
    ),
    "a quiz question": thing(question=text(120), options=many(text(30), 4, 4), answer=whole(0, 3)),
    "a chess move": thing(
        piece=one_of("K", "Q", "R", "B", "N", "P"), to={"type": "string", "pattern": "^[a-h][1-8]$"}
    ),
    "a poem's facts": thing(title=text(), lines=whole(1, 40), rhymes=FLAG),
    "a music playlist": thing(
        name=text(), songs=many(thing(title=text(30), artist=text(30), seconds=whole(30, 900)), 3, 1)
    ),
    "a book": thing(title=text(), authors=many(text(30), 3, 1), year=whole(1500, 2030), isbn=maybe(text(13))),
    "named entities of a text": thing(people=many(text(30)), places=many(text(30)), dates=many(text(20))),
    "a tree of topics": TREE,
    "the next step of an agent": STEP,
    "a plan of an agent": thing(goal=text(), steps=many(STEP, 3, 1)),
    "a comparison of two phones": thing(
        first=text(30), second=text(30), better=one_of("first", "second", "equal"), why=text(120)
    ),
    "a translation": thing(language=one_of("de", "fr", "es"), text=text(120), notes=maybe(text(60))),
    "a summary": thing(title=text(), bullets=many(text(80), 4, 2)),
    "a classification": thing(
        category=one_of("sport", "politics", "science", "other"), confidence=number(0, 1)
    ),
    "a shape": {
        "anyOf": [
            thing(kind={"const": "circle"}, radius=number()),
            thing(kind={"const": "box"}, sides=many(number(), 2, 2)),
        ]
    },
    "a colour theme": thing(background=HEX, text=HEX, accent=maybe(HEX)),
    "a location on a map": thing(name=text(30), point=POINT, tags=many(text(12), 3)),
    "a delivery": thing(
        parcel=UUID, address=ref("address"), status=one_of("sent", "lost", "there"), defs={"address": ADDRESS}
    ),
    "a company": thing(
        name=text(), founded=whole(1800, 2030), staff=ref("staff"), defs={"staff": many(PERSON, 2, 1)}
    ),
    "a lab result": thing(
        sample=CODE, values=many(thing(name=text(20), value=number(), unit=one_of("mg", "ml")), 3, 1)
    ),
    "a job offer": thing(("salary",), title=text(), remote=FLAG, salary=thing(low=whole(), high=whole())),
    "a real estate listing": thing(
        rooms=whole(1, 12),
        area=number(10, 900),
        price=MONEY,
        features=many(one_of("garden", "lift", "garage")),
    ),
    "a news headline": thing(headline=text(80), date=DATE, source=text(30)),
    "a stock order": thing(
        symbol={"type": "string", "pattern": "^[A-Z]{1,5}$"},
        side=one_of("buy", "sell"),
        count=whole(1, 1000),
        limit=maybe(number()),
    ),
    "a git commit": thing(subject=text(60), body=text(160), breaking=FLAG, files=many(text(40), 3)),
    "a function's signature": thing(
        name={"type": "string", "pattern": "^[a-z_]{1,20}$"},
        args=many(thing(name=text(12), type=one_of("int", "str")), 3),
        returns=text(12),
    ),
    "a unit test": thing(
        name=text(40), input={"type": ["integer", "string", "null"], "maxLength": 20}, expected=whole()
    ),
    "a table of cells": thing(columns=many(text(12), 3, 1), rows=many(many(text(12), 3, 1), 2, 1)),
    "a matrix": many(many(whole(0, 9), 3, 3), 3, 3),
    "a chat message": thing(
        role=one_of("user", "assistant"),
        content={"anyOf": [text(80), many(thing(type={"const": "text"}, text=text(60)), 2, 1)]},
    ),
    "a feature flag": thing(key=text(20), on=FLAG, share=number(0, 100), groups=many(text(12), 3)),
    "a cron job": thing(command=text(40), minute=whole(0, 59), hour=whole(0, 23), days=many(whole(1, 7), 3)),
    "a legal clause": thing(title=text(), text=text(200), applies_to=many(one_of("buyer", "seller"), 2, 1)),
    "a medicine": thing(
        name=text(30),
        dose=thing(amount=number(0, 5000), unit=one_of("mg", "ml")),
        per_day=whole(1, 6),
        warnings=many(text(40), 3),
    ),
    "a school timetable": thing(
        monday=many(text(12), 3), tuesday=many(text(12), 3), friday=many(text(12), 3)
    ),
    "an animal": thing(name=text(20), latin=text(30), legs=whole(0, 8), wild=FLAG),
    "a sports result": thing(
        home=text(20), away=text(20), goals=thing(home=whole(0, 12), away=whole(0, 12)), date=DATE
    ),
    "key and value pairs": {
        "type": "object",
        "additionalProperties": text(20),
        "required": ["key"],
        "properties": {"key": text(20)},
        "maxProperties": 3,
    },
    "a log line": thing(
        time=TIME,
        level=one_of("info", "warn"),
        message=text(80),
        context=maybe(thing(user=whole(), path=text(30))),
    ),
    "a survey answer": thing(question=text(60), answer={"anyOf": [FLAG, whole(1, 5), text(60)]}),
    "an expense report": thing(
        employee=text(30), items=many(thing(what=text(30), cost=MONEY, date=DATE), 2, 1), approved=FLAG
    ),
}
