"""A model that writes given texts: the real engine over logits that a script decides.

    prompt "... SAY:name ..."  ->  the answer is SCRIPTS[name], whatever else the prompt holds

It keeps its tokens in the blocks of the pool and reads them back through block tables, as a model does with K
and V: a prefix that is shared, forked, stored or loaded is read from where the ledger says it is. A logit is
one of five whole numbers, so every instruction set comes to the same bits, and a scripted token is 32 above
the next one, so no temperature and no seed comes to another token, except where a script samples digits. One
script ends in logits that are no numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tests.wire.scripts import SCRIPTS, TEMPLATE, WORDS

from octavo.config import StartOptions
from octavo.executor.backend import PoolSize
from octavo.executor.batch import host_batch
from octavo.executor.executor import Executor, InlineExecutor
from octavo.executor.forward import Forward, HostBlocks
from octavo.executor.rows import Rows
from octavo.executor.runner import Runner, RunnerConfig
from octavo.executor.transfers import TransferWorker
from octavo.kernels.contract import Floats, HostBatch, Ints, KvShape, Matrix, RawTensor, WeightOps
from octavo.model.loader import LoadedModel
from octavo.model.spec import Model, ModelSpec, ModelWeights, Norm
from octavo.sampling.grammars import Grammars
from octavo.serving.client import EngineClient
from octavo.serving.start import PoliciesOf, StartedEngine, client_of, engine_over
from octavo.text.tokenizer import Tokenizer
from octavo.types import StepPlan, StepResult

CONTEXT, BLOCK_SIZE, HIDDEN = 1024, 16, 4
NUM_BLOCKS = 96
STEP_S = 1 / 64  # what a step takes on the engine's clock
_BLOCK_BYTES = 1024  # more than its tokens need: a pool has 64 KiB at least
_SAID, _SECOND, _THIRD, _ROLLED, _OTHER = 64.0, 32.0, 31.0, 48.0, 0.0
_MARK = re.compile(rb"SAY:([a-z0-9-]+)(;?)")
_END_OF_THOUGHT = b"</think>\n\n"
_DIGITS, _BROKEN = "digits", "broken"
_ROLLS = 6


class LastingTokenizer(Tokenizer):
    """Several engines share it: the process that renders chats outlives a client that closes."""

    def close(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """End that process."""
        super().close()


def new_tokenizer() -> LastingTokenizer:
    """Bytes, the words of the scripts, and the tokens of a ChatML model that thinks and calls."""
    letters = _letters()
    tokens, merges = [letters[byte] for byte in range(256)], []
    for word in WORDS:
        spelled = [letters[byte] for byte in word.encode()]
        for end in range(2, len(spelled) + 1):
            whole = "".join(spelled[:end])
            if whole not in tokens:
                tokens.append(whole)
                merges.append(f"{''.join(spelled[: end - 1])} {spelled[end - 1]}")
    kinds = [1] * len(tokens)
    control, added = ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_call>", "</tool_call>")
    tokens += [*control, *added]
    kinds += [3] * len(control) + [4] * len(added)
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tuple(map(str.encode, tokens)),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": tuple(map(str.encode, merges)),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    made = LastingTokenizer.from_gguf(metadata, "scripted")
    assert isinstance(made, LastingTokenizer)
    return made


def _letters() -> dict[int, str]:
    """GPT-2's letter of each byte."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return {byte: chr(byte) if byte in shown else chr(next(spare)) for byte in range(256)}


