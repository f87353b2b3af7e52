"""`octavo doctor`: the resolved settings and their reasons, and advice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from octavo.cli.disk_app import namespace_line
from octavo.cli.doctor_headers import (
    describe_weights,
    diagnose,
    machine_advice,
    machine_lines,
    print_lines,
    settings_json,
    settings_lines,
)
from octavo.cli.doctor_ranks import diagnose_ranks
from octavo.cli.flags import SettingOrigin
from octavo.cli.terminal import print_json, probe_machine, show_progress
from octavo.config import StartOptions
from octavo.engine.backends import choose_backend
from octavo.engine.windows import waste_in_words, window_waste
from octavo.executor.disk import namespace_of
from octavo.executor.disk_folder import bytes_free, survey
from octavo.executor.runner import kv_shape
from octavo.kernels.probe import Machine
from octavo.model.files.packed_file import Pack
from octavo.model.files.packed_file import survey as survey_packs
from octavo.model.spec import ModelSpec
from octavo.serving.start import Budget, StartedEngine, build_engine, packed_folder
from octavo.units import blocks_for, format_age, format_bytes


def run(
    model: str | None,
    options: StartOptions,
    origins: Sequence[SettingOrigin] = (),
    *,
    load: bool = False,
    as_json: bool = False,
) -> bool:
    """Print whether the model runs and fits, from its headers; with `load`, or for a GPU, load it as `serve`
    would and print what was resolved. Returns False if it does not run or fit. Raises ConfigError,
    ModelError."""
    probe_machine()
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
    with show_progress() as report:
        # Without caches on disk: a diagnosis must not create them.
        diskless = replace(options, disk_cache=None, packed_cache=False, record=None)
        started = build_engine(model, diskless, report)
        started.engine.close()
    machine = probe_machine()  # again: now it has the engine's number of threads
    lines = [
        *machine_lines(machine),
        *settings_lines(origins),
        *model_lines(started, options),
        *budget_lines(started.budget, options),
        *window_lines(started.loaded.model.spec, started.budget),
        *disk_lines(options, namespace_of(started.fingerprint)),
        *packed_lines_of(started, options),
    ]
    advice = advice_of(started, options, machine)
    if as_json:
        resolved = [{"name": name.strip(), "text": text} for name, text in lines]
        print_json({"resolved": resolved, "advice": advice, "given": settings_json(origins)})
    else:
        print_lines(lines, advice)


def model_lines(started: StartedEngine, options: StartOptions) -> list[tuple[str, str]]:
    """Lines about the backend, the model, its weights and its KV."""
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
        ("weights", describe_weights(started.loaded.model.weights, options.weights)),
        (
            "KV",
            f"{shape.num_layers} layers, {shape.num_kv_heads} KV heads of {shape.head_size}, "
            f"held as {shape.kind}; {format_bytes(started.budget.bytes_per_block)} per block, "
            f"{format_bytes(started.budget.bytes_per_block / started.budget.block_size)} per token",
        ),
        ("embeddings", f"{spec.hidden_size:,} numbers, --pooling {facts.card.pooling}"),
    ]


def budget_lines(budget: Budget, options: StartOptions) -> list[tuple[str, str]]:
    """Lines about the blocks and the limits."""
    return [
        ("blocks", budget.in_words()),
        ("why", budget.reason),
        (
            "limits",
            f"{options.max_seqs:,} sequences run at once, {options.step_tokens:,} tokens in a step, "
            f"up to {options.max_queue:,} requests wait",
        ),
    ]


def window_lines(spec: ModelSpec, budget: Budget) -> list[tuple[str, str]]:
    """A line about KV memory that sliding windows leave unused; none without windows."""
    waste = window_waste(spec, budget.bytes_per_block / budget.block_size)
    return [] if waste is None else [("windows", waste_in_words(spec, waste))]


def disk_lines(options: StartOptions, own: str) -> list[tuple[str, str]]:
    """Lines about the disk cache: its folder, this model's cache in it, and those of others."""
    folder = options.disk_folder
    if folder is None:
        return [("disk cache", "none: --disk-cache FOLDER keeps blocks that do not fit into memory")]
    found, free = survey(folder), bytes_free(folder)
    mine = [namespace_line(namespace) for namespace in found if namespace.name == own]
    others = [namespace for namespace in found if namespace.name != own]
    lines = [
        (
            "disk cache",
            f"{folder}, {'an unknown size' if free is None else format_bytes(free)} free; "
            f"this model may use {format_bytes(options.disk_size_bytes)}",
        ),
        ("  this model", mine[0] if mine else "nothing yet"),
    ]
    if others:
        age = (
            f"removed when unused for {options.disk_max_age_days:,} days"
            if options.disk_max_age_days
            else "not removed automatically"
        )
        lines += [("  another", namespace_line(namespace)) for namespace in others]
        lines.append(("", f"{age}; `octavo disk clean {folder}` removes them"))
    return lines


def packed_lines_of(started: StartedEngine, options: StartOptions) -> list[tuple[str, str]]:
    """Lines about the cache of packed weights; none for a backend without one."""
    packed = packed_folder(replace(options, packed_cache=started.backend.name == "native"), started.backend)
    if packed is None:
        return []
    own = packed.path_of(started.loaded.weights_fingerprint)
    return packed_lines(packed.folder, own, options.packed_cache)


def packed_lines(folder: Path, own: Path, is_on: bool) -> list[tuple[str, str]]:
    """Lines about the folder of packed weights: this model's file (`own`), and those of others."""
    found, free = survey_packs(folder), bytes_free(folder)
    mine = [pack for pack in found if pack.path == own]
    others = [pack for pack in found if pack.path != own]
    first = "off: --packed-cache keeps packed weights on disk, for a quick start"
    if is_on:
        first = f"{folder}, {'an unknown size' if free is None else format_bytes(free)} free"
    lines = [("packed weights", first)]
    if is_on or mine:
        lines.append(("  this model", pack_line(mine[0]) if mine else "nothing yet: the next start makes it"))
    lines += [("  another", pack_line(pack)) for pack in others]
    if others:
        lines.append(("", "not removed automatically; each may be deleted, and is made again when needed"))
    return lines


def pack_line(pack: Pack) -> str:
    """ "/cache/packed/3f0c...-1.packed: 4.3 GiB, last used 3 days ago"."""
    used = format_age(time.time() - pack.used_at)
    return f"{pack.path}: {format_bytes(pack.num_bytes)}, last used {used} ago"


def advice_of(started: StartedEngine, options: StartOptions, machine: Machine) -> list[str]:
    """Changes that would help, with reasons."""
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
        lines.append("the pool is larger than the available memory; give a smaller --kv-memory.")
    lines += machine_advice(options, machine)
    if options.host_cache_bytes:
        lines.append("--host-cache is slower here than the same memory in --kv-memory: both are host memory.")
    if options.backend == "reference":
        lines.append("the reference backend is slow, made for comparison; use --backend native to serve.")
    return lines
