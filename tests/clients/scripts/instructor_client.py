"""instructor: modes TOOLS, JSON_SCHEMA and RESPONSES_TOOLS."""

import instructor
from common import KEY, MODEL, TEXT, URL, Person, tell
from openai import OpenAI

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
client = instructor.from_openai(OpenAI(base_url=URL, api_key=KEY), mode=instructor.Mode.RESPONSES_TOOLS)
person = client.responses.create(
    model=MODEL, input=TEXT, response_model=Person, temperature=0, max_output_tokens=200, max_retries=0
)
tell(**found, RESPONSES_TOOLS=person.model_dump())
