"""Grammars over a model's tokens: compiled once; then each row's matcher computes the allowed next tokens.

    Grammar --tried in a process, compiled--> CompiledGrammar --copy--> Matcher of a row --copy--> of a fork

Where the grammar forces text, only its canonical tokens are allowed. So tokens that are taken without a step
(fast-forward) are those that sampling would have taken for any logits. A matcher at the end of its grammar
allows only the model's end token. It knows tokens and their bytes, no logits. Source: llguidance (Earley
parser over a lexer of regular expression derivatives), whose limits are deterministic: they count work, not
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import llguidance
import numpy as np

from octavo.errors import EngineStopped, InvalidRequest, QueueFull
from octavo.grammar import JSON_OPTIONS, TOO_SLOW, Grammar, GrammarKind
from octavo.kernels.contract import Floats
from octavo.sampling.grammar_refusals import (
    counted,
    describe_refusal,
    refusal,
    refuse_unsafe,
    unknown_keywords,
)
from octavo.sampling.grammar_trials import GrammarTrials, TrialStopped, Verdict
from octavo.sampling.json_slashes import NO_SLASHES, Slashes, SlashMatcher

COMPILED_BYTES_MAX = 256 << 20  # of all compiled grammars, kept or in use
TENANT_BYTES_MAX = COMPILED_BYTES_MAX // 2  # of one tenant's grammars in use, if there are tenants
STATES_BYTES_MAX = 32 << 20  # of the lexer's states that a grammar is charged for before it is compiled again
MASKS_MAX = 50_000
VERDICTS_MAX = 4096
FORCED_MAX = 256  # tokens of one forced run that are taken at once
_MASK_SECONDS_FREE = 0.0005
_BYTES_PER_SECOND = 1 << 30
_COMPILE_STACK_BYTES = 16 << 20  # of the compiling thread: 16 times that of trials
_LOWER_PRIORITY_AFTER_S = 0.1
_LOW_PRIORITY = 10
# All of them count work, so that refusals do not depend on the machine.
_LIMITS: dict[str, object] = {
    "max_grammar_size": 200_000,
    "max_lexer_states": 50_000,
    "initial_lexer_fuel": 300_000,
    "verbose_errors": False,
}


class CompiledGrammar:
    """A compiled grammar, alive as long as something holds it: a request does until it ends."""

    def __init__(self, grammar: Grammar, prototype: llguidance.LLMatcher, num_bytes: int) -> None:
        self.grammar = grammar
        self.prototype = prototype  # never advanced; copies share the states of its lexer
        self.num_bytes = num_bytes  # approximate; it grows with those states
        self.is_used_up = False  # later requests compile the grammar again
        self._num_masks = 0
        self._bytes_max = num_bytes + STATES_BYTES_MAX

    def charge(self, mask_seconds: float) -> None:
        """Charge for a mask by its processor time: a slow one has created states, which stay."""
        self._num_masks += 1
        grown = max(0, int((mask_seconds - _MASK_SECONDS_FREE) * _BYTES_PER_SECOND))
        self.num_bytes = min(self._bytes_max, self.num_bytes + grown)
        if self.num_bytes == self._bytes_max or self._num_masks == MASKS_MAX:
            self.is_used_up = True


class Matcher:
    """The state of one row in its grammar. Mutable; only the row's executor calls it."""

    def __init__(self, compiled: CompiledGrammar, inner: SlashMatcher, num_words: int, end_id: int) -> None:
        self._compiled = compiled
        self._inner = inner
        self._num_words = num_words
        self._end_id = end_id
        self._ahead: list[int] = []  # forced tokens that were found and not accepted yet, in reverse order

    def copy(self) -> Matcher:
        """A copy for a fork."""
        twin = Matcher(self._compiled, self._inner.deep_copy(), self._num_words, self._end_id)
        twin._ahead = list(self._ahead)
        return twin

    def mask(self, scores: Floats) -> str:
        """Make impossible in `scores` (V,) what may not come next. Returns why the grammar cannot go on, or
        ""."""
        started = time.thread_time()
        words = np.zeros((1, self._num_words), np.int32)
        self._inner.fill(words)
        self._compiled.charge(time.thread_time() - started)
        if self._inner.is_error():
            return self._why_not()
        allowed = np.unpackbits(words.view(np.uint8)[0], bitorder="little")[: scores.shape[0]]
        scores[allowed == 0] = -np.inf
        return ""

    def only(self) -> int | None:
        """The only allowed next token; None: several are."""
        if self._inner.is_stopped():
            return None if self._inner.is_error() else self._end_id
        # Cached: a search for them costs as much as the whole forced text.
        self._ahead = self._ahead or self._inner.compute_ff_tokens()[::-1]
        return self._ahead[-1] if self._ahead else None

    def allows(self, token: int) -> bool:
        """Whether this token is allowed next: the same as in the mask, for a hundredth of its cost."""
        only = self.only()
        return self._inner.allows(token) if only is None else token == only

    def accept(self, token: int) -> str:
        """Accept a sampled token, also an end token. Returns why the grammar cannot go on, or ""."""
        if self._inner.is_stopped() and not self._inner.is_error():
            return ""  # at the end only the end token is allowed
        if self._ahead and self._ahead.pop() != token:
            self._ahead = []
        if self._inner.consume_token(token):
            return ""
        return self._why_not() or "the grammar does not allow a token that was sampled"

    def forced(self) -> list[int]:
        """Accept and return the forced next tokens, canonical ones, possibly none."""
        ahead = self._ahead or self._inner.compute_ff_tokens()[::-1]
        tokens, self._ahead = ahead[-FORCED_MAX:][::-1], ahead[:-FORCED_MAX]
        if tokens and not self._inner.consume_tokens(tokens):
            return []
        if self._inner.is_stopped() and not self._inner.is_error():
            tokens.append(self._end_id)
        return tokens

    @property
    def is_at_end(self) -> bool:
        """True if only an end token is allowed."""
        return bool(self._inner.is_stopped())

    def _why_not(self) -> str:
        """The library's error. An error in shared states must not fail the next request."""
        self._compiled.is_used_up = True
        return str(self._inner.get_error())


