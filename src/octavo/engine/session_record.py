"""One session as it is remembered, and as a row of its file.

A record with a document is a stored response: a conversation that can only be gone on from, in another
record. What is in the document only the server's edge knows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.engine.turn_ends import TurnEnds

TTL_S_MAX = 30 * 86_400.0

# The columns of a row, in order; the first six, and those that older files lack, as they came.
COLUMNS = "id PRIMARY KEY, tenant, tokens, ttl_ms, created_ms, used_ms"
LATER = ("num_shared DEFAULT 0", "num_suspended DEFAULT 0", "turn_ends DEFAULT x''", "document DEFAULT x''")
NUM_COLUMNS = 6 + len(LATER)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session. Times are seconds of the wall clock. The tokens never change."""

    session_id: str
    tenant: str
    ttl_s: float
    created: float
    used: float
    # Prompt and output of its turns so far. An array, because there may be very many: 4 bytes each.
    tokens: array[int] = field(default_factory=lambda: array("I"))
    num_shared: int = 0  # of the blocks that they fill, the leading ones under names of all tenants
    num_suspended: int = 0  # of these blocks, those that were suspended, and no turn has ended well since
    turn_ends: TurnEnds = field(default_factory=TurnEnds)
    document: bytes = b""  # of a stored response

    @property
    def expires(self) -> float:
        """When it is forgotten, unless a turn comes before."""
        return self.used + self.ttl_s

    @property
    def is_response(self) -> bool:
        """Whether it is a stored response, and no session that clients know as one."""
        return bool(self.document)


def to_row(record: SessionRecord) -> tuple[int | str | bytes, ...]:
    """The values of its columns."""
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


def from_row(row: Sequence[object]) -> SessionRecord | None:
    """The record of a row, unless that makes no sense."""
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
    return SessionRecord(
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
