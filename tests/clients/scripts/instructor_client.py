"""instructor: modes TOOLS and JSON_SCHEMA."""

from typing import Annotated

import instructor
from common import KEY, MODEL, TEXT, URL, tell
from openai import OpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    """Extracted from a text."""

    name: Annotated[str, Field(max_length=20)]
    age: Annotated[int, Field(ge=0, le=150)]


found = {}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(OpenAI(base_url=URL, api_key=KEY), mode=mode)
    person = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": TEXT}],
        response_model=Person,
        temperature=0,
        max_tokens=200,
        max_retries=0,
    )
    found[mode.name] = person.model_dump()
tell(**found)
