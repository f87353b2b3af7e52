"""`octavo plan --what-if NAME=VALUE`: a server that differs from the calibrated one in one setting.

A change that needs times the calibration lacks is refused; the message has the command that measures them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from octavo.bench.calibration import Calibration
from octavo.engine.scheduler_setup import TierSetup
from octavo.errors import ConfigError, shown
from octavo.tenants import read_tenants
from octavo.units import parse_bytes

BLOCKS_MAX, ROWS_MAX, STEP_TOKENS_MAX = 10_000_000, 4096, 65_536
_PAGE = 4096  # a slot on disk has whole pages


def apply_change(calibration: Calibration, text: str) -> Calibration:
    """The calibration with that change. Raises ConfigError."""
    name, _, value = text.partition("=")
    if (change := CHANGES.get(name)) is None:
        raise ConfigError(
            f"--what-if is {shown(text)}; allowed: {', '.join(f'{one}=VALUE' for one in CHANGES)}, such as "
            "kv_memory=2x, max_seqs=32 or disk_size=off; for other settings calibrate with them"
        )
    return change(calibration, text, value)


def _with_kv_memory(calibration: Calibration, text: str, value: str) -> Calibration:
    setup = calibration.setup
    blocks = _blocks(text, value, setup.num_blocks, max(1, setup.config.bytes_per_block))
    return replace(calibration, setup=replace(setup, num_blocks=blocks, capacity=blocks))


def _with_max_seqs(calibration: Calibration, text: str, value: str) -> Calibration:
    config = dataclasses.replace(calibration.setup.config, max_rows=_count(text, value, ROWS_MAX))
    return replace(calibration, setup=replace(calibration.setup, config=config))


def _with_step_tokens(calibration: Calibration, text: str, value: str) -> Calibration:
    config = dataclasses.replace(calibration.setup.config, step_tokens=_count(text, value, STEP_TOKENS_MAX))
    return replace(calibration, setup=replace(calibration.setup, config=config))


def _with_host_cache(calibration: Calibration, text: str, value: str) -> Calibration:
    per_block = max(1, calibration.setup.config.bytes_per_block)
    host, disk = _slots(calibration.tier)
    if value != "off":
        _check_measured(calibration, text, "host", "--host-cache SIZE")
    return _with_slots(calibration, 0 if value == "off" else _blocks(text, value, host, per_block), disk)


def _with_disk_size(calibration: Calibration, text: str, value: str) -> Calibration:
    per_slot = -(-max(1, calibration.setup.config.bytes_per_block) // _PAGE) * _PAGE
    host, disk = _slots(calibration.tier)
    if value != "off":
        _check_measured(calibration, text, "disk", "--disk-cache FOLDER")
    return _with_slots(calibration, host, 0 if value == "off" else _blocks(text, value, disk, per_slot))


def _with_tenants(calibration: Calibration, text: str, value: str) -> Calibration:
    policies = read_tenants(Path(value)).policies(calibration.setup.config.bytes_per_block)
    return replace(calibration, tenants=policies)


CHANGES: dict[str, Callable[[Calibration, str, str], Calibration]] = {
    "kv_memory": _with_kv_memory,
    "max_seqs": _with_max_seqs,
    "step_tokens": _with_step_tokens,
    "host_cache": _with_host_cache,
    "disk_size": _with_disk_size,
    "tenants": _with_tenants,
}


def _slots(tier: TierSetup | None) -> tuple[int, int]:
    """Slots in host memory, and on disk."""
    return (0, 0) if tier is None else (tier.num_host, tier.num_slots - tier.num_host)


def _with_slots(calibration: Calibration, host: int, disk: int) -> Calibration:
    """The calibration with tiers of these sizes. Without tiers no blocks are used for staging."""
    tier, setup = calibration.tier, calibration.setup
    if host + disk == 0:
        config = dataclasses.replace(setup.config, staging_blocks=0)
        return replace(calibration, tier=None, setup=replace(setup, config=config))
    assert tier is not None, "a calibration with measured transfers has a tier"
    is_read = tier.num_readable > 0  # attention can read all slots, or those in host memory
    readable = 0 if not is_read else host + disk if tier.num_readable == tier.num_slots else host
    return replace(
        calibration, tier=replace(tier, num_slots=host + disk, num_host=host, num_readable=readable)
    )


def _check_measured(calibration: Calibration, text: str, place: str, flag: str) -> None:
    # With both tiers, blocks move to the disk from host memory.
    ways = {f"store {place}", f"move {place}"}
    if f"load {place}" not in calibration.moves or not ways & calibration.moves.keys():
        raise ConfigError(
            f"--what-if is {shown(text)}, and the calibration has no transfer times of "
            f"{'host memory' if place == 'host' else 'a disk'}; allowed: with a calibration that has them "
            f"(octavo bench calibrate {flag}, and octavo plan with the same)"
        )


def _blocks(text: str, value: str, now: int, per_block: int) -> int:
    """The number of blocks that "2x" or a size means."""
    if value.endswith("x"):
        blocks = round(now * _number(text, value[:-1]))
    else:
        blocks = parse_bytes(value, f"--what-if {text.partition('=')[0]}") // per_block
    if not 1 <= blocks <= BLOCKS_MAX:
        raise ConfigError(
            f"--what-if {text} comes to {blocks:,} blocks; allowed: 1 to {BLOCKS_MAX:,}, of {per_block:,} "
            "bytes each"
        )
    return blocks


def _count(text: str, value: str, most: int) -> int:
    count = _number(text, value)
    if count != int(count) or not 1 <= count <= most:
        raise ConfigError(f"--what-if is {shown(text)}; allowed: a whole number from 1 to {most:,}")
    return int(count)


def _number(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1e6:
        raise ConfigError(f"--what-if is {shown(text)}; allowed: a number above 0 after the =")
    return number
