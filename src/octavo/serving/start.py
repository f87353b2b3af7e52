"""From a model's name to a running engine, or to a renderer without one: resolve, load, size the pool,
connect the rooms. Every entry point starts here."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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
from octavo.engine.no_engine import NoEngine
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
from octavo.kv_events.publisher_config import identity_of, publishing_of
from octavo.memory.names import root_name
from octavo.memory.quota import TenantPolicy
from octavo.model.hub.headers import fetch_headers
from octavo.model.hub.paths import ModelPath, cache_folder, resolve
from octavo.model.loader import LoadedModel, open_files, read_tokenizer, spec_within
from octavo.model.packed_cache import PACKED, PackedFolder
from octavo.model.spec import ModelSpec
from octavo.model.weight_sizes import int8_in_words
from octavo.params import Pooling
from octavo.routing.slots import ReplicaStart
from octavo.sampling.grammars import Grammars
from octavo.scheduler.pressure import PressureConfig
from octavo.scheduler.scheduler import Scheduler
from octavo.serving.calibration_key import calibrate_command, calibration_key
from octavo.serving.client import EngineClient
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
PoliciesOf = Callable[[int], Sequence[TenantPolicy]]  # tenants' bounds, by bytes per block
log = logging.getLogger("octavo.start")
DEVICE_SPARE_BYTES = 256 << 20  # spare memory in addition to 9/8 of a step's measured need
DEVICE_GUESS_BYTES = 2 << 30  # a step's need if it was not measured: this, or a tenth of the memory
USER_TOKENS = 3000  # assumed length of a user's conversation
READY_WAIT_S = 1.0  # for the pool's first blocks; the others are faulted in during idle time
STAGING_MAX = 64  # blocks; they are written one at a time, so more would only wait


@dataclass(frozen=True, slots=True)
class Budget:
    """The pool's size, and the reason for it."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    reason: str
    capacity: int  # blocks that the pool can grow to: address space, not memory
    staging: int = 0  # blocks after the pool, through which preempted sequences are offloaded

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool and its staging blocks."""
        return (self.num_blocks + self.staging) * self.bytes_per_block

    def in_words(self) -> str:
        """ "4,096 blocks of 16 tokens = 65,536 tokens = 2.9 GiB; 21 sequences of 3,000 tokens"."""
        tokens = self.num_blocks * self.block_size
        users = self.num_blocks // blocks_for(USER_TOKENS, self.block_size)
        staging = self.staging * self.bytes_per_block
        staged = f", and {self.staging:,} to stage in ({format_bytes(staging)})" if staging else ""
        return (
            f"{self.num_blocks:,} blocks of {self.block_size} tokens = {tokens:,} tokens = "
            f"{format_bytes(self.num_bytes - staging)}; {users:,} sequences of {USER_TOKENS:,} tokens{staged}"
        )


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """A loaded model with its engine, which no thread drives yet."""

    engine: Engine
    loaded: LoadedModel
    facts: ModelFacts
    budget: Budget
    backend: Backend
    backend_reason: str  # why this backend was chosen
    fingerprint: bytes  # offloaded blocks are valid for this one only
    sessions: SessionSupport
    runner: Runner  # the executor's
    feed: ReplicaFeed | None = None  # reports to routers, if it is a replica of a cluster
    path: ModelPath | None = None  # None: the model was not read from files


def start_engine(
    model: str | None,
    options: StartOptions,
    progress: Progress,
    policies_of: PoliciesOf | None = None,
    traffic: TrafficWriter | None = None,
    replica: ReplicaStart | None = None,
) -> EngineClient:
    """Load a model and start its engine; `progress` gets the name of each phase.

    `traffic`: as for `EngineHost`. `replica`: given if the engine is a replica of a cluster. Raises
    ModelError or ConfigError, or TenantsRefused if the tenants' guarantees do not fit.
    """
    with started_engine(model, options, progress, policies_of, replica) as started:
        tokenizer = started.loaded.tokenizer
        tokenizer.start_threads()
        # In parallel: the template's process takes a tenth of a second to start, and is ready for the first
        # chat.
        threading.Thread(
            target=check_template, args=(tokenizer,), name="octavo-template", daemon=True
        ).start()
        warm(started, options, progress)
        return client_of(started, options, traffic)


@contextlib.contextmanager
def started_engine(
    model: str | None,
    options: StartOptions,
    progress: Progress,
    policies_of: PoliciesOf | None = None,
    replica: ReplicaStart | None = None,
) -> Iterator[StartedEngine]:
    """A model with its engine; both are closed if the block raises. Raises as `start_engine`."""
    started = build_engine(model, options, progress, policies_of, replica)
    with contextlib.ExitStack() as undo:
        undo.callback(started.engine.close)
        undo.callback(started.sessions.store.close)
        undo.callback(started.loaded.tokenizer.close)
        yield started
        undo.pop_all()


def warm(started: StartedEngine, options: StartOptions, progress: Progress) -> None:
    """Prepare what the first steps need: the pool's first blocks and the step programs."""
    started.runner.wait_ready(READY_WAIT_S)
    started.runner.warm(options.step_tokens, progress)


