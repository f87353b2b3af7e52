"""`octavo doctor` before loading: whether the model runs and fits, how fast, and which settings would help.

    headers -> measured weights -> Fit -> lines        the same for other settings -> advice

It reads (or fetches, from a remote repository) only headers and configurations, so it takes about a second
for files of any size.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from octavo.cli.flags import SettingOrigin
from octavo.cli.terminal import probe_machine, show_progress, write
from octavo.config import StartOptions
from octavo.engine.backends import BackendChoice
from octavo.engine.windows import waste_in_words, window_waste
from octavo.errors import ModelError
from octavo.kernels.probe import Machine, measure_read
from octavo.model.hub.headers import fetch_headers
from octavo.model.hub.paths import ModelPath, resolve
from octavo.model.loader import OpenedFiles
from octavo.model.model_check import ModelCheck, check_model
from octavo.model.quantised.source import DequantisedFiles
from octavo.model.spec import ModelWeights
from octavo.model.weight_sizes import INT8_COST, measure_model
from octavo.serving.fit import Fit, fit_of
from octavo.serving.start import USER_TOKENS
from octavo.text.chat import FITS_NO_FORMAT
from octavo.units import blocks_for, format_bytes

Lines = list[tuple[str, str]]
CONTEXT_MIN = 2048  # shorter contexts are not suggested
_INT8 = "--weights int8"
Alternatives = Sequence[tuple[str, Fit]]  # flags, and the fit with them


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The problems that prevent the model from running, or its fit."""

    name: str
    checked: ModelCheck
    lines: Lines
    fit: Fit | None = None
    bytes_per_s: float = 0.0
    alternatives: Alternatives = ()
    advice: Sequence[str] = ()

    @property
    def runs(self) -> bool:
        """Whether all of it is supported."""
        return self.fit is not None

    @property
    def fits(self) -> bool:
        """Whether it runs and there is enough memory."""
        return self.fit is not None and self.fit.fits


def diagnose(
    model: str | None,
    options: StartOptions,
    choice: BackendChoice,
    origins: Sequence[SettingOrigin] = (),
    *,
    as_json: bool = False,
) -> bool:
    """Print the diagnosis for a backend of the processor; returns whether the model runs and fits. Raises
    ModelNotFound, ConfigError."""
    with show_progress() as report, tempfile.TemporaryDirectory(prefix="octavo-headers-") as folder:
        path = resolve(model, report, partial(fetch_headers, Path(folder)))
        report("reading headers, and measuring the memory's bandwidth")
        found = diagnose_files(path, options, choice, measure_read)
    if as_json:
        write(json.dumps(diagnosis_json(found) | {"given": settings_json(origins)}, indent=2) + "\n")
        return found.runs and found.fits
    machine = probe_machine()
    where = f"{choice.backend.name} on {choice.backend.device}: {choice.reason}"
    lines = [*machine_lines(machine), *settings_lines(origins), ("backend", where)]
    print_lines([*lines, *found.lines], [*found.advice, *machine_advice(options, machine)])
    return found.runs and found.fits


def print_lines(lines: Lines, advice: Sequence[str]) -> None:
    """Print names with their texts, then the advice."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in lines:
        table.add_row(f"[bold]{name}[/]", escape(text))
    console = Console(highlight=False)
    console.print(table)
    for line in advice:
        console.print(f"- {line}", markup=False)


def diagnose_files(
    path: ModelPath, options: StartOptions, choice: BackendChoice, bandwidth: Callable[[], float]
) -> Diagnosis:
    """The diagnosis of a model's files. Raises ConfigError."""
    checked = check_model(path, options.weights, options.context_length)
    if checked.problems or checked.opened is None or checked.measured is None:
        parts = ", ".join(dict.fromkeys(problem.part for problem in checked.problems))
        problems = [(problem.part, problem.text) for problem in checked.problems]
        return Diagnosis(path.name, checked, [("runs", f"no, because of its {parts}"), *problems])
    fit = fit_of(checked.measured, choice.backend, options, choice.backend.memory_available())
    speed = bandwidth()
    lines = [
        ("runs", "yes"),
        ("fits", describe_fit(fit)),
        *model_lines(checked, checked.opened, fit),
        *memory_lines(fit, speed),
    ]
    alternatives = [
        (flags, other)
        for flags, other in _fits_with_changes(checked.opened, fit, choice)
        if _is_better(fit, other)
    ]
    return Diagnosis(
        path.name,
        checked,
        lines,
        fit,
        speed,
        alternatives,
        [
            *_vocabulary_doubts(checked),
            *_template_advice(checked, options),
            *advice_of_fit(fit, alternatives, speed),
        ],
    )