class Script:
    """The logits behind a context: a pure function of its tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = tokenizer.vocab_size
        self._end = next(iter(tokenizer.stop_ids))
        self._digits = [tokenizer.encode(digit)[0] for digit in "0123456789"]
        self._header = b"<|im_start|>assistant\n"
        self._written = {name: self._in_tokens(text) for name, text in SCRIPTS.items()}

    def logits(self, context: Sequence[int]) -> Floats:
        """(V,): what follows these tokens."""
        name, said = self._place(b"".join(map(self._tokenizer.token_bytes, context)))
        row = np.full(self._vocab_size, _OTHER, np.float32)
        if name == _DIGITS and len(said) < _ROLLS:
            row[self._digits] = _ROLLED
            return row
        token = self._end if name == _DIGITS else self._next(name, said)
        if name == _BROKEN and token == self._end:
            row[:] = np.nan
            return row
        row[(token + 1) % 256], row[(token + 2) % 256] = _SECOND, _THIRD  # bytes: no token that steers
        row[token] = _SAID
        return row

    def _place(self, text: bytes) -> tuple[str, bytes]:
        """The script that a context asks for last, and what was said of it: in a chat behind the assistant's
        header, in a plain prompt behind the mark."""
        mark = max(_MARK.finditer(text), key=lambda found: found.start(), default=None)
        begun = 0 if mark is None else mark.end()
        header = text.rfind(self._header, begun)
        said = text[begun if header < 0 else header + len(self._header) :]
        name = "hello" if mark is None else mark.group(1).decode()
        return (name if name in SCRIPTS or name == _DIGITS else "hello"), said

    def _next(self, name: str, said: bytes) -> int:
        """The script's token at the place that the answer has come to."""
        tokens = self._written[name]
        _, has_ended, behind = said.partition(_END_OF_THOUGHT)
        if has_ended:  # perhaps by the prompt, or before the script's own has ended
            thought, mark, _ = SCRIPTS[name].encode().rpartition(_END_OF_THOUGHT)
            said = thought + mark + behind
        rest = SCRIPTS[name].encode()[len(said) :]
        if len(said) in tokens or not rest:
            return tokens.get(len(said), self._end)
        return self._tokenizer.encode(rest.decode(errors="replace"))[0]

    def _in_tokens(self, text: str) -> dict[int, int]:
        """Where a token begins, in bytes -> the token."""
        place, tokens = 0, dict[int, int]()
        for token in self._tokenizer.encode(text):
            tokens[place] = token
            place += len(self._tokenizer.token_bytes(token))
        return tokens


