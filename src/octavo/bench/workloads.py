"""The workloads of `octavo bench`: each class gives flags, help, defaults and bounds.

    OfflineOptions  `bench offline`: prompts for an engine in this process
    Latency         `bench latency`: running answers, and a long prompt that arrives
    LoadProfile     `bench serve`: requests for an endpoint; LoadOptions: their number and times;
                    TraceOptions: those of a trace instead; WorkloadTargets: the limits of a good answer
    Memory          `bench memory`: a pool, and bounds of the requests
    Embeddings      `bench embeddings`: texts

Lengths are in tokens. A value out of its bounds raises a ConfigError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from octavo.errors import ConfigError
from octavo.setting import check, setting

INDEPENDENT, SHARED, LONG = "independent", "shared-prefix", "long"
# Short names of workloads in figures, and their full names.
WORDS: Mapping[str, str] = MappingProxyType({"W1": INDEPENDENT, "W2": SHARED, "W3": LONG})
LOADS = ("random", "shared-prefix", "mixed", "multi-turn")
POOLED = ("last", "mean")
# A stream's first tokens arrive while the other prompts are computed: they count for neither side.
SETTLE = 8
# The first ids of most vocabularies are control tokens.
FIRST_TOKEN = 100
_TOKENS = 10_000_000
_REQUESTS = 1_000_000
_PROMPTS, _SIZES = "Prompts", "Sizes"


def _word_for(given: str, flag: str) -> str:
    """A workload's full name. The check of choices refuses unknown ones."""
    return WORDS.get(given.upper(), given.lower())


@dataclass(frozen=True, slots=True)
class OfflineOptions:
    """The prompts for an engine in this process."""

    workload: tuple[str, ...] = setting(
        (INDEPENDENT, SHARED),
        "The workload; repeatable, by default the first two. independent: prompts that share nothing, the "
        "next when an answer ends. shared-prefix: prompts with a common prefix, all at once. long: long "
        "prompts, all at once.",
        choices=tuple(WORDS.values()),
        metavar="NAME",
        read=_word_for,
        group=_PROMPTS,
    )
    conc: tuple[int, ...] = setting(
        (),
        "Requests at once; repeatable, a run for each. Default: 1, 8 and 32; for long prompts 1 and 4.",
        bounds=(1, 4096),
    )
    n: tuple[int, ...] = setting(
        (),
        "Requests of each run; with independent prompts repeatable, once for each --conc. Default: twice "
        "--conc, at least 4; 32 with a shared prefix.",
        bounds=(1, _REQUESTS),
    )
    inp: int = setting(128, "Tokens of an independent prompt.", bounds=(1, _TOKENS), group=_SIZES)
    out: int = setting(128, "Tokens of its answer.", bounds=(1, _TOKENS))
    prefix: int = setting(512, "Tokens of the shared prefix; 0: no such workload.", bounds=(0, _TOKENS))
    prompt: int = setting(7168, "Tokens of a long prompt.", bounds=(1, _TOKENS))
    long_out: int = setting(64, "Tokens of its answer.", bounds=(1, _TOKENS))

    def __post_init__(self) -> None:
        check(self)
        runs = self.conc or (1, 8, 32)
        if len(self.n) > 1 and (set(self.workload) != {INDEPENDENT} or len(self.n) != len(runs)):
            raise ConfigError(
                f"--n is given {len(self.n)} times; allowed: once, or with only independent prompts once "
                f"for each of the {len(runs)} --conc"
            )


