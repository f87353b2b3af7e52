"""Random requests whose outputs follow grammars, over a vocabulary of 97 tokens: letters, and some longer
pieces, so that what is forced has one spelling of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tests.tiny import EOS, VOCAB, Answer, random_prompt, request, run, tiny_engine, tiny_model

from octavo.engine.core import Engine
from octavo.grammar import Grammar, GrammarKind, Thinking, ThinkingState, of_choices, of_schema, of_text
from octavo.kernels.native_ops import NativeOps
from octavo.sampling.grammars import Grammars, Words
from octavo.types import Request

LONGER = ["name", '": ', '{"', "abc", '", "', "true", "false", "is", "ing", "the ", "12", "number"]
LETTERS = sorted(set(map(chr, range(32, 127))) - set("~^|@#$%&*;=+"))
PIECES = [b"", b"", *(letter.encode() for letter in LETTERS), *(piece.encode() for piece in LONGER)]
assert len(PIECES) == VOCAB


def encode(text: str) -> list[int]:
    """The longest piece first; letters that have no token are left out."""
    tokens: list[int] = []
    place = 0
    by_length = sorted(range(2, VOCAB), key=lambda token: -len(PIECES[token]))
    data = text.encode()
    while place < len(data):
        token = next((one for one in by_length if data.startswith(PIECES[one], place)), None)
        place += 1 if token is None else len(PIECES[token])
        tokens += [] if token is None else [token]
    return tokens


def new_grammars() -> Grammars:
    """Over that vocabulary."""
    return Grammars(lambda: Words(PIECES, [], [EOS], encode))


def _schema(rng: np.random.Generator) -> Grammar:
    text = {"type": "string", "maxLength": int(rng.integers(1, 9))}
    options = [
        text,
        {"type": "boolean"},
        {"enum": ["the number", "abcabc"]},
        {"type": "integer", "maximum": 99},
    ]
    names = ["name", "is the number", "abc", "a"][: int(rng.integers(1, 5))]
    fields = {name: options[int(rng.integers(4))] for name in names}
    return of_schema(
        {"type": "object", "properties": fields, "required": names, "additionalProperties": False}
    )


def grammar_of(rng: np.random.Generator) -> Grammar:
    """A random one."""
    match int(rng.integers(6)):
        case 0 | 1:
            return _schema(rng)
        case 2:
            return of_choices(["naming the number 12", "naming", "true: abcabcabc", "is it false or true"])
        case 3:
            return of_text(GrammarKind.REGEX, "(abc(12)?name ){2,5}[a-f]{1,6}ing", "regex")
        case 4:
            rule = 'start: ("is " /[a-z]{1,4}/ ", the number 12 is here" | "abc") (" and " /[0-9]{2}/)?'
            return of_text(GrammarKind.LARK, rule, "grammar")
    # Begins where the model happens to write one of these letters.
    rule = 'start: /[^a-m]+/? /[a-m]/ "number is " ("true" | "false") " in the naming " /[x-z]{1,3}/'
    return Grammar(GrammarKind.LARK, rule, "tools", tuple("abcdefghijklm"))


def case(seed: int, request_id: int = 1, n: int | None = None) -> Request:
    """A random request that follows a grammar, or has a budget for its thinking, or both."""
    rng = np.random.default_rng([seed, 7])
    params: dict[str, object] = {"seed": int(rng.integers(0, 2**40)), "logprobs": None}
    if rng.random() < 0.3:
        params["logprobs"] = 2
    if rng.random() < 0.6:
        params |= {"temperature": float(rng.uniform(0.3, 1.5))}
        if rng.random() < 0.4:
            params |= {"top_p": 0.9, "top_k": int(rng.choice([0, 20]))}
    if rng.random() < 0.3:
        params |= {"repetition_penalty": 1.2, "presence_penalty": 0.5}
    if rng.random() < 0.2:
        params["min_tokens"] = int(rng.integers(1, 12))
    if rng.random() < 0.2:
        params["stop_token_ids"] = (int(rng.integers(2, VOCAB)),)
    if rng.random() < 0.25:
        state = ThinkingState.INSIDE if rng.random() < 0.6 else ThinkingState.MAYBE
        params["thinking"] = Thinking(state, int(rng.integers(0, 9)), begin="a", end="the ")
    if rng.random() < 0.9 or "thinking" not in params:
        params["grammar"] = grammar_of(rng)
    masks = np.random.default_rng([seed, 11])  # of its own: the other draws stay what they are
    if masks.random() < 0.15:
        params["banned_sequences"] = (
            (int(masks.integers(2, VOCAB)),),
            (*map(int, masks.integers(2, VOCAB, 2)),),
        )
    length = int(rng.choice([1, 5, 15, 16, 17, 33, 70]))
    choices = n or (4 if rng.random() < 0.3 else 1)
    return request(request_id, random_prompt(rng, length), int(rng.integers(1, 60)), choices, **params)


def neighbours(seed: int, count: int) -> list[Request]:
    """With grammars, and plain ones, with ids from 100 on."""
    rng = np.random.default_rng([seed, 8])
    plain = [request(200 + i, random_prompt(rng, 9), 20, logprobs=None) for i in range(count // 2)]
    return [*(case(seed * 1000 + i, 100 + i) for i in range(count - count // 2)), *plain]


Answers = dict[tuple[int, int], Answer]


class Undisturbed:
    """Requests run alone, token by token, in whole prompts."""

    def __init__(self) -> None:
        self.ops = NativeOps()
        self.model = tiny_model(self.ops)
        self.grammars = new_grammars()
        self._known: dict[int, Answers] = {}

    def engine(self, **settings: object) -> Engine:
        """Over the same model."""
        return tiny_engine(self.ops, model=self.model, grammars=self.grammars, **settings)  # type: ignore[arg-type]

    def of(self, seed: int) -> Answers:
        """Of a case."""
        if seed not in self._known:
            engine = self.engine(step_tokens=512, fast_forward=False)
            self._known[seed] = run(engine, [case(seed)])
        return self._known[seed]


class Preempter:
    """Preempts the last of the running sequences at some steps, and counts those that were amid tokens which
    a grammar had forced: known, and not yet computed."""

    def __init__(self, engine: Engine, steps: set[int]) -> None:
        self._engine = engine
        self._steps = steps
        self.num_forced = 0

    def __call__(self, step: int) -> None:
        live = self._engine.scheduler.live
        if step in self._steps and live.running:
            victim = next((s for s in live.running if s.remaining > 1 and s.num_forced), live.running[-1])
            self.num_forced += bool(victim.num_forced) and victim.remaining > 1
            self._engine.scheduler.preemption.preempt(victim, live.running[0])


def disturbed(
    calm: Undisturbed, seed: int, settings: dict[str, object], extra: Sequence[Request] = ()
) -> tuple[Answers, int]:
    """The case in a crowd, preempted at random; and how often that met a forced run."""
    rng = np.random.default_rng([seed, 9])
    engine = calm.engine(**settings)
    requests = [case(seed), *neighbours(seed, int(rng.integers(0, 6))), *extra]
    rng.shuffle(requests)  # type: ignore[arg-type]
    preempter = Preempter(engine, {int(step) for step in rng.integers(1, 30, 5)})
    try:
        answers = run(engine, requests, preempter)
    finally:
        engine.executor.close()
    return answers, preempter.num_forced


def settings_of(seed: int) -> dict[str, object]:
    """Of an engine."""
    rng = np.random.default_rng([seed, 10])
    return {
        "step_tokens": int(rng.choice([5, 16, 37, 64, 512])),
        "depth": int(rng.integers(0, 2)),
        "num_blocks": int(rng.choice([24, 40, 200])),
        "rows": int(rng.choice([4, 6, 16])),
        "fast_forward": bool(rng.random() < 0.8),
    }


def differences(
    calm: Undisturbed, seeds: Sequence[int], look: Callable[[int], None] = lambda num: None
) -> list[str]:
    """What of these cases is not as it was alone: none, in an engine without bugs."""
    found = []
    for seed in seeds:
        try:
            answers, num_forced = disturbed(calm, seed, settings_of(seed))
        except AssertionError as error:
            found.append(f"case {seed}: {error}")
            continue
        look(num_forced)
        for key, wanted in calm.of(seed).items():
            if answers[key].essence != wanted.essence:
                found.append(f"case {seed}, choice {key[1]}: {answers[key].tokens} is not {wanted.tokens}")
    return found