def _vocabulary_doubts(checked: ModelCheck) -> list[str]:
    return [checked.vocabulary.doubt] if checked.vocabulary and checked.vocabulary.doubt else []


def _template_advice(checked: ModelCheck, options: StartOptions) -> list[str]:
    vocabulary = checked.vocabulary
    if vocabulary is None or options.chat_template is not None:
        return []
    if vocabulary.template is not None:
        is_given = options.tool_parser is not None
        return [FITS_NO_FORMAT] if not is_given and vocabulary.template.fits_no_format else []
    return [
        "the files have no chat template: chats are refused, unless --chat-template FILE or NAME gives one"
    ]


def machine_lines(machine: Machine) -> Lines:
    """Lines about the processor and the memory."""
    return [
        ("processor", f"{machine.cpu}, {machine.cores} cores for this process, {machine.threads} threads"),
        ("instructions", f"{machine.chosen} kernels chosen ({', '.join(machine.usable)} run here)"),
        (
            "memory",
            f"{format_bytes(machine.memory_total)}, {format_bytes(machine.memory_available)} available now",
        ),
    ]


def settings_lines(origins: Sequence[SettingOrigin]) -> Lines:
    """Lines about the settings that were given, and their sources."""
    texts = [
        f"{each.setting.name} is {each.setting.in_words(each.value)} ({each.source})" for each in origins
    ]
    return [("" if place else "given", text) for place, text in enumerate(texts)]


def settings_json(origins: Sequence[SettingOrigin]) -> dict[str, object]:
    """The given settings and their sources as values."""
    return {each.setting.name: {"value": each.value, "source": each.source} for each in origins}


def machine_advice(options: StartOptions, machine: Machine) -> list[str]:
    """Reasons why any model is slow here."""
    lines = []
    if machine.chosen == "portable":
        lines.append(
            "only portable kernels run here, without AVX2 or AVX-512: expect a fraction of the speed."
        )
    if options.threads is not None and options.threads > machine.cores:
        lines.append(
            f"--threads {options.threads} is more than the {machine.cores} cores of this process: slower."
        )
    return lines


def describe_weights(weights: ModelWeights, mode: str) -> str:
    """ "92.5 MiB with --weights auto: Q4_1 63.3 MiB, Q8_0 29.2 MiB"."""
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in weights.bytes_by_kind.items())
    return f"{format_bytes(weights.num_bytes)} with --weights {mode}: {kinds}"


def describe_fit(fit: Fit) -> str:
    """Whether the model fits, with sizes."""
    sizes = f"{format_bytes(fit.needed)} needed, {format_bytes(fit.available)} available now"
    what = "weights and the pool" if fit.options.kv_memory_bytes else "weights and one user"
    if fit.is_loading_the_most:
        what = "weights, and the file's largest tensor while they load"
    return f"{'yes' if fit.fits else 'no'}: {what}, {sizes}"


def model_lines(checked: ModelCheck, opened: OpenedFiles, fit: Fit) -> Lines:
    """Lines about the model, its files and its weights."""
    model, source = fit.model, opened.source
    spec = model.spec
    lines = [
        (
            "model",
            f"{model.name}: family {spec.family}, {model.weights.num_parameters / 1e9:.2f} billion "
            f"parameters, {spec.num_layers} layers, vocabulary {spec.vocab_size:,}, "
            f"context {spec.context_length:,} tokens",
        ),
        ("files", ", ".join(f"{kind} {format_bytes(size)}" for kind, size in checked.stored.items())),
        ("weights", describe_weights(model.weights, fit.options.weights)),
        (
            "loading",
            f"reads {format_bytes(model.file_bytes)}, and needs memory for one tensor of the file at a time "
            f"besides the weights: at most {format_bytes(model.largest_tensor_bytes)}",
        ),
    ]
    if isinstance(source, DequantisedFiles):
        lines.insert(2, ("quantised", source.in_words()))
    if checked.vocabulary is not None:
        vocabulary = checked.vocabulary
        template = "no chat template" if vocabulary.template is None else vocabulary.template.in_words()
        lines.append(("tokenizer", f"{vocabulary.name}, {vocabulary.size:,} tokens; {template}"))
    return lines


