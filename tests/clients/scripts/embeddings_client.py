"""openai on /v1/embeddings: one text, many, token ids; base64, its default, and floats; dimensions."""

import math

from common import KEY, MODEL, URL, tell, token_ids
from openai import OpenAI

TEXTS = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Bond yields rose on Tuesday."]
client = OpenAI(base_url=URL, api_key=KEY)


def embedded(given: object, **options: object) -> list[list[float]]:
    """Vectors in the order of what was given."""
    return [one.embedding for one in client.embeddings.create(model=MODEL, input=given, **options).data]


def product(a: list[float], b: list[float]) -> float:
    """Of normalised vectors: their cosine."""
    return sum(x * y for x, y in zip(a, b, strict=True))


[one] = embedded(TEXTS[0])
many = embedded(TEXTS)
[floats] = embedded(TEXTS[0], encoding_format="float")
[short] = embedded(TEXTS[0], dimensions=64)
cut = [value / math.hypot(*one[:64]) for value in one[:64]]
ids = token_ids(TEXTS[0])
[by_ids] = embedded([ids])
usage = client.embeddings.create(model=MODEL, input=TEXTS[0]).usage
tell(
    size=len(one),
    length=math.hypot(*one),
    same=[one == many[0], one == floats, one == by_ids],
    short=max(abs(a - b) for a, b in zip(short, cut, strict=True)),
    near=product(many[0], many[1]),
    far=product(many[0], many[2]),
    usage=[usage.prompt_tokens, usage.total_tokens, len(ids)],
)