def check_template(tokenizer: Tokenizer) -> None:
    """Render one chat, so that a broken template is logged at start, before the first client meets it."""
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


def start_renderer(model: str | None, options: StartOptions, progress: Progress) -> EngineClient:
    """A client that renders what an engine would get, with tokenizer, chat template and grammars, and
    generates nothing. Only the headers of a repository that is not on this machine are fetched. Raises
    ModelError or ConfigError. O(header and tokenizer bytes)."""
    if options.chat_template is not None:
        load_template(options.chat_template)  # check it before anything is fetched
    with tempfile.TemporaryDirectory(prefix="octavo-headers-") as folder:
        path = resolve(model, progress, partial(fetch_headers, Path(folder)))
        opened = open_files(path)
        spec = spec_within(opened.description, options.context_length, opened.label)
        tokenizer = prepared_tokenizer(read_tokenizer(opened), options)
    tokenizer.start_threads()
    threading.Thread(target=check_template, args=(tokenizer,), name="octavo-template", daemon=True).start()
    grammars = Grammars(lambda: words_of(tokenizer, spec.vocab_size))
    name = options.served_name or path.name
    facts = ModelFacts(name, spec.context_length, spec.vocab_size, grammars)
    host = NoEngine(frozenset(tokenizer.stop_ids))
    return EngineClient(host, tokenizer, facts, options.max_queue + options.max_seqs)


def client_of(
    started: StartedEngine, options: StartOptions, traffic: TrafficWriter | None = None
) -> EngineClient:
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
) -> StartedEngine:
    """`start_engine` without a thread: the caller drives the engine with `engine.step()`."""
    if options.record is not None and policies_of is not None and not options.record_tenants:
        raise ConfigError(
            f"record is {options.record}, and the recording would contain tenants' prompts and answers as "
            "token ids; allowed: with record_tenants too (--record-tenants)"
        )
    # Both raise ConfigError: before the model is loaded.
    publishing_of(options, has_tenants=policies_of is not None)
    if options.chat_template is not None:
        load_template(options.chat_template)
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
    key, command = calibration_key(model, options), calibrate_command(model, options)
    card = replace(started.facts.card, calibration=key, calibrate_command=command)
    facts = replace(started.facts, card=card)
    return replace(started, backend_reason=chosen.reason, path=path, facts=facts)


def packed_folder(options: StartOptions, backend: Backend) -> PackedFolder | None:
    """The folder of packed weights, if they are cached. Raises ConfigError for a backend without them."""
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
) -> StartedEngine:
    """An engine, with a pool of its own, over weights that `backend` has loaded; several engines may share
    them. Tenants' bounds are set before their sessions are restored.

    Raises ConfigError if the pool would be too small, and the errors of `policies_of` and of the bounds;
    threads, files and locks are released then. Native threads belong to the process, so `options.threads` has
    no effect.
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
) -> StartedEngine:
    """`undo` collects the parts that must be closed if a later one fails."""
    spec = loaded.model.spec
    of_runner = _runner_config(loaded, options)
    budget = size_pool(loaded, backend, options, _step_bytes(loaded, backend, options, of_runner, progress))
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
    stores = open_stores(options, budget.bytes_per_block, fingerprint, needed_s, piece_bytes)
    worker = None if stores is None else _transfer_worker(stores, inbox, undo)
    available = partial(_available_without, loaded.mapped_bytes)
    ready = ready_blocks(budget, options, available()) if backend.is_host else 0
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
        tier = None if stores is None else stores.setup(runner.cold_reach.num_slots)
        if recorder is not None:
            recorder.begin(setup, tier)
        changes = None if publishing is None else publishing.new_record()
        if changes is not None and stores is not None:
            stores.describe(changes)
        return setup.new_scheduler(tier, speculator, changes)

    overlap = options.overlap if options.overlap is not None else int(not backend.is_host)
    executor = backend.new_executor(runner, overlap)
    undo.callback(executor.close)
    store = undo.enter_context(contextlib.closing(_open_sessions(stores, replica)))
    recorder = None if options.record is None else undo.enter_context(_recorder(options, store))
    watch = None if pressure is None else MemoryWatch(pressure, available)
    clock = time.perf_counter
    feed = None if replica is None else ReplicaFeed(hello_of(replica, name, setup, options), inbox.wake)
    of_engine = (clock, inbox, watch, recorder, runner, publisher, feed)
    engine = Engine(new_scheduler, executor, runner.reset, overlap, *of_engine)
    runner.forward.wake_when_lost(inbox.wake)
    sessions = SessionSupport(store, options.session_ttl_s, None if worker is None else worker.sync)
    if policies_of is not None:
        engine.apply(SetTenants(tuple(policies_of(budget.bytes_per_block))))
    attach(engine, store)
    return StartedEngine(engine, loaded, facts, budget, backend, "given", fingerprint, sessions, runner, feed)


def _open_sessions(stores: OffloadStores | None, replica: ReplicaStart | None) -> ConversationStore:
    """The sessions; those of a disk cache, if there is one."""
    slot = None if replica is None else replica.slot
    if stores is None:
        return open_sessions(None, slot=slot)
    return open_sessions(stores.namespace, stores.clock, slot)


def _transfer_worker(stores: OffloadStores, inbox: Inbox, undo: contextlib.ExitStack) -> TransferWorker:
    """A worker that moves blocks between the pool and the offload tier."""
    undo.callback(stores.store.close)
    worker = TransferWorker(stores.store, inbox.finish_transfer)
    undo.callback(worker.close)
    return worker


def _runner_config(loaded: LoadedModel, options: StartOptions) -> RunnerConfig:
    """The runner's part of the options and of the model."""
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
        max_waiting=options.max_queue + options.max_seqs,  # includes preempted sequences, which had rows
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
    """Open the recording. Raises ConfigError if it would contain restored sessions of tenants."""
    assert options.record is not None
    if not options.record_tenants and any(record.tenant for record in store.records()):
        raise ConfigError(
            f"record is {options.record}, and the recording would contain the tenants' sessions in the disk "
            "cache as token ids; allowed: with record_tenants too (--record-tenants), or another disk_cache"
        )
    return Recorder.open(options.record, has_tenants=options.record_tenants)


