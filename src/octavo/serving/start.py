"""From a model's name to a running engine: resolve, load, size the pool, connect the rooms. Used by every
front door."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from octavo import _native
from octavo.config import StartOptions
from octavo.conversations.conversations import attach
from octavo.conversations.sessions import SessionSupport
from octavo.conversations.store import ConversationStore, needed_s, open_sessions
from octavo.engine.available import available_cores, available_memory, default_reserve
from octavo.engine.backends import choose_backend
from octavo.engine.core import Engine
from octavo.engine.inbox import Inbox
from octavo.engine.memory_watch import MemoryWatch
from octavo.engine.offload import OffloadStores, open_stores
from octavo.engine.port import SetTenants
from octavo.engine.recording import Recorder
from octavo.engine.requests import ModelFacts, render_chat
from octavo.engine.scheduler_setup import SchedulerSetup
from octavo.engine.traffic import TrafficWriter
from octavo.engine.windows import waste_in_words, window_waste
from octavo.errors import ConfigError, OctavoError
from octavo.executor.backend import Backend, PoolSize
from octavo.executor.runner import Runner, RunnerConfig, kv_shape, kv_shape_of
from octavo.executor.transfers import TransferWorker
from octavo.kernels.probe import measure_read
from octavo.kv_events.publishing import identity_of, publishing_of
from octavo.memory.names import root_name
from octavo.memory.quota import TenantPolicy
from octavo.model.hub.paths import ModelPath, cache_folder, resolve
from octavo.model.loader import LoadedModel, open_files
from octavo.model.measuring import int8_in_words
from octavo.model.packed_cache import PACKED, PackedFolder
from octavo.model.spec import ModelSpec
from octavo.params import Pooling
from octavo.routing.slots import ReplicaStart
from octavo.sampling.grammars import Grammars
from octavo.scheduler.pressure import PressureConfig
from octavo.scheduler.scheduler import Scheduler
from octavo.serving.client import EngineClient
from octavo.serving.measured import calibrate_command, calibration_key
from octavo.serving.model_parts import card_of, prepared_tokenizer, words_of
from octavo.serving.replica_feed import ReplicaFeed, hello_of
from octavo.speculation.speculator import Speculation
from octavo.step.context import SchedulerConfig
from octavo.text.chat import FITS_NO_FORMAT
from octavo.text.continuation import encode_rendered
from octavo.text.named_templates import load_template
from octavo.text.tokenizer import Tokenizer
from octavo.types import ChatMessage
from octavo.units import blocks_for, format_bytes

Progress = Callable[[str], None]
PoliciesOf = Callable[[int], Sequence[TenantPolicy]]  # tenants' bounds, for blocks of so many bytes
log = logging.getLogger("octavo.start")
DEVICE_SPARE_BYTES = 256 << 20  # beyond what steps were measured to need, and an eighth of that
DEVICE_GUESS_BYTES = 2 << 30  # or a tenth: what they need where it was not measured
USER_TOKENS = 3000  # what a user's conversation is taken to hold
# That a start waits for the pool's first blocks: what is not there then comes in idle time.
READY_WAIT_S = 1.0
STAGING_MAX = 64  # blocks: one at a time is written, so more would only wait


@dataclass(frozen=True, slots=True)
class Budget:
    """How many blocks the engine has, and why."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    reason: str
    capacity: int  # blocks that the pool can grow to: address space, not memory
    staging: int = 0  # blocks behind it, for what preempted sequences keep below

    @property
    def num_bytes(self) -> int:
        """The pool at its fullest."""
        return (self.num_blocks + self.staging) * self.bytes_per_block

    def in_words(self) -> str:
        """ "4,096 blocks of 16 tokens = 65,536 tokens = 2.9 GiB; 21 sequences of 3,000 tokens"."""
        tokens = self.num_blocks * self.block_size
        users = self.num_blocks // blocks_for(USER_TOKENS, self.block_size)
        staging = self.staging * self.bytes_per_block
        behind = f", and {self.staging:,} to stage in ({format_bytes(staging)})" if staging else ""
        return (
            f"{self.num_blocks:,} blocks of {self.block_size} tokens = {tokens:,} tokens = "
            f"{format_bytes(self.num_bytes - staging)}; {users:,} sequences of {USER_TOKENS:,} tokens{behind}"
        )


