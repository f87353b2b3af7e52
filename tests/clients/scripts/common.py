"""What every client is asked: the server is in OCTAVO_URL. Each script prints one JSON object."""

import json
import os
import urllib.request
from typing import Annotated

from pydantic import BaseModel, Field

ROOT = os.environ.get("OCTAVO_URL", "http://127.0.0.1:8000")
URL = ROOT + "/v1"
MODEL, KEY = "smollm2-135m", os.environ.get("OCTAVO_KEY", "none")
QUESTION = "What is the weather in Paris?"
TEXT = "Anna is 31 years old and lives in Rome."
# A beginning of some blocks, for what is to be found again.
FACTS = "Anna lives in Rome, keeps two cats and works in a library. " * 8

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


class Person(BaseModel):
    """Extracted from a text."""

    name: Annotated[str, Field(max_length=20)]
    age: Annotated[int, Field(ge=0, le=150)]


def tell(**found: object) -> None:
    """What the test looks at."""
    print(json.dumps(found))


def token_ids(text: str) -> list[int]:
    """By the server's own tokenizer."""
    body = json.dumps({"model": MODEL, "prompt": text, "add_special_tokens": False}).encode()
    request = urllib.request.Request(ROOT + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: list[int] = json.load(answer)["tokens"]
    return found