class NoMatcher(Matcher):
    """The matcher of a row whose grammar was dropped, because its request was given up."""

    def __init__(self) -> None:
        pass

    def copy(self) -> Matcher:
        return self

    def mask(self, scores: Floats) -> str:
        return _NOT_HELD

    def only(self) -> int | None:
        return None

    def allows(self, token: int) -> bool:
        return False

    def accept(self, token: int) -> str:
        return _NOT_HELD

    def forced(self) -> list[int]:
        return []

    @property
    def is_at_end(self) -> bool:
        return False


_NOT_HELD = "what was compiled of it is gone, because its request was given up"


@dataclass(slots=True)
class CompileStats:
    """The cost of compiling and of trials since the start; the keywords of refused schemas."""

    count: int = 0
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)  # by keyword; "other" if none is the cause


@dataclass(frozen=True, slots=True)
class Words:
    """A vocabulary for grammars. `token_bytes` has special tokens too, in their spelling."""

    token_bytes: Sequence[bytes]
    special_ids: Sequence[int]
    end_ids: Sequence[int]
    encode: Callable[[str], list[int]]


class _LibraryTokenizer:
    """A tokenizer with llguidance's interface."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self.eos_token_id = words.end_ids[0]
        self.bos_token_id = None
        self.tokens = list(words.token_bytes)
        self.special_token_ids = list(words.special_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._words.encode(text if isinstance(text, str) else text.decode())


class Grammars:
    """Compiles grammars for one vocabulary, and tracks those in use. Thread-safe."""

    def __init__(self, words: Callable[[], Words]) -> None:
        self._load_words = words  # called once, for the first grammar: it takes a fifth of a second
        self._words: Words | None = None
        self._open_lock = threading.Lock()  # guards these five, and is held during their creation
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._trials: GrammarTrials | None = None
        self._slashes = NO_SLASHES
        self._end_id = -1
        self._is_closed = False
        self._lock = threading.Lock()  # guards all following attributes
        self.stats = CompileStats()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()  # by a digest of the grammar
        self._newest: weakref.WeakValueDictionary[Grammar, CompiledGrammar] = weakref.WeakValueDictionary()
        self._in_use: weakref.WeakSet[CompiledGrammar] = weakref.WeakSet()  # or cached
        # The most recent ones, in use or not.
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._busy: dict[Grammar, threading.Event] = {}  # set when the compiling thread is done
        self._reserved: Counter[str] = Counter()  # bytes of grammars being compiled, by tenant

    @property
    def words(self) -> Words:
        """The vocabulary."""
        words = self._words  # read for each token of a thinking row
        if words is None:
            with self._open_lock:
                words = self._loaded_words()
        return words

    @property
    def num_bytes(self) -> int:
        """Approximate bytes of all compiled grammars."""
        with self._lock:
            return self._bytes_in_use()

    def close(self) -> None:
        """End the trial process; no new grammar can be compiled after that."""
        with self._open_lock:
            self._is_closed = True
            if self._trials is not None:
                self._trials.close()

    def known(self, grammar: Grammar) -> CompiledGrammar | None:
        """The compiled grammar if it is ready; never waits."""
        with self._lock:
            found = self._newest.get(grammar)
            if found is not None and not found.is_used_up:
                self._kept[grammar] = found
                self._kept.move_to_end(grammar)
                return found
            self._kept.pop(grammar, None)
            return None

    def check(self, grammar: Grammar, stop: threading.Event | None = None) -> Verdict:
        """Raise InvalidRequest for a grammar that cannot be followed. May take long; raises TrialStopped soon
        after `stop` was set."""
        verdict = self._verdict(grammar, stop)
        if verdict.why_not:
            keywords = unknown_keywords(verdict.why_not)
            with self._lock:
                self.stats.refusals.update(counted(keywords))
            error = refusal(grammar, describe_refusal(grammar, verdict.why_not, keywords))
            error.code = error.code if verdict.is_final else TOO_SLOW
            raise error
        return verdict

    def compile(self, grammar: Grammar, stop: threading.Event | None = None) -> CompiledGrammar:
        """Try and compile a grammar unless it is cached. Raises as `check`, and QueueFull if grammars in use
        have reached their memory limit. May take long."""
        while (found := self.known(grammar)) is None:
            with self._lock:
                other = self._busy.get(grammar)
                if other is None:
                    self._busy[grammar] = threading.Event()
            if other is not None:
                while not other.wait(0.05):  # then it is cached, or this thread gets the same error
                    if stop is not None and stop.is_set():
                        raise TrialStopped
                continue
            try:
                return self._compile(grammar, stop)
            finally:
                with self._lock:
                    self._busy.pop(grammar).set()
        return found

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; a special one in its spelling."""
        return self.words.token_bytes[token]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, as the model's tokenizer makes them."""
        return self.words.encode(text)

    def begin(self, grammar: Grammar, output: Sequence[int]) -> Matcher:
        """A matcher that has accepted these tokens, if the compiled grammar is still held; otherwise one that
        allows no token, so that its request fails alone."""
        with self._lock:
            compiled = self._newest.get(grammar) or next(
                (one for one in self._in_use if one.grammar == grammar), None
            )
        if compiled is None or self._tokenizer is None:
            return NoMatcher()
        slashes = self._slashes if grammar.is_json else NO_SLASHES
        inner = SlashMatcher(compiled.prototype.deep_copy(), slashes)
        matcher = Matcher(compiled, inner, -(-self._tokenizer.vocab_size // 32), self._end_id)
        for token in output:
            matcher.accept(token)
        return matcher

    def _compile(self, grammar: Grammar, stop: threading.Event | None) -> CompiledGrammar:
        verdict = self.check(grammar, stop)
        with self._open_lock:
            tokenizer = self._tokenizer or self._open()
        with self._room_for(verdict.num_bytes, grammar.tenant), self._timed():
            text = _to_library_form(grammar, verdict)
            prototype = _run_on_large_stack(lambda: _prototype(tokenizer, text))
            if prototype.is_error():  # the trial had no error: a bug, or the machine is out of memory
                raise refusal(grammar, prototype.get_error())
            compiled = CompiledGrammar(grammar, prototype, verdict.num_bytes)
            with self._lock:
                self._newest[grammar] = self._kept[grammar] = compiled
                self._in_use.add(compiled)
                self.stats.count += 1
        return compiled

    def _verdict(self, grammar: Grammar, stop: threading.Event | None) -> Verdict:
        """The verdict of a trial, or the cached one."""
        digest = hashlib.blake2b(f"{grammar.kind}:{grammar.text}".encode()).digest()
        with self._lock:
            known = self._verdicts.get(digest)
            if known is not None:
                self._verdicts.move_to_end(digest)
                return known
        refuse_unsafe(grammar)
        text = _to_library_form(grammar, None)
        with self._timed():
            is_gbnf = grammar.kind is GrammarKind.GBNF
            verdict = self._opened_trials().try_grammar(text, _LIMITS, is_gbnf=is_gbnf, stop=stop)
        with self._lock:
            if verdict.is_final and not verdict.lark:
                self._verdicts[digest] = verdict
                while len(self._verdicts) > VERDICTS_MAX:
                    self._verdicts.popitem(last=False)
        return verdict

    def _opened_trials(self) -> GrammarTrials:
        with self._open_lock:
            if self._is_closed:
                raise EngineStopped("the engine has stopped")
            words = self._loaded_words()
            self._trials = self._trials or GrammarTrials(words.token_bytes, words.special_ids, words.end_ids)
            return self._trials

    def _loaded_words(self) -> Words:
        self._words = self._words or self._load_words()
        return self._words

    @contextlib.contextmanager
    def _room_for(self, num_bytes: int, tenant: str) -> Iterator[None]:
        """Reserve memory for one more grammar: drops cached ones that are not in use, a tenant's own beyond
        its share first. Raises QueueFull."""
        with self._lock:
            most = TENANT_BYTES_MAX if tenant else COMPILED_BYTES_MAX
            for kept in [one for one in self._kept if one.tenant == tenant]:
                if self._bytes_in_use(tenant) + num_bytes <= most:
                    break
                del self._kept[kept]
            while self._kept and self._bytes_in_use() + num_bytes > COMPILED_BYTES_MAX:
                self._kept.popitem(last=False)
            own = self._bytes_in_use(tenant)
            if self._bytes_in_use() + num_bytes > COMPILED_BYTES_MAX or own + num_bytes > most:
                raise QueueFull(
                    f"compiled grammars of requests that run or wait take {own >> 20:,} MiB, and this one "
                    f"takes {num_bytes >> 20:,}; allowed: {most >> 20:,} MiB; try again when some have ended"
                )
            self._reserved[tenant] += num_bytes
        try:
            yield
        finally:
            with self._lock:
                self._reserved[tenant] -= num_bytes

    def _bytes_in_use(self, tenant: str = "") -> int:
        """Bytes of grammars compiled or being compiled; with `tenant`, of its own."""
        there = sum(one.num_bytes for one in self._in_use if tenant in ("", one.grammar.tenant))
        return there + (self._reserved[tenant] if tenant else self._reserved.total())

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.stats.seconds += time.perf_counter() - started

    def _open(self) -> llguidance.LLTokenizer:
        words = self._loaded_words()
        wrapper = llguidance.TokenizerWrapper(_LibraryTokenizer(words))
        self._end_id = words.end_ids[0]
        self._slashes = Slashes(words.token_bytes)
        self._tokenizer = llguidance.LLTokenizer(
            wrapper, n_vocab=len(words.token_bytes), eos_token=list(words.end_ids)
        )
        return self._tokenizer


def _prototype(tokenizer: llguidance.LLTokenizer, text: str) -> llguidance.LLMatcher:
    """Compile it, and compute its first mask, so that copies share those states of the lexer."""
    limits = llguidance.LLParserLimits(**_LIMITS)  # type: ignore[arg-type]
    prototype = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if not prototype.is_error():
        prototype.compute_bitmask()
    return prototype


def _run_on_large_stack(work: Callable[[], llguidance.LLMatcher]) -> llguidance.LLMatcher:
    """The result of `work`, run on a thread of its own, whose priority is lowered if it takes long."""
    made: list[llguidance.LLMatcher] = []
    thread = threading.Thread(target=lambda: made.append(work()), name="octavo-grammar", daemon=True)
    with _stack_lock:
        before = threading.stack_size(_COMPILE_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join(_LOWER_PRIORITY_AFTER_S)
    if thread.is_alive() and sys.platform == "linux":  # there a thread has a priority of its own
        assert thread.native_id is not None
        with contextlib.suppress(OSError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, thread.native_id, _LOW_PRIORITY)
    thread.join()
    if not made:
        raise MemoryError("no memory is left to compile a grammar")
    return made[0]


_stack_lock = threading.Lock()  # the stack size is one setting for all new threads


def _to_library_form(grammar: Grammar, verdict: Verdict | None) -> str:
    """The text to compile. Before the trial, GBNF's own: the trial converts it."""
    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                return llguidance.LLMatcher.grammar_from_json_schema(grammar.text, overrides=JSON_OPTIONS)  # type: ignore[arg-type]
            case GrammarKind.REGEX:
                return llguidance.LLMatcher.grammar_from_regex(grammar.text)
            case GrammarKind.LARK:
                return llguidance.LLMatcher.grammar_from_lark(grammar.text)
            case GrammarKind.GBNF:
                return (
                    grammar.text if verdict is None else llguidance.LLMatcher.grammar_from_lark(verdict.lark)
                )
    except Exception as error:  # noqa: BLE001 - the library's errors have no tree
        raise InvalidRequest(f"{grammar.param} cannot be read: {error}", param=grammar.param) from None