@dataclass(frozen=True, slots=True)
class Started:
    """A loaded model with its engine, not yet turned by any thread."""

    engine: Engine
    loaded: LoadedModel
    facts: ModelFacts
    budget: Budget
    backend: Backend
    backend_reason: str  # why it is this one
    fingerprint: bytes  # what its blocks below are bound to
    sessions: SessionSupport
    runner: Runner  # what the engine's executor runs
    feed: ReplicaFeed | None = None  # what routers learn of it, where it is a replica of a cluster
    path: ModelPath | None = None  # None: it did not come from files


def start_engine(
    model: str | None,
    options: StartOptions,
    progress: Progress,
    policies_of: PoliciesOf | None = None,
    traffic: TrafficWriter | None = None,
    replica: ReplicaStart | None = None,
) -> EngineClient:
    """Load a model, start its engine. Raises ModelError or ConfigError, or TenantsRefused where the tenants'
    guarantees do not fit; `progress` is told each phase. `traffic`: as `EngineHost`'s. `replica`: of a
    cluster, where it is one."""
    with started_engine(model, options, progress, policies_of, replica) as started:
        tokenizer = started.loaded.tokenizer
        tokenizer.start_threads()
        # Beside the rest: its process takes a tenth of a second to begin, and is ready for the first chat.
        threading.Thread(target=try_template, args=(tokenizer,), name="octavo-template", daemon=True).start()
        warm(started, options, progress)
        return client_of(started, options, traffic)


@contextlib.contextmanager
def started_engine(
    model: str | None,
    options: StartOptions,
    progress: Progress,
    policies_of: PoliciesOf | None = None,
    replica: ReplicaStart | None = None,
) -> Iterator[Started]:
    """A model with its engine, both closed where the block raises. Raises as `start_engine`."""
    started = build_engine(model, options, progress, policies_of, replica)
    with contextlib.ExitStack() as undo:
        undo.callback(started.engine.close)
        undo.callback(started.sessions.store.close)
        undo.callback(started.loaded.tokenizer.close)
        yield started
        undo.pop_all()


def warm(started: Started, options: StartOptions, progress: Progress) -> None:
    """What the first steps need is there when this returns."""
    started.runner.wait_ready(READY_WAIT_S)
    started.runner.warm(options.step_tokens, progress)


def try_template(tokenizer: Tokenizer) -> None:
    """Render one chat, so that a broken template is told at start, and not to the first client alone."""
    if tokenizer.chat_template is None:
        return
    try:
        encode_rendered(tokenizer, render_chat(tokenizer, [ChatMessage("user", "Hello")]))
    except OctavoError as error:
        log.warning(
            "one user's message was rendered with the model's chat template, and failed: %s. Chats like it "
            "will be refused; plain prompts (/v1/completions) work",
            error,
        )
    if tokenizer.chat_template.fits_no_format:
        log.warning("%s", FITS_NO_FORMAT)


def client_of(started: Started, options: StartOptions, traffic: TrafficWriter | None = None) -> EngineClient:
    """Start the engine's thread."""
    engine, tokenizer = started.engine, started.loaded.tokenizer
    client = EngineClient.over(engine, tokenizer, started.facts, options.max_queue, started.sessions, traffic)
    client.feed = started.feed
    return client


def build_engine(
    model: str | None,
    options: StartOptions,
    progress: Progress,
    policies_of: PoliciesOf | None = None,
    replica: ReplicaStart | None = None,
) -> Started:
    """The same without a thread: the caller of `engine.step()` turns it."""
    if options.record is not None and policies_of is not None and not options.record_tenants:
        raise ConfigError(
            f"record is {options.record}, and there are tenants, whose prompts and answers a recording has "
            "as token ids; allowed: with record_tenants too (--record-tenants)"
        )
    publishing_of(options, has_tenants=policies_of is not None)  # what is wrong is known before a model loads
    if options.chat_template is not None:
        load_template(options.chat_template)  # what is wrong with it is known before a model is loaded
    _native.set_num_threads(options.threads or available_cores())
    chosen = choose_backend(options)
    log.info("backend %s on %s: %s", chosen.backend.name, chosen.backend.device, chosen.reason)
    packed = packed_folder(options, chosen.backend)
    context, path = options.context_length, resolve(model, progress)
    with contextlib.ExitStack() as undo:
        undo.callback(chosen.backend.close)
        loaded = chosen.backend.load(path, context, progress, packed)
        if chosen.backend.is_host and loaded.model.weights.main_kind == "BF16":
            progress("measuring the memory's bandwidth")
            if words := int8_in_words(open_files(path), options.weights, context, measure_read()):
                log.info("bf16 weights; %s", words)
        loaded = replace(loaded, tokenizer=prepared_tokenizer(loaded.tokenizer, options))
        started = engine_over(loaded, chosen.backend, options, policies_of, progress, replica)
        undo.pop_all()
    measured = calibration_key(model, options), calibrate_command(model, options)
    card = replace(started.facts.card, calibration=measured[0], calibrate_command=measured[1])
    facts = replace(started.facts, card=card)
    return replace(started, backend_reason=chosen.reason, path=path, facts=facts)