def memory_lines(fit: Fit, bytes_per_s: float) -> Lines:
    """Lines about KV, blocks, users and speed."""
    model, spec = fit.model, fit.model.spec
    lines = [
        (
            "KV",
            f"{spec.num_layers} layers, {spec.num_kv_heads} KV heads of {spec.head_size}, held as "
            f"{fit.options.kv}; {format_bytes(fit.bytes_per_block)} per block, "
            f"{format_bytes(fit.bytes_per_token)} per token",
        )
    ]
    if fit.budget is None:
        lines.append(("blocks", f"none: {fit.refusal}"))
    else:
        lines += [
            ("blocks", fit.budget.in_words()),
            ("why", fit.budget.reason),
            ("users", describe_users(fit)),
        ]
    if fit.budget is not None:
        lines.append(("longest", describe_longest(fit)))
    waste = window_waste(spec, fit.bytes_per_token)
    if waste is not None:
        lines.append(("windows", waste_in_words(spec, waste)))
    experts = "" if spec.routing is None else f" ({spec.routing.top_k} of {spec.num_experts} experts)"
    lines.append(
        (
            "speed",
            f"at most {fit.tokens_per_s(bytes_per_s):,.1f} tokens/s for one user: a token reads "
            f"{format_bytes(model.bytes_read_for_a_token)} of weights{experts}, at "
            f"{format_bytes(bytes_per_s)}/s (measured now); {describe_speed_in_context(fit, bytes_per_s)}",
        )
    )
    return lines


def describe_longest(fit: Fit) -> str:
    """ "2,736 tokens in the pool; 8,192 with --disk-cache FOLDER, 5,456 of them cold: each token reads their
    234 MiB there, ..."."""
    assert fit.budget is not None
    context, size = fit.model.spec.context_length, fit.options.block_size
    hot = min(context, fit.budget.num_blocks * size)
    if hot == context:
        return f"the whole context of {context:,} tokens fits the pool"
    options = fit.options
    slots = (options.host_cache_bytes + options.disk_size_bytes) // fit.bytes_per_block
    cold = min(context - hot, slots * size)
    tiers = "the offload tiers" if options.disk_cache or options.host_cache_bytes else "--disk-cache FOLDER"
    read = fit.kv_read(cold)
    return (
        f"{hot:,} tokens in the pool; {hot + cold:,} with {tiers}, {cold:,} of them cold: each token reads "
        f"their {format_bytes(read)} there, so {1e9 / max(1, read):,.1f} tokens/s per GB/s of the device"
    )


def describe_speed_in_context(fit: Fit, bytes_per_s: float) -> str:
    """ "at most 31.2 with 3,000 tokens in context, of which it also reads 422 MiB of K and V"."""
    tokens = min(USER_TOKENS, fit.model.spec.context_length)
    return (
        f"at most {_tokens_per_s_in_context(fit, bytes_per_s):,.1f} with {tokens:,} tokens in context, of "
        f"which it also reads {format_bytes(fit.kv_read(tokens))} of K and V"
    )


def _tokens_per_s_in_context(fit: Fit, bytes_per_s: float) -> float:
    """Tokens per second with a user's conversation in context."""
    return fit.tokens_per_s(bytes_per_s, min(USER_TOKENS, fit.model.spec.context_length))


def describe_users(fit: Fit) -> str:
    """ "21 of 3,000 tokens at once, 5 of the whole context of 8,192"."""
    context = fit.model.spec.context_length
    whole = f"{fit.users(context):,} of the whole context of {context:,}"
    if context <= USER_TOKENS:
        return f"{whole} at once"
    return f"{fit.users(USER_TOKENS):,} of {USER_TOKENS:,} tokens at once, {whole}"


def advice_of_fit(fit: Fit, alternatives: Alternatives, bytes_per_s: float) -> list[str]:
    """Settings with which the model fits, is faster, or serves more users."""
    lines = []
    for flags, other in alternatives:
        verb = "" if fit.fits == other.fits else " it fits;" if other.fits else " it does not fit;"
        in_context = _tokens_per_s_in_context(other, bytes_per_s)
        lines.append(
            f"{flags}:{verb} weights {format_bytes(other.model.weights.num_bytes)}, "
            f"{format_bytes(other.bytes_per_token)} of KV per token, {describe_users(other)}, at most "
            f"{other.tokens_per_s(bytes_per_s):,.1f} tokens/s, {in_context:,.1f} in context"
            f"{f'; {INT8_COST}' if flags == _INT8 else ''}"
        )
    if not fit.fits and not any(other.fits for _, other in alternatives):
        lines.append("it fits with none of these: use a smaller model, or a machine with more memory")
    return lines


def _fits_with_changes(opened: OpenedFiles, fit: Fit, choice: BackendChoice) -> Iterator[tuple[str, Fit]]:
    """The fits of other settings that the files allow."""
    for flags, changed in _changes(fit):
        other = _fit_with(opened, choice, fit, changed)
        if other is not None:
            yield flags, other


