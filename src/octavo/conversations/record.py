"""One conversation, in memory and as a row of its file.

A record with a document is a stored response: a conversation that continues only in other records. Only the
server knows the content of the document.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.conversations.turn_ends import TurnEnds

TTL_S_MAX = 30 * 86_400.0

# The columns of a row, in order: the first six, then those that older files lack, by age.
COLUMNS = "id PRIMARY KEY, tenant, tokens, ttl_ms, created_ms, used_ms"
LATER = ("num_shared DEFAULT 0", "num_suspended DEFAULT 0", "turn_ends DEFAULT x''", "document DEFAULT x''")
NUM_COLUMNS = 6 + len(LATER)


class ConversationKind(enum.StrEnum):
    """The kind of conversation that clients know."""

    SESSION = "session"  # named in each turn, and deleted by clients
    RESPONSE = "response"  # continued by clients in another one, and left behind


@dataclass(frozen=True, slots=True)
class Record:
    """One conversation. Times are seconds of the wall clock. The tokens are never modified in place."""

    session_id: str
    tenant: str
    ttl_s: float
    created: float
    used: float
    # Prompt and output of its turns so far. An array, for 4 bytes per token: there may be very many.
    tokens: array[int] = field(default_factory=lambda: array("I"))
    num_shared: int = 0  # leading blocks under names that all tenants share
    num_suspended: int = 0  # blocks at its suspension; 0 after a later turn
    turn_ends: TurnEnds = field(default_factory=TurnEnds)
    document: bytes = b""  # of a stored response
    num_said: int = 0  # turns that ended well since it was made or read; tokens change with it

    @property
    def expires(self) -> float:
        """When it expires, unless a turn comes before."""
        return self.used + self.ttl_s

    @property
    def kind(self) -> ConversationKind:
        """A response always has a document."""
        return ConversationKind.RESPONSE if self.document else ConversationKind.SESSION


def to_row(record: Record) -> tuple[int | str | bytes, ...]:
    """The values of the columns."""
    return (
        record.session_id,
        record.tenant,
        record.tokens.tobytes(),
        int(record.ttl_s * 1000),
        int(record.created * 1000),
        int(record.used * 1000),
        record.num_shared,
        record.num_suspended,
        record.turn_ends.to_bytes(),
        record.document,
    )


def from_row(row: Sequence[object]) -> Record | None:
    """The record of a row; None if the row is invalid."""
    if len(row) != NUM_COLUMNS:
        return None
    session_id, tenant, tokens, ttl_ms, created_ms, used_ms, num_shared, num_suspended, ends, document = row
    if not (isinstance(session_id, str) and isinstance(tenant, str) and isinstance(tokens, bytes)):
        return None
    if not (isinstance(ttl_ms, int) and isinstance(created_ms, int) and isinstance(used_ms, int)):
        return None
    if len(tokens) % 4 or not 0 < ttl_ms <= TTL_S_MAX * 1000 or not isinstance(document, bytes):
        return None
    if not (isinstance(num_shared, int) and isinstance(num_suspended, int)):
        return None
    if not 0 <= min(num_shared, num_suspended) <= max(num_shared, num_suspended) <= len(tokens) // 4:
        return None
    said = array("I")
    said.frombytes(tokens)
    return Record(
        session_id,
        tenant,
        ttl_ms / 1000,
        created_ms / 1000,
        used_ms / 1000,
        said,
        num_shared,
        num_suspended,
        TurnEnds.from_bytes(ends, len(said)),
        document,
    )