def packed_folder(options: StartOptions, backend: Backend) -> PackedFolder | None:
    """Where packed weights are kept, if they are to be. Raises ConfigError for a backend that has none."""
    if not options.packed_cache:
        return None
    if backend.name != "native":
        raise ConfigError(
            f"packed_cache is on, and the backend is {backend.name}; allowed with it: off; leave "
            "--packed-cache out, or give --backend native"
        )
    return PackedFolder(cache_folder() / PACKED, backend.arithmetic_id)


def engine_over(
    loaded: LoadedModel,
    backend: Backend,
    options: StartOptions,
    policies_of: PoliciesOf | None = None,
    progress: Progress = lambda text: None,
    replica: ReplicaStart | None = None,
) -> Started:
    """An engine, with a pool of its own, over weights that `backend` has loaded; several may share them.
    Tenants' bounds hold before their sessions are found again.

    Raises ConfigError when the pool would be too small, or what `policies_of` or the bounds raise; then
    threads, files and locks of what was begun are gone. Native threads are the process's, so
    `options.threads` does nothing here.
    """
    with contextlib.ExitStack() as undo:
        started = _engine_over(loaded, backend, options, policies_of, progress, replica, undo)
        undo.pop_all()
    return started


def _engine_over(
    loaded: LoadedModel,
    backend: Backend,
    options: StartOptions,
    policies_of: PoliciesOf | None,
    progress: Progress,
    replica: ReplicaStart | None,
    undo: contextlib.ExitStack,
) -> Started:
    """What must be closed when a later part fails goes to `undo`."""
    spec = loaded.model.spec
    of_runner = _runner_config(loaded, options)
    budget = size_pool(loaded, backend, options, _measured(loaded, backend, options, of_runner, progress))
    waste = window_waste(spec, budget.bytes_per_block / budget.block_size)
    if waste is not None:
        log.info("windows: %s", waste_in_words(spec, waste))
    grammars = Grammars(lambda: words_of(loaded.tokenizer, spec.vocab_size))
    card = card_of(loaded, Pooling(options.pooling), is_host=backend.is_host)
    name = options.served_name or loaded.model.name
    publishing = publishing_of(options, has_tenants=policies_of is not None)
    of_routers = (identity_of(publishing), None if publishing is None else publishing.source(name))
    facts = ModelFacts(name, spec.context_length, spec.vocab_size, grammars, card, *of_routers)
    identity = (loaded.model.fingerprint, b"", options.kv.encode(), backend.arithmetic_id.encode())
    layout = f"{budget.block_size}{backend.layout_id}"
    fingerprint = root_name(b"disk", *identity, layout.encode())
    shape = kv_shape(loaded.model, budget.block_size, options.kv)
    inbox, piece_bytes = Inbox(), backend.bytes_per_layer(shape)
    below = open_stores(options, budget.bytes_per_block, fingerprint, needed_s, piece_bytes)
    worker = None if below is None else _worker_over(below, inbox, undo)
    beside = partial(_available_beside, loaded.mapped_bytes)
    ready = ready_blocks(budget, options, beside()) if backend.is_host else 0
    size = PoolSize(shape, budget.capacity + budget.staging, ready)
    runner = backend.new_runner(loaded.model, of_runner, size, worker, grammars)
    undo.callback(runner.close)
    config = _scheduler_config(options, budget, of_runner, runner.cold_reach.num_parts, backend)
    pressure_config = _pressure_of(options, budget) if backend.is_host else None
    pool = (budget.num_blocks, budget.capacity, budget.block_size)
    ways = (Speculation(options.speculate), pressure_config, backend.pads_steps)
    setup = SchedulerSetup(config, *pool, identity, ready, *ways)
    speculator, pressure = setup.new_speculator(), setup.new_pressure()
    publisher = None if publishing is None else undo.enter_context(contextlib.closing(publishing.open(name)))

    def new_scheduler() -> Scheduler:
        tier = None if below is None else below.setup(runner.cold_reach.num_slots)
        if recorder is not None:
            recorder.begin(setup, tier)
        changes = None if publishing is None else publishing.new_record()
        if changes is not None and below is not None:
            below.describe(changes)
        return setup.new_scheduler(tier, speculator, changes)

    overlap = options.overlap if options.overlap is not None else int(not backend.is_host)
    executor = backend.new_executor(runner, overlap)
    undo.callback(executor.close)
    store = undo.enter_context(contextlib.closing(_open_sessions(below, replica)))
    recorder = None if options.record is None else undo.enter_context(_recorder(options, store))
    watch = None if pressure is None else MemoryWatch(pressure, beside)
    clock = time.perf_counter
    feed = None if replica is None else ReplicaFeed(hello_of(replica, name, setup, options), inbox.wake)
    of_engine = (clock, inbox, watch, recorder, runner, publisher, feed)
    engine = Engine(new_scheduler, executor, runner.reset, overlap, *of_engine)
    runner.forward.wake_when_lost(inbox.wake)
    sessions = SessionSupport(store, options.session_ttl_s, None if worker is None else worker.sync)
    if policies_of is not None:
        engine.apply(SetTenants(tuple(policies_of(budget.bytes_per_block))))
    attach(engine, store)
    return Started(engine, loaded, facts, budget, backend, "given", fingerprint, sessions, runner, feed)


