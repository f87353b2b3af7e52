"""Six tasks for a model, from answers that repeat their prompts to answers with no repetition.

    editing     a function of Python's standard library, to rewrite with one name changed
    quoting     a passage of Python's documentation, to repeat its key sentences
    extraction  a report of two ships, to write as JSON that follows a schema
    retrieval   numbered passages and a question, to answer with quotations
    chat        questions, answered at temperature 0.7, each with a fixed seed
    random      random tokens, continued to the full length at temperature 1: nothing repeats, so only the
                cost of guessing remains. A greedy small model would soon repeat itself

All prompts of a task differ. They come from Python's library and documentation (PSF licence), so they are the
same in every run on the same Python version; ships and questions are invented. All tasks except the last two
are greedy; answers of all except the last end where the model ends them.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.abc import InspectLoader
from itertools import islice

from octavo.bench.offline import FIRST_TOKEN
from octavo.errors import ConfigError, shown
from octavo.grammar import of_schema
from octavo.params import SamplerParams

TASKS = ("editing", "quoting", "extraction", "retrieval", "chat", "random")
NUM_PROMPTS = 32  # of each task
RANDOM_TOKENS = 128
CHAT_TEMPERATURE = 0.7

CODE_CHARS = (1100, 1550)  # of a function: 350 to 500 tokens
PASSAGE_CHARS = (900, 1400)  # to quote from
SHORT_CHARS = (300, 500)  # of a passage among others
_PASSAGES = 4
_FUNCTIONS_EACH = 3  # of one module, for variety

_MODULES = (
    "textwrap",
    "shlex",
    "calendar",
    "copy",
    "difflib",
    "statistics",
    "base64",
    "configparser",
    "functools",
    "gettext",
    "random",
    "pprint",
    "tempfile",
    "tokenize",
    "ipaddress",
    "fractions",
    "queue",
    "quopri",
    "uuid",
    "warnings",
    "shutil",
    "traceback",
)

_SHIPS = ("Aurora", "Belle Marie", "Cormorant", "Daphne", "Esperance", "Fortuna", "Galatea", "Halcyon")
_KINDS = ("brig", "schooner", "barque", "sloop", "frigate")
_PORTS = ("Bristol", "Lisbon", "Bergen", "Trieste", "Marseille", "Riga", "Cadiz", "Rotterdam", "Genoa")
_GOODS = ("salt fish", "timber", "wool cloth", "olive oil", "iron bars", "tobacco", "sugar", "tea and silk")
_FIRST = ("John", "Maria", "Henrik", "Pietro", "Anna", "Samuel", "Louise", "Tomas", "Edward", "Clara")
_LAST = ("Hargreaves", "Lindqvist", "Moretti", "Da Costa", "Thorsen", "Whitfield", "Duval", "Okafor", "Berg")
_MONTHS = ("March", "April", "May", "June", "July", "August", "September", "October")
_SHIPS_EACH = 2

_QUESTIONS = (
    "Why is the sky blue in the day and red in the evening?",
    "How do I keep a sourdough starter alive?",
    "What should I see in Rome in two days?",
    "Explain to a child how a plane stays in the air.",
    "Write a short poem about a lighthouse in winter.",
    "What is the difference between a virus and a bacterium?",
    "How can I learn to play the guitar as an adult?",
    "Which habits help people to sleep better?",
    "What caused the fall of the Roman Empire?",
    "How does a refrigerator make things cold?",
    "Give me ideas for a birthday party with little money.",
    "What do bees do in winter?",
    "How do I write a good letter of application?",
    "Why do leaves change their colour in autumn?",
    "Tell me a story about a fox who wants to be a baker.",
    "What is inflation, and why does it matter?",
    "How do I train for my first half marathon?",
    "What are the main ideas of Stoic philosophy?",
    "How do ships float although they are made of steel?",
    "Plan three simple dinners without meat for a week.",
    "What is the best way to remember names?",
    "How do vaccines work?",
    "Describe the life of a medieval monk.",
    "What should I look for when I buy a used bicycle?",
    "Why do we have leap years?",
    "How can a small town attract more visitors?",
    "What makes a good teacher?",
    "Explain what an interest rate is, with an example.",
    "How did people navigate at sea before satellites?",
    "What are good plants for a dark room?",
    "Write a dialogue between the sun and the moon.",
    "How do I stay calm before an exam?",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message, or `token_ids` if they are not empty, and the sampling of its answer."""

    text: str
    token_ids: tuple[int, ...]
    params: SamplerParams


def chosen_tasks(names: Sequence[str] | None) -> tuple[str, ...]:
    """The tasks of these names, in our order; None takes all. Raises ConfigError."""
    for name in names or ():
        if name not in TASKS:
            raise ConfigError(f"--task is {shown(name)}; allowed: {', '.join(TASKS)}")
    return tuple(name for name in TASKS if not names or name in names)


def prompts_of_task(name: str, tokens: int, vocab_size: int) -> list[Prompt]:
    """`NUM_PROMPTS` different prompts, answered with up to `tokens` tokens. Raises ConfigError for an unknown
    name."""
    chosen_tasks([name])
    greedy = SamplerParams(max_tokens=tokens, temperature=0.0)
    if name == "random":
        drawn = replace(greedy, temperature=1.0, ignore_eos=True)
        return [
            Prompt("", ids, replace(drawn, seed=seed)) for seed, ids in enumerate(_random_ids(vocab_size))
        ]
    if name == "chat":
        drawn = replace(greedy, temperature=CHAT_TEMPERATURE)
        return [Prompt(text, (), replace(drawn, seed=seed)) for seed, text in enumerate(_QUESTIONS)]
    if name == "extraction":
        params = replace(greedy, grammar=of_schema(SHIPS_SCHEMA))
        return [Prompt(text, (), params) for text in _reports()]
    texts = {"editing": _edits, "quoting": _quotations, "retrieval": _searches}[name]()
    return [Prompt(text, (), greedy) for text in islice(texts, NUM_PROMPTS)]