class ScriptedForward(Forward):
    """A `Forward` whose blocks hold tokens; an empty slot is 0."""

    def __init__(self, script: Script, num_blocks: int) -> None:
        self._script = script
        self._pool = np.zeros((num_blocks, _BLOCK_BYTES // 4), np.int32)  # (N, .): token id + 1, B of them
        self.blocks = HostBlocks(self._pool.view(np.uint8))
        self._batch: HostBatch
        self._contexts: list[list[int]] = []  # of the step's hidden rows

    def prepare(self, plan: StepPlan, rows: Rows) -> None:
        """Gather tokens and block tables."""
        if plan.chunks:
            self._batch = host_batch(plan.chunks, rows)

    def run(self) -> None:
        """Write the step's tokens, then read each wanted row's context."""
        slots, batch = self._pool, self._batch
        chunk_of = np.repeat(np.arange(len(batch.starts)), np.diff(batch.offsets))  # (T,)
        blocks = batch.tables[chunk_of, batch.positions // BLOCK_SIZE]
        slots[blocks, batch.positions % BLOCK_SIZE] = batch.tokens + 1
        self._contexts = []
        for index in batch.logit_rows:
            stop = int(batch.positions[index]) + 1
            table = batch.tables[chunk_of[index], : -(-stop // BLOCK_SIZE)]
            held = slots[table, :BLOCK_SIZE].reshape(-1)[:stop]
            assert held.all(), "a slot was read that holds no token"
            self._contexts.append((held - 1).tolist())

    def argmax(self, places: Sequence[int]) -> Ints:
        """(S,): likeliest tokens."""
        logits = self.logits(places)
        likeliest: Ints = logits.argmax(1).astype(np.int32)
        likeliest[np.isnan(logits).any(1)] = -1
        return likeliest

    def logits(self, places: Sequence[int]) -> Floats:
        """(S, V)."""
        return np.stack([self._script.logits(self._contexts[place]) for place in places])

    def hidden(self, places: Sequence[int]) -> Floats:
        """(S, E): whole numbers of a context's tokens."""
        contexts = (self._contexts[place] for place in places)
        numbers = [(len(one) % 8, one[-1] % 16 - 8, sum(one) % 32 - 16, 4) for one in contexts]
        return np.array(numbers, np.float32)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for source, target in zip(sources, targets, strict=True):
            self._pool[target] = self._pool[source]

    def discard_blocks(self, first: int, last: int) -> None:
        """What they hold is lost."""
        self._pool[first:last] = 0


class SteadyRunner(Runner):
    """A runner each of whose steps took the same time."""

    def run(self, plan: StepPlan) -> StepResult:
        """Execute one plan."""
        return replace(super().run(plan), seconds=STEP_S, batch_seconds=0.0, mask_seconds=0.0)


class ScriptedBackend:
    """A backend of the scripted model. Its executor is made by `new_executor_over`."""

    name = "scripted"
    device = "cpu"
    arithmetic_id = "scripted-1"
    is_host = False  # the machine's memory decides nothing
    layout_id = ""
    pads_steps = False
    exactness = "exact"
    notes: Sequence[tuple[str, str]] = ()

    def __init__(self, script: Script, new_executor_over: Callable[[Executor], Executor]) -> None:
        self.weights: WeightOps = self
        self._script = script
        self._new_executor_over = new_executor_over

    def matrix(self, raw: RawTensor, table: bool = False) -> Matrix:
        """No file is read."""
        raise NotImplementedError

    def vector(self, values: Floats) -> Floats:
        """As it is."""
        return values

    def memory_available(self) -> int:
        """Enough."""
        return 1 << 30

    def bytes_per_block(self, shape: KvShape) -> int:
        """Of a block of tokens."""
        return _BLOCK_BYTES

    def bytes_per_layer(self, shape: KvShape) -> None:
        """There are no layers."""

    def new_runner(
        self,
        model: Model,
        config: RunnerConfig,
        size: PoolSize,
        transfers: TransferWorker | None,
        grammars: Grammars | None,
    ) -> Runner:
        """A runner with a pool of its own."""
        return SteadyRunner(ScriptedForward(self._script, size.num_blocks), config, transfers, grammars)

    def new_executor(self, runner: Runner, overlap: int) -> Executor:
        """In turn, behind what the test puts in front."""
        return self._new_executor_over(InlineExecutor(runner))


@dataclass(frozen=True, slots=True)
class FixedMatrix:
    """A matrix that is only counted."""

    shape: tuple[int, int]
    kind: str = "F32"

    @property
    def num_bytes(self) -> int:
        """As if it were held."""
        return 4 * self.shape[0] * self.shape[1]


def start_scripted(
    tokenizer: Tokenizer,
    new_executor_over: Callable[[Executor], Executor],
    clock: Callable[[], float],
    disk: Path | None = None,
    policies_of: PoliciesOf | None = None,
    *,
    script: Script | None = None,
    context: int = CONTEXT,
) -> EngineClient:
    """The engine that `start_engine` makes, over the scripted model, or one with a script of its own and a
    longer context. Close it."""
    started, options = build_scripted(
        tokenizer, new_executor_over, clock, disk, policies_of, script=script, context=context
    )
    return client_of(started, options)


def build_scripted(
    tokenizer: Tokenizer,
    new_executor_over: Callable[[Executor], Executor],
    clock: Callable[[], float],
    disk: Path | None = None,
    policies_of: PoliciesOf | None = None,
    *,
    script: Script | None = None,
    context: int = CONTEXT,
) -> tuple[StartedEngine, StartOptions]:
    """The same, not yet turned by any thread."""
    vocab = tokenizer.vocab_size
    spec = ModelSpec("qwen3", 1, HIDDEN, 1, 1, HIDDEN, HIDDEN, vocab, context, 1.0)
    norm = Norm(np.ones(HIDDEN, np.float32))
    weights = ModelWeights(FixedMatrix((vocab, HIDDEN)), (), norm, FixedMatrix((vocab, HIDDEN)))
    options = StartOptions(
        kv_memory_bytes=NUM_BLOCKS * (context // CONTEXT) * _BLOCK_BYTES,
        max_seqs=8,
        max_queue=8,
        step_tokens=256 * (context // CONTEXT),
        speculate="off",
        pace=False,
        overlap=0,
        disk_cache=None if disk is None else str(disk),
        disk_size_bytes=1 << 20,
    )
    model = Model("scripted", spec, weights, bytes(range(32)), ())
    backend = ScriptedBackend(script or Script(tokenizer), new_executor_over)
    started = engine_over(LoadedModel(model, tokenizer), backend, options, policies_of)
    started.engine.clock = clock
    return started, options
