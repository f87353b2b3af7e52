"""`octavo doctor`: what would be used, why, and what to change."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from octavo.cli.disk_app import namespace_line
from octavo.cli.packed import packed_lines
from octavo.cli.terminal import look_at_machine
from octavo.config import StartOptions
from octavo.engine.start import Budget, Started, build_engine, packed_folder
from octavo.executor.disk import namespace_of
from octavo.executor.disk_folder import bytes_free, survey
from octavo.executor.runner import kv_shape
from octavo.kernels.probe import Machine
from octavo.model.spec import ModelWeights
from octavo.units import blocks_for, format_bytes


def run(model: str | None, options: StartOptions) -> None:
    """Load the model as `serve` would, print what was resolved. Raises ConfigError and ModelError."""
    console = Console(highlight=False)
    look_at_machine()
    with Console(stderr=True).status("looking ...") as status:
        # Without what is kept on disk: looking at it must not make it.
        looked_at = replace(options, disk_cache=None, packed_cache=False)
        started = build_engine(model, looked_at, lambda text: status.update(text))
        started.engine.executor.close()
    machine = look_at_machine()  # again: it tells the threads that the engine uses
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in [
        *machine_lines(machine),
        *model_lines(started, options),
        *budget_lines(started.budget, options),
        *disk_lines(options, namespace_of(started.fingerprint)),
        *packed_lines_of(started, options),
    ]:
        table.add_row(f"[bold]{name}[/]", text)
    console.print(table)
    for line in advice(started, options, machine):
        console.print(f"- {line}", markup=False)


def machine_lines(machine: Machine) -> list[tuple[str, str]]:
    """The processor and the memory."""
    return [
        ("processor", f"{machine.cpu}, {machine.cores} cores for this process, {machine.threads} threads"),
        ("instructions", f"{machine.chosen} kernels chosen ({', '.join(machine.usable)} run here)"),
        (
            "memory",
            f"{format_bytes(machine.memory_total)}, {format_bytes(machine.memory_available)} available now",
        ),
    ]


def model_lines(started: Started, options: StartOptions) -> list[tuple[str, str]]:
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


def weights_in_words(weights: ModelWeights, mode: str) -> str:
    """ "92.5 MiB with --weights auto: Q4_1 63.3 MiB, Q8_0 29.2 MiB"."""
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in weights.bytes_by_kind.items())
    return f"{format_bytes(weights.num_bytes)} with --weights {mode}: {kinds}"


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


def packed_lines_of(started: Started, options: StartOptions) -> list[tuple[str, str]]:
    """What is kept of packed weights; nothing for a backend that keeps none."""
    packed = packed_folder(replace(options, packed_cache=started.backend.name == "native"), started.backend)
    if packed is None:
        return []
    own = packed.path_of(started.loaded.model.fingerprint)
    return packed_lines(packed.folder, own, options.packed_cache)


def advice(started: Started, options: StartOptions, machine: Machine) -> list[str]:
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
    if machine.chosen == "portable":
        lines.append(
            "only portable kernels run here: no AVX2 or AVX-512 was found, so expect a fraction of the speed."
        )
    if options.threads is not None and options.threads > machine.cores:
        lines.append(
            f"--threads {options.threads} is more than the {machine.cores} cores of this process: slower."
        )
    if options.host_cache_bytes:
        lines.append("--host-cache is slower here than the same memory in --kv-memory: both are host memory.")
    if options.backend == "reference":
        lines.append("the reference backend is the specification in NumPy; use --backend native to serve.")
    return lines
