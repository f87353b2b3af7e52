"""The reason that a sequence waits, as of its last examination, with its numbers."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WaitReason(enum.StrEnum):
    """The condition that keeps a waiting sequence out."""

    QUEUED = "queued"  # behind others, and not examined yet
    ROWS = "rows"  # all rows are in use
    BLOCKS = "blocks"  # too few blocks are available
    STEP_TOKENS = "step_tokens"  # prompts before it use all positions of a step
    TARGET = "target"  # one more sequence would exceed the target for inter-token latency
    FOLLOWS = "follows"  # a running sequence computes the prefix that it needs
    LOADING = "loading"  # its blocks are being loaded from an offload tier
    SLOTS = "slots"  # cold blocks of others fill the offload tier
    QUOTA = "quota"  # its tenant is at its maximum of blocks
    TENANT_RUNNING = "tenant_running"  # its tenant is at its maximum of running requests
    IN_FLIGHT = "in_flight"  # preempted while a step ran, whose sample comes first


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason and its numbers; the reason decides which of them have a meaning."""

    reason: WaitReason
    needed: int = 0
    available: int = 0
    promised: int = 0
    request_id: int | None = None

    def in_words_of(self, tenant: str) -> str:
        """As `in_words`, for a tenant, without numbers and ids of others; "" is the operator."""
        return _OWN_WORDS.get(self.reason, self.in_words()) if tenant else self.in_words()

    def in_words(self) -> str:
        """One clause for a person."""
        match self.reason:
            case WaitReason.QUEUED:
                return "others stand before it in the queue"
            case WaitReason.ROWS:
                return f"needs {self.needed} rows, {self.available} free (setting max_seqs)"
            case WaitReason.BLOCKS:
                return (
                    f"needs {self.needed:,} blocks, {self.available:,} unheld, of which {self.promised:,} "
                    "are promised to running sequences"
                )
            case WaitReason.SLOTS:
                return (
                    f"needs {self.needed:,} more slots in the offload tier than sequences with cold blocks "
                    "leave (settings host_cache, disk_size)"
                )
            case WaitReason.QUOTA:
                return (
                    f"needs {self.needed:,} blocks, and its tenant may hold {self.available:,} more "
                    "(maximum of the tenant)"
                )
            case WaitReason.TENANT_RUNNING:
                return f"{self.available:,} requests of its tenant run already (max_running of the tenant)"
            case WaitReason.STEP_TOKENS:
                return "prompts that rank before it use the positions of every step (setting step_tokens)"
            case WaitReason.TARGET:
                return (
                    "a step with one more sequence would be longer than tokens may take (setting target_itl)"
                )
            case WaitReason.FOLLOWS:
                return f"request {self.request_id} is computing the prefix that it needs"
            case WaitReason.LOADING:
                return "its blocks are being loaded from an offload tier"
            case WaitReason.IN_FLIGHT:
                return "it was preempted while a step ran, and waits for that step's token"


@dataclass(slots=True, eq=False)
class QueueState:
    """The scheduler's notes on a waiting sequence."""

    wait: Wait  # as of the last examination
    bypassed: int = 0  # admissions past it since it became the head of the queue
    num_cold: int = 0  # hits that would be cold
    awaited: bytes | None = None  # name of the last block that a running sequence then computed for it


# Texts without numbers or ids of others.
_OWN_WORDS = {
    WaitReason.ROWS: "as many sequences run as may (setting max_seqs)",
    WaitReason.BLOCKS: "too few blocks are unheld for it",
    WaitReason.SLOTS: "too few slots of the offload tier are left for it",
    WaitReason.FOLLOWS: "the prefix that it needs is being computed",
}
QUEUED = Wait(WaitReason.QUEUED)
IN_FLIGHT = Wait(WaitReason.IN_FLIGHT)
LOADING = Wait(WaitReason.LOADING)
STEP_TOKENS = Wait(WaitReason.STEP_TOKENS)
TARGET = Wait(WaitReason.TARGET)
