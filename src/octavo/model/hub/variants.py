"""The GGUF files of a repository or a folder: which ones form a set, their quantisation, and which is meant.

    bartowski/X-GGUF    X-Q4_K_M.gguf                                  ->  "Q4_K_M", one file
                        X-Q8_0/X-Q8_0-00001-of-00002.gguf (and 00002)  ->  "Q8_0", two parts
                        X-bf16.gguf                                    ->  "BF16"
                        mmproj-X-f16.gguf, X.imatrix.gguf              ->  no model; named by file alone

It knows names and sizes alone, and opens no file. A file's quantisation is read from its name, which by
common convention contains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from octavo.errors import ModelNotFound, UnsupportedModel, shown
from octavo.model.files.gguf_split import parse_part_name
from octavo.model.files.safetensors_file import INDEX_NAME, SINGLE_NAME
from octavo.units import format_bytes

# The order of choice if none is named: the most common first, then those near it in size.
DEFAULT_ORDER = (
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0"),
    *("Q6_K", "Q8_0", "Q3_K_M", "BF16", "F16", "F32"),
)
_LISTED_MAX = 40
_KINDS = r"I?Q\d_K(?:_(?:XXS|XS|S|M|L|XL))?|I?Q\d(?:_\d){1,3}|IQ\d_(?:XXS|XS|S|M|NL|XL)(?:_\d_\d)?|TQ\d_0"
_QUANT = re.compile(
    rf"(?<![A-Za-z0-9])(?:UD-)?(?:{_KINDS}|BF16|FP?16|FP?32|MXFP4(?:_MOE)?)(?![A-Za-z0-9])", re.IGNORECASE
)
_NO_MODEL = re.compile(r"(?<![a-z])(?:mmproj|imatrix)(?![a-z])")


@dataclass(frozen=True, slots=True)
class GgufSet:
    """One model: its file, or its parts in their order. Names are paths inside the repository or folder."""

    names: tuple[str, ...]
    num_bytes: int
    quant: str | None  # "Q4_K_M"; None: not in the name
    num_parts: int  # of the complete set

    @property
    def is_complete(self) -> bool:
        """No part is missing."""
        return len(self.names) == self.num_parts

    @property
    def label(self) -> str:
        """The variant's name in messages."""
        return self.quant or self.names[0]


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The chosen set, and the reason for the choice: "" if there was only one."""

    chosen: GgufSet
    why: str


def pick(files: Mapping[str, int], wanted: str | None, where: str) -> VariantChoice | None:
    """The GGUF set that is meant among files (path to bytes); None: the safetensors are meant.

    Raises ModelNotFound, which lists the choices, and UnsupportedModel (pickled weights only).
    """
    has_safetensors = any(name in files for name in (SINGLE_NAME, INDEX_NAME))
    if wanted is None and has_safetensors:
        return None
    sets = gguf_sets(files)
    if sets:
        choice = choose(sets, wanted, where)
        one = choice.chosen
        if not one.is_complete:
            parts = f"{len(one.names)} of the {one.num_parts} parts of {one.names[0]}"
            raise ModelNotFound(f"{where} has {parts}; allowed: all of them, in one folder")
        return choice
    if has_safetensors:
        raise ModelNotFound(
            f"{where} has no GGUF file for {shown(wanted)}: its safetensors are one model; leave out what"
            " follows the colon, and --file (--weights q4 or int8 makes it smaller)"
        )
    if any(name.endswith((".bin", ".pt", ".pth")) for name in files):
        raise UnsupportedModel(
            f"{where} holds pickled weights only, which can run code when read; allowed: safetensors or GGUF"
        )
    raise ModelNotFound(f"{where} holds neither {SINGLE_NAME}, nor its index, nor a .gguf file")


def gguf_sets(files: Mapping[str, int]) -> tuple[GgufSet, ...]:
    """The sets among files (path to bytes), in the order of their names."""
    parts: dict[tuple[str, int], list[str]] = {}
    for name in sorted(files):
        folder, _, base = name.rpartition("/")
        part = parse_part_name(base)
        if part is not None:
            parts.setdefault((f"{folder}/{part.stem}", part.count), []).append(name)
        elif base.lower().endswith(".gguf"):
            parts[name, 1] = [name]
    return tuple(
        GgufSet(tuple(names), sum(files[name] for name in names), _quant_of_model(names[0]), count)
        for (_, count), names in parts.items()
    )


def quant_of(name: str) -> str | None:
    """ "Q4_K_M" of "X-q4_k_m-00001-of-00002.gguf": the last one in the file's name, else in its folder's."""
    for part in reversed(name.split("/")):
        found = _QUANT.findall(part)
        if found:
            return re.sub(r"\AFP(?=\d)", "F", found[-1].upper())
    return None


def choose(sets: Sequence[GgufSet], wanted: str | None, where: str) -> VariantChoice:
    """The set that `wanted` names by quantisation or file; None: the usual one.

    `where` is the repository or folder, for messages. Raises ModelNotFound, which lists the choices.
    """
    if wanted is not None and wanted.lower().endswith(".gguf"):
        return VariantChoice(_by_file(sets, wanted, where), "")
    models = [each for each in sets if not _NO_MODEL.search(_base(each.names[0]))]
    if not models:
        raise ModelNotFound(f"{where} has no GGUF file" + (f" for {shown(wanted)}" if wanted else ""))
    if wanted is not None:
        return VariantChoice(_only(_by_quant(models, wanted), models, f"for {shown(wanted)}", where), "")
    if len(models) == 1:
        return VariantChoice(models[0], "")
    for quant in DEFAULT_ORDER:
        found = [each for each in models if each.quant == quant]
        if found:
            chosen = _only(found, models, f"of {quant}", where)
            return VariantChoice(chosen, f"the first of {', '.join(DEFAULT_ORDER[:4])}, ... that is there")
    raise ModelNotFound(f"{where} has {len(models)} .gguf files; name one of them: {listing(models)}")


def listing(sets: Iterable[GgufSet]) -> str:
    """ "Q4_K_M (4.4 GiB), Q8_0 (7.9 GiB)"; files by name if their quantisation is not unique."""
    every = list(sets)
    quants = [each.quant for each in every]
    words = []
    for each in every[:_LISTED_MAX]:
        unique = each.quant is not None and quants.count(each.quant) == 1
        words.append(f"{each.quant if unique else each.names[0]} ({format_bytes(each.num_bytes)})")
    more = len(every) - _LISTED_MAX
    return ", ".join(words) + (f" and {more:,} more" if more > 0 else "")


def _base(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _quant_of_model(name: str) -> str | None:
    """None for a projector or an importance matrix, which are no quantisations of the model."""
    return None if _NO_MODEL.search(_base(name)) else quant_of(name)


def _by_file(sets: Sequence[GgufSet], wanted: str, where: str) -> GgufSet:
    """The set that holds the file of that path, or of that name in any folder."""
    exact = [each for each in sets if wanted in each.names]
    ends = [each for each in sets if any(name.rpartition("/")[2] == wanted for name in each.names)]
    return _only(exact or ends, sets, f"of the name {shown(wanted)}", where)


def _by_quant(models: Sequence[GgufSet], wanted: str) -> list[GgufSet]:
    """The sets of that quantisation; else those whose name contains it as a word."""
    upper = wanted.upper()
    found = [each for each in models if each.quant == upper]
    found = found or [each for each in models if each.quant == f"UD-{upper}"]
    word = re.compile(rf"(?<![A-Z0-9]){re.escape(upper)}(?![A-Z0-9_])")
    return found or [each for each in models if word.search(each.names[0].upper())]


def _only(found: Sequence[GgufSet], among: Sequence[GgufSet], what: str, where: str) -> GgufSet:
    """The only one found. Raises ModelNotFound for none and for several."""
    if not found:
        raise ModelNotFound(f"{where} has no GGUF file {what}; allowed: {listing(among) or 'none'}")
    if len(found) > 1:
        names = ", ".join(f"{each.names[0]} ({format_bytes(each.num_bytes)})" for each in found[:_LISTED_MAX])
        raise ModelNotFound(f"{where} has {len(found)} GGUF files {what}; name one with --file: {names}")
    return found[0]
