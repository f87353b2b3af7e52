"""Why a sequence waits: the reason that the scheduler found when it last looked, with its numbers."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WaitReason(enum.StrEnum):
    """What keeps a waiting sequence out."""

    QUEUED = "queued"  # others stand before it, and it has not been looked at
    ROWS = "rows"  # as many sequences run as may
    BLOCKS = "blocks"  # too few blocks are unheld
    STEP_TOKENS = "step_tokens"  # prompts before it use all positions of a step
    TARGET = "target"  # a step with one more would take longer than the target for tokens' time
    FOLLOWS = "follows"  # a running sequence is computing the prefix that it needs
    LOADING = "loading"  # its blocks are on their way from the tier below
    SLOTS = "slots"  # cold blocks of others take the slots that it needs in the offload tier
    QUOTA = "quota"  # its tenant holds as many blocks as it may
    TENANT_RUNNING = "tenant_running"  # as many of its tenant's requests run as may
    IN_FLIGHT = "in_flight"  # it was preempted while a step ran, whose sample comes first


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason and its numbers; which of them mean something depends on the reason."""

    reason: WaitReason
    needed: int = 0
    available: int = 0
    promised: int = 0
    request_id: int | None = None

    def in_words_of(self, tenant: str) -> str:
        """The same for a tenant, who is told no number and no id of others; "" is the operator's."""
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
                return "its blocks are being loaded from the tier below"
            case WaitReason.IN_FLIGHT:
                return "it was preempted while a step ran, and waits for that step's token"


@dataclass(slots=True, eq=False)
class QueueState:
    """What the scheduler knows of a sequence while it waits."""

    wait: Wait  # why it waits, when the scheduler last looked
    bypassed: int = 0  # how many were admitted past it since it stands at the head of the queue
    num_cold: int = 0  # of its hits, those that would be cold
    awaited: bytes | None = None  # name of the last block that a running sequence was computing for it then


# Of reasons whose words hold numbers or ids of others.
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
