"""What every client is asked: the server is in OCTAVO_URL. Each script prints one JSON object."""

import json
import os

URL = os.environ.get("OCTAVO_URL", "http://127.0.0.1:8000") + "/v1"
MODEL, KEY = "smollm2-135m", "none"
QUESTION = "What is the weather in Paris?"
TEXT = "Anna is 31 years old and lives in Rome."


def tell(**found: object) -> None:
    """What the test looks at."""
    print(json.dumps(found))