@dataclass(frozen=True, slots=True)
class Latency:
    """Running answers, and a long prompt that arrives."""

    streams: int = setting(
        8, "Running answers when the long prompt arrives.", bounds=(1, 4096), group=_PROMPTS
    )
    own: int = 32  # tokens of each one's prompt
    before: int = setting(48, "Tokens of each answer before that.", bounds=(2 * SETTLE, _TOKENS))
    prompt: int = setting(2000, "Tokens of the long prompt.", bounds=(2, _TOKENS))
    rounds: int = setting(3, "Rounds; each runs every configuration once.", bounds=(1, 1000))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class LongSequence:
    """A sequence larger than the pool, and short chats at the same time."""

    tokens: int = setting(7500, "Tokens of the long prompt.", bounds=(256, _TOKENS), group=_PROMPTS)
    answer: int = setting(8, "Tokens of its answer that are timed.", bounds=(2, 1000))
    chats: int = setting(8, "Short chats at the same time; 0: none.", bounds=(0, 4096))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """The requests for an endpoint. Lengths of chats' questions are in words."""

    kind: str = setting(
        "random",
        "random: prompts of random tokens. shared-prefix: the same after a prefix that all share. mixed: "
        "lengths from a quarter to four times the given ones. multi-turn: chats.",
        choices=LOADS,
        name="workload",
        metavar="NAME",
        group=_PROMPTS,
    )
    prompt: int = setting(128, "Tokens of a prompt.", bounds=(1, _TOKENS), name="inp")
    output: int = setting(128, "Tokens of an answer.", bounds=(1, _TOKENS), name="out")
    prefix: int = setting(512, "Tokens of the shared prefix.", bounds=(1, _TOKENS))
    turns: int = setting(4, "Questions of a chat.", bounds=(1, 1000))
    vocab_size: int = setting(
        30_000, "Random tokens are from 100 to less than this id.", bounds=(101, _TOKENS), name="vocab"
    )
    seed: int = setting(0, "Seed of prompts and arrivals.", bounds=(-(2**63), 2**63 - 1))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The model, number, concurrency and times of requests to an endpoint."""

    model: str | None = setting(
        None, "The model's name.", unset="the first that the endpoint lists", metavar="NAME", group="Requests"
    )
    concurrency: str = setting("1,8,32", "Requests at once; a run for each number.", metavar="N,N")
    rate: float | None = setting(
        None, "Requests a second at random times, instead of --concurrency.", bounds=(0.001, 1e6)
    )
    n: int | None = setting(
        None, "Requests of each run.", bounds=(1, _REQUESTS), unset="twice the concurrency, 4 to 64"
    )
    processes: int = setting(
        1, "Processes that send requests: each reads about 10,000 events/s.", bounds=(1, 64)
    )
    timeout_s: float = setting(600.0, "A request fails after so long without a byte.", bounds=(0.1, 1e6))
    ignore_eos: bool = setting(True, "Request answers of full length, by a field that some endpoints refuse.")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Requests of a trace, in place of a workload."""

    trace: Path | None = setting(
        None,
        "Send the requests of this file at their times, with prompts of random tokens: Mooncake's JSON "
        "lines, as `octavo serve --trace-file` writes them, Azure's table, or lines of `bench memory`.",
        metavar="FILE",
        group="A trace",
    )
    speed: float = setting(1.0, "Send them so many times as fast.", bounds=(0.001, 1000))
    seconds: float | None = setting(
        None, "Only requests of its first seconds, in the file's time.", bounds=(0.001, 1e9), unset="all"
    )
    plan: Path | None = setting(
        None,
        "Also show the predicted figures, by a calibration that `octavo bench calibrate` stored.",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check(self)
        if self.trace is None and (self.speed != 1.0 or self.seconds is not None or self.plan is not None):
            raise ConfigError(
                "--speed, --seconds or --plan is given without a trace; allowed: with --trace FILE"
            )


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """The traffic of `octavo plan`: a trace, users with a think time, or equal requests at a rate."""

    trace: Path | None = setting(
        None, "Requests of a file: Mooncake's, Azure's, or lengths.", metavar="FILE", group="Traffic"
    )
    speed: float = setting(1.0, "Play the trace so many times as fast.", bounds=(0.001, 1000))
    users: int = setting(0, "Users, each with one request after another; 0: a rate.", bounds=(0, 4096))
    think_s: float = setting(
        5.0, "Seconds between an answer and the user's next request.", bounds=(0, 1e6), name="think"
    )
    rate: float = setting(1.0, "Requests a second, at random times.", bounds=(0.001, 1e4))
    inp: int = setting(128, "Tokens of a prompt.", bounds=(1, _TOKENS))
    out: int = setting(128, "Tokens of an answer.", bounds=(1, _TOKENS))
    seconds: float = setting(120.0, "Seconds of traffic.", bounds=(1, 86_400))
    seed: int = setting(0, "Seed of the arrivals.", bounds=(-(2**63), 2**63 - 1))
    replicas: int = setting(
        1, "Identical servers that share the traffic.", bounds=(1, 64), group="Several replicas"
    )
    router: str = setting(
        "prefix",
        "How requests are distributed: by a cluster's router, in turn, or to the less loaded of two.",
        choices=("prefix", "round-robin", "two-choices"),
    )
    report_delay_s: float = setting(
        0.1, "Delay of the replicas' reports to the router, in seconds.", bounds=(0, 60), name="report-delay"
    )
    what_if: tuple[str, ...] = setting(
        (),
        "A change, shown in a column of its own: kv_memory=2x, max_seqs=32, step_tokens=256, "
        "host_cache=4GiB, disk_size=off or tenants=FILE; repeatable.",
        metavar="NAME=VALUE",
        group="Planning",
    )
    draws: int = setting(5, "Random draws of noise and drift, for the ranges.", bounds=(1, 100))
    calibrate_s: float = setting(
        120.0, "Seconds of a calibration, if none is stored.", bounds=(10, 3600), name="calibrate"
    )

    def __post_init__(self) -> None:
        check(self)
        if self.trace is not None and self.users:
            raise ConfigError("--trace and --users are both given; allowed: one of them")
        if self.replicas == 1 and self.router != "prefix":
            raise ConfigError(
                f"--router is {self.router}, and --replicas is 1; allowed: with --replicas from 2 to 64"
            )


@dataclass(frozen=True, slots=True)
class WorkloadTargets:
    """The limits of a good answer."""

    ttft_ms: float = setting(
        1000.0,
        "Most milliseconds to the first token.",
        bounds=(0, 1e9),
        metavar="MS",
        group="Targets of a good answer",
    )
    itl_ms: float = setting(
        100.0, "Most milliseconds between tokens, the mean of an answer.", bounds=(0, 1e9), metavar="MS"
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of all policies, and bounds of the requests."""

    pool_tokens: int = setting(
        15_744,
        "Tokens in the memory; by default as on the paper's A100.",
        bounds=(1, 2**40),
        group=_SIZES,
    )
    block_size: int = setting(16, "Tokens in a block.", bounds=(1, 1024))
    max_length: int = setting(2048, "Most tokens of a request, prompt and answer.", bounds=(2, _TOKENS))
    step_ms: float = setting(
        30.0, "Milliseconds of a step, on a virtual clock.", bounds=(0.001, 1e6), metavar="MS"
    )
    seed: int = setting(0, "Seed of the figures.", bounds=(0, 2**63 - 1))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Texts, poolings and rounds."""

    texts: int = setting(256, "Texts of a round.", bounds=(1, 100_000), group=_PROMPTS)
    words: int = setting(300, "Most words of a text.", bounds=(4, 100_000))
    pooling: tuple[str, ...] = setting(
        POOLED, "The pooling: the last row, or the mean of all; repeatable. Default: both.", choices=POOLED
    )
    rounds: int = setting(5, "Measured rounds, each with all texts.", bounds=(1, 10_000))

    def __post_init__(self) -> None:
        check(self)
