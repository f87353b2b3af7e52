"""`octavo doctor`: what would be used, why, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo.cli.disk_app import namespace_line
from octavo.cli.doctor_headers import (
    diagnose,
    given_lines,
    json_of_given,
    machine_advice,
    machine_lines,
    print_lines,
    weights_in_words,
)
from octavo.cli.doctor_ranks import diagnose_ranks
from octavo.cli.given import SettingOrigin
from octavo.cli.packed import packed_lines
from octavo.cli.tables import print_json
from octavo.cli.terminal import look_at_machine, phases
from octavo.config import StartOptions
from octavo.engine.backends import choose_backend
from octavo.engine.windows import waste_in_words, window_waste
from octavo.executor.disk import namespace_of
from octavo.executor.disk_folder import bytes_free, survey
from octavo.executor.runner import kv_shape
from octavo.kernels.probe import Machine
from octavo.model.spec import ModelSpec
from octavo.serving.start import Budget, StartedEngine, build_engine, packed_folder
from octavo.units import blocks_for, format_bytes


def run(
    model: str | None,
    options: StartOptions,
    origins: Sequence[SettingOrigin] = (),
    *,
    load: bool = False,
    as_json: bool = False,
) -> bool:
    """Say whether the model runs and fits, from headers; with `load`, or for a GPU, load it as `serve` would
    and print what was resolved. False: it does not. Raises ConfigError and ModelError."""
    look_at_machine()
    if options.tensor_parallel_size > 1 and not load:
        return diagnose_ranks(model, options, origins, as_json=as_json)
    if not load:
        backend = choose_backend(options)
        if backend.backend.is_host:
            return diagnose(model, options, backend, origins, as_json=as_json)
    _run_loaded(model, options, origins, as_json)
    return True


def _run_loaded(
    model: str | None, options: StartOptions, origins: Sequence[SettingOrigin], as_json: bool
) -> None:
    with phases() as tell:
        # Without what is kept on disk: looking at it must not make it.
        looked_at = replace(options, disk_cache=None, packed_cache=False, record=None)
        started = build_engine(model, looked_at, tell)
        started.engine.close()
    machine = look_at_machine()  # again: it tells the threads that the engine uses
    lines = [
        *machine_lines(machine),
        *given_lines(origins),
        *model_lines(started, options),
        *budget_lines(started.budget, options),
        *window_lines(started.loaded.model.spec, started.budget),
        *disk_lines(options, namespace_of(started.fingerprint)),
        *packed_lines_of(started, options),
    ]
    told = advice(started, options, machine)
    if as_json:
        resolved = [{"name": name.strip(), "text": text} for name, text in lines]
        print_json({"resolved": resolved, "advice": told, "given": json_of_given(origins)})
    else:
        print_lines(lines, told)


def model_lines(started: StartedEngine, options: StartOptions) -> list[tuple[str, str]]:
    """The model and the backend."""
    spec, facts, backend = started.loaded.model.spec, started.facts, started.backend
    shape = kv_shape(started.loaded.model, started.budget.block_size, options.kv)
    return [
        ("backend", f"{backend.name} on {backend.device}: {started.backend_reason}"),
        (
            "arithmetic",
            f"{backend.arithmetic_id}: {backend.exactness}",
        ),
        *backend.notes,
        ("model", f"{facts.name}: vocabulary {facts.vocab_size:,}, context {spec.context_length:,} tokens"),
        ("weights", weights_in_words(started.loaded.model.weights, options.weights)),
        (
            "KV",
            f"{shape.num_layers} layers, {shape.num_kv_heads} KV heads of {shape.head_size}, "
            f"held as {shape.kind}; {format_bytes(started.budget.bytes_per_block)} per block, "
            f"{format_bytes(started.budget.bytes_per_block / started.budget.block_size)} per token",
        ),
        ("embeddings", f"{spec.hidden_size:,} numbers, --pooling {facts.card.pooling}"),
    ]


def budget_lines(budget: Budget, options: StartOptions) -> list[tuple[str, str]]:
    """The blocks, in words."""
    return [
        ("blocks", budget.in_words()),
        ("why", budget.reason),
        (
            "limits",
            f"{options.max_seqs:,} sequences run at once, {options.step_tokens:,} tokens in a step, "
            f"{options.max_queue:,} requests wait",
        ),
    ]


def window_lines(spec: ModelSpec, budget: Budget) -> list[tuple[str, str]]:
    """What windows leave unused; nothing where layers see all positions."""
    waste = window_waste(spec, budget.bytes_per_block / budget.block_size)
    return [] if waste is None else [("windows", waste_in_words(spec, waste))]


def disk_lines(options: StartOptions, own: str) -> list[tuple[str, str]]:
    """The disk cache, if one was asked for: its folder, what this model has there, and what others left."""
    folder = options.disk_folder
    if folder is None:
        return [("disk cache", "none: --disk-cache FOLDER keeps blocks that memory has no room for")]
    found, free = survey(folder), bytes_free(folder)
    mine = [namespace_line(namespace) for namespace in found if namespace.name == own]
    others = [namespace for namespace in found if namespace.name != own]
    lines = [
        (
            "disk cache",
            f"{folder}, {'an unknown size' if free is None else format_bytes(free)} free there; "
            f"this model may take {format_bytes(options.disk_size_bytes)}",
        ),
        ("  this model", mine[0] if mine else "nothing yet"),
    ]
    if others:
        age = (
            f"removed when unused for {options.disk_max_age_days:,} days"
            if options.disk_max_age_days
            else "never removed by itself"
        )
        lines += [("  another", namespace_line(namespace)) for namespace in others]
        lines.append(("", f"{age}, or by `octavo disk clean {folder}`"))
    return lines


def packed_lines_of(started: StartedEngine, options: StartOptions) -> list[tuple[str, str]]:
    """What is kept of packed weights; nothing for a backend that keeps none."""
    packed = packed_folder(replace(options, packed_cache=started.backend.name == "native"), started.backend)
    if packed is None:
        return []
    own = packed.path_of(started.loaded.weights_fingerprint)
    return packed_lines(packed.folder, own, options.packed_cache)


def advice(started: StartedEngine, options: StartOptions, machine: Machine) -> list[str]:
    """What to change, and why; nothing where nothing is wrong."""
    lines = []
    budget, context = started.budget, started.facts.context_length
    tokens = budget.num_blocks * budget.block_size
    if tokens < context:
        enough = format_bytes(blocks_for(context, budget.block_size) * budget.bytes_per_block)
        lines.append(
            f"the pool holds {tokens:,} tokens, less than one context of {context:,}: longer requests are "
            f"refused. Give --kv-memory {enough} or a smaller --context-length."
        )
    if budget.num_bytes > machine.memory_available:
        lines.append("the pool is larger than the memory available now; give a smaller --kv-memory.")
    lines += machine_advice(options, machine)
    if options.host_cache_bytes:
        lines.append("--host-cache is slower here than the same memory in --kv-memory: both are host memory.")
    if options.backend == "reference":
        lines.append("the reference backend is the specification in NumPy; use --backend native to serve.")
    return lines