def _pressure_of(options: StartOptions, budget: Budget) -> PressureConfig:
    """When the pool returns memory: after idle time, or when the machine is short of it."""
    return PressureConfig(budget.bytes_per_block, float(options.idle_return_s), _reserve(options))


def _available_without(mapped_bytes: int) -> int:
    """Available bytes without those of mapped weights, which the system counts as available."""
    return max(0, available_memory() - mapped_bytes)


def _reserve(options: StartOptions) -> int:
    """Bytes that stay available to other processes."""
    return default_reserve() if options.memory_reserve_bytes is None else options.memory_reserve_bytes


def _step_bytes(
    loaded: LoadedModel, backend: Backend, options: StartOptions, config: RunnerConfig, progress: Progress
) -> int | None:
    """The memory that steps need, measured if the pool takes the rest; None if the pool's size is given."""
    if options.kv_memory_bytes is not None:
        return None
    shape = kv_shape(loaded.model, options.block_size, options.kv)
    return backend.measure_steps(loaded.model, config, shape, options.step_tokens, progress)


def size_pool(
    loaded: LoadedModel, backend: Backend, options: StartOptions, step_bytes: int | None = None
) -> Budget:
    """The requested bytes as blocks; by default a quarter of the host's available memory, or a device's
    memory without the bytes that steps need. Never more than all rows could use.

    Raises ConfigError if fewer than 2 blocks fit.
    """
    return size_pool_for(loaded.model.spec, loaded.mapped_bytes, backend, options, step_bytes)


def size_pool_for(
    spec: ModelSpec, reserved: int, backend: Backend, options: StartOptions, step_bytes: int | None = None
) -> Budget:
    """`size_pool` with `reserved` bytes that count as available now, and will be used."""
    per_block = backend.bytes_per_block(kv_shape_of(spec, options.block_size, options.kv))
    available = max(0, backend.memory_available() - reserved)
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
    # It may grow to what all rows could use, within the memory available now.
    capacity = max(num_blocks, min(useful, available // per_block)) if backend.is_host else num_blocks
    # A pool in host memory is not staged for a host cache: that memory serves better in the pool.
    is_staged = options.disk_cache is not None or (options.host_cache_bytes > 0 and not backend.is_host)
    staging = staging_blocks(num_blocks) if is_staged else 0
    return Budget(num_blocks - staging, options.block_size, per_block, reason, capacity, staging)


def _default_pool(available: int, backend: Backend, step_bytes: int | None) -> tuple[int, str]:
    """The pool's bytes, and the reason. A device's memory is not shared with other processes."""
    if backend.is_host:
        return available // 4, "a quarter of the memory available now"
    if step_bytes is None:
        spare, known = max(available // 10, min(DEVICE_GUESS_BYTES, available // 2)), "about"
    else:
        spare, known = step_bytes + step_bytes // 8 + DEVICE_SPARE_BYTES, "as measured"
    words = f"what {backend.device} has, less {format_bytes(spare)} for what steps need, {known}"
    return max(0, available - spare), words


def ready_blocks(budget: Budget, options: StartOptions, available: int) -> int:
    """Blocks whose memory is faulted in at start: as requested, within half of the `available` bytes that
    exceed the reserve."""
    spare = max(0, available - _reserve(options)) // 2
    return min(min(options.kv_ready_bytes, spare) // budget.bytes_per_block, budget.num_blocks)


def staging_blocks(num_blocks: int) -> int:
    """How many of `num_blocks` an offload tier takes for staging: a sixteenth, at most `STAGING_MAX`."""
    return min(STAGING_MAX, num_blocks // 16)


def _pin_blocks(budget: Budget, options: StartOptions) -> int:
    if options.pin_memory_bytes is None:
        return budget.num_blocks // 2
    return min(options.pin_memory_bytes // budget.bytes_per_block, budget.num_blocks - 1)