def _open_sessions(below: OffloadStores | None, replica: ReplicaStart | None) -> ConversationStore:
    """Of what a disk cache has of them, if there is one."""
    slot = None if replica is None else replica.slot
    return (
        open_sessions(None, slot=slot) if below is None else open_sessions(below.namespace, below.clock, slot)
    )


def _worker_over(below: OffloadStores, inbox: Inbox, undo: contextlib.ExitStack) -> TransferWorker:
    """Moves blocks between the pool and what is below."""
    undo.callback(below.store.close)
    worker = TransferWorker(below.store, inbox.finish_transfer)
    undo.callback(worker.close)
    return worker


def _runner_config(loaded: LoadedModel, options: StartOptions) -> RunnerConfig:
    """What a runner over the model must know."""
    spec, stop_ids = loaded.model.spec, frozenset(loaded.tokenizer.stop_ids)
    return RunnerConfig(options.block_size, options.max_seqs, spec.context_length, stop_ids, spec.vocab_size)


def _scheduler_config(
    options: StartOptions, budget: Budget, runner: RunnerConfig, parts_max: int, backend: Backend
) -> SchedulerConfig:
    """The scheduler's bounds. Raises ConfigError."""
    if options.shed and options.target_ttft_s is None:
        raise ConfigError("shed is on, and no target_ttft is given; allowed: with --target-ttft TIME")
    return SchedulerConfig(
        max_rows=options.max_seqs,
        step_tokens=options.step_tokens,
        max_waiting=options.max_queue + options.max_seqs,  # those that had rows and were preempted included
        context_length=runner.context_length,
        stop_ids=runner.stop_ids,
        prefix_caching=options.prefix_caching,
        pace=options.pace is not False,
        pin_blocks=_pin_blocks(budget, options),
        bytes_per_block=budget.bytes_per_block,
        device=f"{backend.name} on {backend.device}",
        long_context=options.long_context,
        parts_max=parts_max,
        staging_blocks=budget.staging,
        target_itl_s=options.target_itl_s,
        target_ttft_s=options.target_ttft_s,
        shed=options.shed,
    )


def _recorder(options: StartOptions, store: ConversationStore) -> Recorder:
    """Raises ConfigError where it would hold what tenants said before."""
    assert options.record is not None
    if not options.record_tenants and any(record.tenant for record in store.records()):
        raise ConfigError(
            f"record is {options.record}, and the disk cache has sessions of tenants, which a recording has "
            "as token ids; allowed: with record_tenants too (--record-tenants), or another disk_cache"
        )
    return Recorder.open(options.record, has_tenants=options.record_tenants)


def _pressure_of(options: StartOptions, budget: Budget) -> PressureConfig:
    """When the pool's memory goes back: it is unused, or the machine is short of it."""
    return PressureConfig(budget.bytes_per_block, float(options.idle_return_s), _reserve(options))