def _fit_with(opened: OpenedFiles, choice: BackendChoice, fit: Fit, changed: StartOptions) -> Fit | None:
    """The fit with other settings; None if the files do not allow them."""
    now = fit.options
    try:
        if (changed.weights, changed.context_length) == (now.weights, now.context_length):
            model = fit.model
        else:
            model = measure_model(opened, changed.weights, changed.context_length)
    except ModelError:
        return None
    return fit_of(model, choice.backend, changed, fit.available)


def _changes(fit: Fit) -> list[tuple[str, StartOptions]]:
    """Other settings, as flags and as options: fewer bits of weights, of KV, of both, a shorter context."""
    now = fit.options
    changes = []
    if fit.model.weights.main_kind == "BF16":
        changes.append((_INT8, replace(now, weights="int8")))
    if now.weights != "q4":
        changes.append(("--weights q4", replace(now, weights="q4")))
    if now.kv != "int8":
        changes.append(("--kv int8", replace(now, kv="int8")))
    if now.weights != "q4" and now.kv != "int8" and not fit.fits:
        changes.append(("--weights q4 --kv int8", replace(now, weights="q4", kv="int8")))
    context, block_size = fit.model.spec.context_length, now.block_size
    if fit.budget is None or fit.users(context) > 0:
        return changes
    wanted = [blocks_for(tokens, block_size) for tokens in (context, min(context, USER_TOKENS))]
    enough = next(
        (blocks for blocks in wanted if fit.budget.num_blocks < blocks <= fit.budget.capacity), None
    )
    if enough is not None:
        mebibytes = -(-enough * fit.bytes_per_block // 2**20)
        changes.append((f"--kv-memory {mebibytes}MiB", replace(now, kv_memory_bytes=mebibytes * 2**20)))
    tokens = fit.budget.num_blocks * block_size
    shorter = 1 << (tokens.bit_length() - 1)
    if CONTEXT_MIN <= shorter < context:
        changes.append((f"--context-length {shorter}", replace(now, context_length=shorter)))
    return changes


def _is_better(fit: Fit, other: Fit) -> bool:
    """Whether other settings need less memory, or serve more users."""
    if other.options.weights != fit.options.weights and other.model.num_bytes >= fit.model.num_bytes:
        return False  # the weights already have no more bits
    saves = other.model.num_bytes < fit.model.num_bytes or other.bytes_per_block < fit.bytes_per_block
    context, other_context = fit.model.spec.context_length, other.model.spec.context_length
    return (
        saves
        or other.users(other_context) > fit.users(context)
        or other.users(USER_TOKENS) > fit.users(USER_TOKENS)
    )


def diagnosis_json(found: Diagnosis) -> dict[str, object]:
    """The diagnosis as values; sizes are in bytes, speeds are upper bounds for one user."""
    fit, vocabulary = found.fit, found.checked.vocabulary
    return {
        "model": found.name,
        "runs": found.runs,
        "fits": found.fits,
        "problems": [{"part": problem.part, "text": problem.text} for problem in found.checked.problems],
        "has_chat_template": vocabulary is not None and vocabulary.template is not None,
        "bytes_by_stored_kind": dict(found.checked.stored),
        "read_bytes_per_s": found.bytes_per_s,
        "settings": None if fit is None else _fit_json(fit, found.bytes_per_s),
        "others": [
            {"flags": flags} | _fit_json(other, found.bytes_per_s) for flags, other in found.alternatives
        ],
    }


def _fit_json(fit: Fit, bytes_per_s: float) -> dict[str, object]:
    waste = window_waste(fit.model.spec, fit.bytes_per_token)
    return {
        "weights": fit.options.weights,
        "kv": fit.options.kv,
        "context_length": fit.model.spec.context_length,
        "fits": fit.fits,
        "needed_bytes": fit.needed,
        "available_bytes": fit.available,
        "weight_bytes_by_kind": fit.model.weights.bytes_by_kind,
        "table_bytes": fit.model.table_bytes,
        "kv_bytes_per_token": fit.bytes_per_token,
        "blocks": 0 if fit.budget is None else fit.budget.num_blocks,
        "users": fit.users(USER_TOKENS),
        "user_tokens": USER_TOKENS,
        "tokens_per_s": fit.tokens_per_s(bytes_per_s),
        "tokens_per_s_in_context": _tokens_per_s_in_context(fit, bytes_per_s),
        "window_waste_bytes": 0 if waste is None else waste.num_bytes,
    }
