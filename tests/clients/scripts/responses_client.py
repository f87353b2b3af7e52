"""openai on /v1/responses: answers whole, streamed, kept, branched, cancelled, deleted; tools and schemas."""

from common import CITY, FACTS, KEY, MODEL, QUESTION, TEXT, URL, Person, tell
from openai import NotFoundError, OpenAI

TOOL = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
client = OpenAI(base_url=URL, api_key=KEY)
asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 60}

# A conversation that the server keeps: two branches of its first answer.
first = client.responses.create(input=FACTS + "Where does Anna live?", metadata={"topic": "Anna"}, **asked)
branches = [
    client.responses.create(input=question, previous_response_id=first.id, **asked)
    for question in ("And where does she work?", "How many cats has she?")
]
told = client.responses.create(input="Who are you?", instructions="You are a pirate.", **asked)

# The same answer in events, read by hand and by the library's helper.
events = list(client.responses.create(input=FACTS + "Where does Anna live?", stream=True, **asked))
deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
with client.responses.stream(input=FACTS + "Where does Anna live?", **asked) as stream:
    helped = stream.get_final_response()

# A call, its result, an answer. The call in events, too.
tools = {"tools": [TOOL], "parallel_tool_calls": False}
called = client.responses.create(input=QUESTION, tool_choice="required", **tools, **asked)
[call] = [item for item in called.output if item.type == "function_call"]
result = {"type": "function_call_output", "call_id": call.call_id, "output": "22 degrees, sunny"}
after = client.responses.create(
    input=[result], previous_response_id=called.id, tool_choice="none", **tools, **asked
)
resent = client.responses.create(
    input=[{"role": "user", "content": QUESTION}, *called.output, result],
    tool_choice="none",
    **tools,
    **asked,
)
named = {"type": "function", "name": "get_weather"}
arguments = ""
for event in client.responses.create(input=QUESTION, stream=True, tool_choice=named, **tools, **asked):
    if event.type == "response.function_call_arguments.delta":
        arguments += event.delta
parsed = client.responses.parse(input=TEXT, text_format=Person, **asked)

# One that is ended from elsewhere.
story = client.responses.create(
    input="Tell a long story.", stream=True, **(asked | {"max_output_tokens": 2000})
)
begun = next(story).response
ended = [client.responses.cancel(begun.id).status, list(story)[-1].response.status]

# What is kept, and no longer.
again = client.responses.retrieve(first.id)
items = client.responses.input_items.list(branches[0].id, order="asc", limit=20).data
client.responses.delete(first.id)
try:
    client.responses.retrieve(first.id)
    gone = False
except NotFoundError:
    gone = True

tell(
    status=first.status,
    text=first.output_text,
    tokens=first.usage.total_tokens,
    cached=[branch.usage.input_tokens_details.cached_tokens for branch in branches],
    inputs=[branch.usage.input_tokens for branch in branches],
    answered=[bool(one.output_text) for one in (*branches, told, after, resent)],
    instructions=[told.instructions, branches[0].instructions],
    numbers=[event.sequence_number for event in events],
    kinds=[event.type for event in events],
    streamed="".join(deltas),
    pieces=len(deltas),
    helped=helped.output_text,
    call=[call.name, call.arguments],
    streamed_arguments=arguments,
    person=parsed.output_parsed.model_dump(),
    retrieved=[again.output_text, again.metadata],
    items=[[item.role, item.content[0].text[-23:]] for item in items],
    gone=gone,
    cancelled=[*ended, client.responses.retrieve(begun.id).status],
)