def _object(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_WORDS = {"type": "string", "maxLength": 40}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 9999}
_SHIP = _object(
    {
        "name": _WORDS,
        "kind": _WORDS,
        "master": _WORDS,
        "home_port": _WORDS,
        "tons": _NUMBER,
        "crew": _NUMBER,
        "cargo": _WORDS,
        "destination": _WORDS,
        "sailed": _WORDS,
    }
)
SHIPS_SCHEMA = _object(
    {"ships": {"type": "array", "items": _SHIP, "minItems": _SHIPS_EACH, "maxItems": _SHIPS_EACH}}
)


def _edits() -> Iterator[str]:
    for code in functions():
        old = commonest_name(code)
        yield (
            f"Rename `{old}` to `new_{old}` in this Python code, and change nothing else. "
            f"Write the whole code again.\n\n```python\n{code}\n```"
        )


def functions() -> Iterator[str]:
    """Functions of the standard library, of a length within `CODE_CHARS`."""
    for module in _MODULES:
        source = source_of(module)
        yield from islice(_functions_of(source), _FUNCTIONS_EACH)


def _functions_of(source: str) -> Iterator[str]:
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            margin = " " * node.col_offset
            own = [line.removeprefix(margin) for line in lines[node.lineno - 1 : node.end_lineno]]
            code = "\n".join(own)
            if CODE_CHARS[0] <= len(code) <= CODE_CHARS[1]:
                yield code


def source_of(module: str) -> str:
    """A module's text, from the installed library; empty if this Python has none."""
    spec = importlib.util.find_spec(module)
    loader = None if spec is None else spec.loader
    return (loader.get_source(module) or "") if isinstance(loader, InspectLoader) else ""


def commonest_name(code: str) -> str:
    """The variable that a function uses most, of three letters or more; of equals the first."""
    names = [node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    names = [name for name in names if len(name) > 2 and name != "self" and not keyword.iskeyword(name)]
    return Counter(names).most_common(1)[0][0]


def _quotations() -> Iterator[str]:
    for passage in _spread(passages(PASSAGE_CHARS), NUM_PROMPTS):
        yield (
            f"{passage}\n\nRepeat the most important sentences of this text, word for word, each in "
            "quotation marks."
        )


def _searches() -> Iterator[str]:
    """Passages lie far apart, so that they are about different things; one of them is asked for."""
    found = _spread(passages(SHORT_CHARS), NUM_PROMPTS * _PASSAGES)
    for index in range(NUM_PROMPTS):
        own = found[index::NUM_PROMPTS]
        numbered = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(own, 1))
        subject = " ".join(own[index % _PASSAGES].split()[:8])
        yield (
            f"Here are {_PASSAGES} numbered passages.\n\n{numbered}\n\n"
            f'What do the passages say about "{subject} ..."? Answer with quotations from them, and put the '
            "number of the passage behind each quotation, as in [1]."
        )


def passages(chars: tuple[int, int]) -> list[str]:
    """Paragraphs of prose of Python's documentation, joined until they have so many characters."""
    from pydoc_data.topics import topics

    least, most = chars
    found = []
    for name in sorted(topics):
        text = ""
        for paragraph in topics[name].split("\n\n"):
            words = " ".join(paragraph.split())
            if not words.endswith((".", ":")) or words[0] in "*+-.>|" or "::=" in words:
                continue  # a heading, a table, a rule of the grammar, code
            text = f"{text}\n{words}" if text else words
            if len(text) >= least:
                found += [text] if len(text) <= most else []
                text = ""
    return found


def _spread(texts: Sequence[str], count: int) -> list[str]:
    """So many of them, different, at even distances."""
    unique = list(dict.fromkeys(texts))
    return [unique[index * len(unique) // count] for index in range(count)]


def _reports() -> Iterator[str]:
    generator = random.Random("ships")
    for _ in range(NUM_PROMPTS):
        names = generator.sample(_SHIPS, _SHIPS_EACH)
        report = "\n".join(_ship(name, generator) for name in names)
        yield (
            f"{report}\n\nWrite these {_SHIPS_EACH} ships as JSON, with name, kind, master, home_port, tons, "
            "crew, cargo, destination and the date on which each sailed, in the words of the report."
        )


def _ship(name: str, generator: random.Random) -> str:
    choice = generator.choice
    home, destination = generator.sample(_PORTS, 2)
    return (
        f"The {choice(_KINDS)} {name} of {home}, {generator.randrange(80, 900)} tons, master "
        f"{choice(_FIRST)} {choice(_LAST)}, with a crew of {generator.randrange(8, 90)}, sailed on "
        f"{generator.randrange(1, 29)} {choice(_MONTHS)} {generator.randrange(1760, 1850)} for {destination} "
        f"with a cargo of {choice(_GOODS)}."
    )


def _random_ids(vocab_size: int) -> Iterator[tuple[int, ...]]:
    generator = random.Random("random")
    low = min(FIRST_TOKEN, vocab_size - 1)
    for _ in range(NUM_PROMPTS):
        yield tuple(generator.randrange(low, vocab_size) for _ in range(RANDOM_TOKENS))
