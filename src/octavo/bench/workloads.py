"""What `octavo bench` sends, each workload described once: from here are flags, help, defaults and bounds.

    Offline     `bench offline`: prompts for an engine in this process
    Latency     `bench latency`: answers that run, and a long prompt that comes
    Load        `bench serve`: requests for an endpoint; Asking: how many, and when; WorkloadTargets: what is
                good
    Memory      `bench memory`: a pool, and the requests that there may be
    Embeddings  `bench embeddings`: texts

Lengths are in tokens. Whatever is out of its bounds is a ConfigError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from octavo.errors import ConfigError
from octavo.setting import About, Unit, check, setting

INDEPENDENT, SHARED, LONG = "independent", "shared-prefix", "long"
# The short names that workloads have in figures, and the words for them.
WORDS: Mapping[str, str] = MappingProxyType({"W1": INDEPENDENT, "W2": SHARED, "W3": LONG})
LOADS = ("random", "shared-prefix", "mixed", "multi-turn")
POOLED = ("last", "mean")
# The first tokens of a stream come while others' prompts are computed: they belong to neither side.
SETTLE = 8
_TOKENS = 10_000_000
_REQUESTS = 1_000_000
_ASKING, _PROMPTS, _GOOD, _SIZES = "Asking", "Prompts", "What counts as good", "Sizes"


def _word_for(given: str, flag: str) -> str:
    """A workload by its short name, too; whether there is one, the check of choices tells."""
    return WORDS.get(given.upper(), given.lower())


@dataclass(frozen=True, slots=True)
class Offline:
    """Which prompts an engine in this process gets."""

    workload: tuple[str, ...] = setting(
        (INDEPENDENT, SHARED),
        About(
            "What is sent; repeatable, by default the first two. independent: prompts that share nothing, "
            "the next when an answer ends. shared-prefix: prompts that begin alike, all at once. "
            "long: long prompts, all at once.",
            _PROMPTS,
            choices=tuple(WORDS.values()),
            metavar="NAME",
            read=_word_for,
        ),
    )
    conc: tuple[int, ...] = setting(
        (),
        About(
            "Requests at once; repeatable, a run for each. Default: 1, 8 and 32; 1 and 4 of long prompts.",
            _PROMPTS,
            low=1,
            high=4096,
        ),
    )
    n: tuple[int, ...] = setting(
        (),
        About(
            "Requests of each run; repeatable with independent prompts alone, once for each --conc. "
            "Default: twice --conc, 4 at least; 32 behind a shared prefix.",
            _PROMPTS,
            low=1,
            high=_REQUESTS,
        ),
    )
    inp: int = setting(128, About("Tokens of an independent prompt.", _SIZES, low=1, high=_TOKENS))
    out: int = setting(128, About("Tokens of its answer.", _SIZES, low=1, high=_TOKENS))
    prefix: int = setting(
        512, About("Tokens of the shared prefix; 0: leave it out.", _SIZES, low=0, high=_TOKENS)
    )
    prompt: int = setting(7168, About("Tokens of a long prompt.", _SIZES, low=1, high=_TOKENS))
    long_out: int = setting(64, About("Tokens of its answer.", _SIZES, low=1, high=_TOKENS))

    def __post_init__(self) -> None:
        check(self)
        runs = self.conc or (1, 8, 32)
        if len(self.n) > 1 and (set(self.workload) != {INDEPENDENT} or len(self.n) != len(runs)):
            raise ConfigError(
                f"--n is given {len(self.n)} times; allowed: once, or with independent prompts alone once "
                f"for each of the {len(runs)} --conc"
            )


@dataclass(frozen=True, slots=True)
class Latency:
    """Answers that run, and a long prompt that comes."""

    streams: int = setting(
        8, About("Answers that run when the long prompt comes.", _PROMPTS, low=1, high=4096)
    )
    own: int = 32  # tokens of each one's prompt
    before: int = setting(
        48, About("Tokens of each answer before it comes.", _PROMPTS, low=2 * SETTLE, high=_TOKENS)
    )
    prompt: int = setting(2000, About("Tokens of the long prompt.", _PROMPTS, low=2, high=_TOKENS))
    rounds: int = setting(3, About("Runs of each way to compute it, in turns.", _PROMPTS, low=1, high=1000))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Load:
    """What the requests for an endpoint look like. Lengths of chats' questions are in words."""

    kind: str = setting(
        "random",
        About(
            "random: prompts of random tokens. shared-prefix: the same behind a prefix that all share. "
            "mixed: lengths from a quarter to four times the given ones. multi-turn: chats.",
            _PROMPTS,
            choices=LOADS,
            name="workload",
            metavar="NAME",
        ),
    )
    prompt: int = setting(128, About("Tokens of a prompt.", _PROMPTS, low=1, high=_TOKENS, name="inp"))
    output: int = setting(128, About("Tokens of an answer.", _PROMPTS, low=1, high=_TOKENS, name="out"))
    prefix: int = setting(512, About("Tokens of the shared prefix.", _PROMPTS, low=1, high=_TOKENS))
    turns: int = setting(4, About("Questions of a chat.", _PROMPTS, low=1, high=1000))
    vocab_size: int = setting(
        30_000,
        About("Random tokens are from 100 up to this id.", _PROMPTS, low=101, high=_TOKENS, name="vocab"),
    )
    seed: int = setting(
        0, About("The same seed, the same prompts and arrivals.", _PROMPTS, low=-(2**63), high=2**63 - 1)
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Asking:
    """How an endpoint is asked: for which model, how many requests at a time, and for how long."""

    model: str | None = setting(
        None, About("The model's name.", _ASKING, default="the first that the endpoint lists", metavar="NAME")
    )
    concurrency: str = setting(
        "1,8,32", About("Requests at once, a run for each number.", _ASKING, metavar="N,N")
    )
    rate: float | None = setting(
        None,
        About(
            "Requests a second that come at random times, in place of --concurrency.",
            _ASKING,
            low=0.001,
            high=1e6,
        ),
    )
    n: int | None = setting(
        None,
        About(
            "Requests of each run.", _ASKING, low=1, high=_REQUESTS, default="twice those at once, 4 to 64"
        ),
    )
    timeout_s: float = setting(
        600.0,
        About(
            "After so long without a byte a request failed.", _ASKING, low=0.1, high=1e6, unit=Unit.SECONDS
        ),
    )
    ignore_eos: bool = setting(
        True, About("Ask for answers of full length, by a field that some endpoints refuse.", _ASKING)
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class WorkloadTargets:
    """What an answer must keep to count as good."""

    ttft_ms: float = setting(
        1000.0,
        About("Milliseconds to the first token at most.", _GOOD, low=0, high=1e9, metavar="MS"),
    )
    itl_ms: float = setting(
        100.0,
        About("Milliseconds between tokens at most, in the mean.", _GOOD, low=0, high=1e9, metavar="MS"),
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that all policies have, and the requests that there may be."""

    pool_tokens: int = setting(
        15_744,
        About("Tokens that the memory holds; by default as on the paper's A100.", _SIZES, low=1, high=2**40),
    )
    block_size: int = setting(16, About("Tokens in a block.", _SIZES, low=1, high=1024))
    max_length: int = setting(
        2048, About("Tokens of a request at most, prompt and answer.", _SIZES, low=2, high=_TOKENS)
    )
    step_ms: float = setting(
        30.0, About("Milliseconds of a step, on a virtual clock.", _SIZES, low=0.001, high=1e6, metavar="MS")
    )
    seed: int = setting(0, About("The same seed, the same figures.", _SIZES, low=0, high=2**63 - 1))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Texts, and what is measured of them."""

    texts: int = setting(256, About("Texts of a round.", _PROMPTS, low=1, high=100_000))
    words: int = setting(300, About("Words of a text at most.", _PROMPTS, low=4, high=100_000))
    pooling: tuple[str, ...] = setting(
        POOLED,
        About(
            "How rows become one: the last, or their mean; repeatable. Default: both.",
            _PROMPTS,
            choices=POOLED,
        ),
    )
    rounds: int = setting(5, About("Rounds that are measured, all in each.", _PROMPTS, low=1, high=10_000))

    def __post_init__(self) -> None:
        check(self)
