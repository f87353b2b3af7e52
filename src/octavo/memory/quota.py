"""What a tenant may have: the bounds that the ledger and the scheduler keep. Values only."""

from __future__ import annotations

from dataclasses import dataclass

SHARED = "shared"  # the tenant to whom prefixes belong that the operator shares with all


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """One tenant's part of the house. None: no bound of its own."""

    name: str
    weight: float = 1.0  # of its share of service, above 0
    guaranteed: int = 0  # blocks that are its own whenever it wants them, and lent while it does not
    maximum: int | None = None  # blocks that it may hold at once
    request_maximum: int | None = None  # blocks that one of its requests may need
    session_maximum: int | None = None  # blocks that one of its sessions may keep
    disk_maximum: int | None = None  # slots that its blocks may take in the tier below
    max_running: int | None = None  # requests that run at once
    max_waiting: int | None = None  # requests that wait at once