def _available_beside(mapped_bytes: int) -> int:
    """Bytes to be had while so many of mapped weights stay in memory: the system counts them as available."""
    return max(0, available_memory() - mapped_bytes)


def _reserve(options: StartOptions) -> int:
    """Bytes that are to stay available to others."""
    return default_reserve() if options.memory_reserve_bytes is None else options.memory_reserve_bytes


def _measured(
    loaded: LoadedModel, backend: Backend, options: StartOptions, config: RunnerConfig, progress: Progress
) -> int | None:
    """What steps need, where the pool takes all the rest."""
    if options.kv_memory_bytes is not None:
        return None
    shape = kv_shape(loaded.model, options.block_size, options.kv)
    return backend.measure_steps(loaded.model, config, shape, options.step_tokens, progress)


def size_pool(
    loaded: LoadedModel, backend: Backend, options: StartOptions, step_bytes: int | None = None
) -> Budget:
    """Blocks for the asked bytes, or a quarter of what is available now, or of a device all but what steps
    need; never more than all rows could use.

    Raises ConfigError when fewer than 2 blocks fit.
    """
    return size_pool_beside(loaded.model.spec, loaded.mapped_bytes, backend, options, step_bytes)


def size_pool_beside(
    spec: ModelSpec, beside: int, backend: Backend, options: StartOptions, step_bytes: int | None = None
) -> Budget:
    """The same beside so many bytes that count as available now, and will be taken."""
    per_block = backend.bytes_per_block(kv_shape_of(spec, options.block_size, options.kv))
    available = max(0, backend.memory_available() - beside)
    if options.kv_memory_bytes is not None:
        num_bytes, reason = options.kv_memory_bytes, "kv_memory as given"
    else:
        num_bytes, reason = _default_pool(available, backend, step_bytes)
    num_blocks = num_bytes // per_block
    useful = options.max_seqs * blocks_for(spec.context_length, options.block_size)
    if num_blocks > useful:
        num_blocks, reason = useful, f"{options.max_seqs} sequences of the whole context need no more"
    if num_blocks < 2:
        raise ConfigError(
            f"kv_memory of {format_bytes(num_bytes)} holds {num_blocks} blocks of {format_bytes(per_block)}; "
            f"allowed: at least 2 blocks; give --kv-memory {format_bytes(2 * per_block)} or more"
        )
    # It may grow to what all rows could use, as far as there is memory now.
    capacity = max(num_blocks, min(useful, available // per_block)) if backend.is_host else num_blocks
    # Beside host memory alone nothing is staged on the host: there it serves better in the pool.
    is_staged = options.disk_cache is not None or (options.host_cache_bytes > 0 and not backend.is_host)
    staging = staging_blocks(num_blocks) if is_staged else 0
    return Budget(num_blocks - staging, options.block_size, per_block, reason, capacity, staging)


def _default_pool(available: int, backend: Backend, step_bytes: int | None) -> tuple[int, str]:
    """Bytes for blocks of those that are there, and why so many. A device's memory is nobody else's."""
    if backend.is_host:
        return available // 4, "a quarter of the memory available now"
    if step_bytes is None:
        spare, known = max(available // 10, min(DEVICE_GUESS_BYTES, available // 2)), "about"
    else:
        spare, known = step_bytes + step_bytes // 8 + DEVICE_SPARE_BYTES, "as measured"
    words = f"what {backend.device} has, less {format_bytes(spare)} for what steps need, {known}"
    return max(0, available - spare), words


def ready_blocks(budget: Budget, options: StartOptions, available: int) -> int:
    """Blocks whose memory is taken at start: as many as were asked for, of half of what is `available`
    (bytes) beyond what is to stay available to others."""
    spare = max(0, available - _reserve(options)) // 2
    return min(min(options.kv_ready_bytes, spare) // budget.bytes_per_block, budget.num_blocks)


def staging_blocks(num_blocks: int) -> int:
    """Of `num_blocks`, those that a tier below takes to stage in: a sixteenth, at most `STAGING_MAX`."""
    return min(STAGING_MAX, num_blocks // 16)


def _pin_blocks(budget: Budget, options: StartOptions) -> int:
    if options.pin_memory_bytes is None:
        return budget.num_blocks // 2
    return min(options.pin_memory_bytes // budget.bytes_per_block, budget.num_blocks - 1)
