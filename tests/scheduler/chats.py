"""A served scheduler whose requests may be turns of chat sessions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tests.scheduler.served import Served, State
from tests.scheduler.test_transfers import finish, turn

from octavo.engine.port import inspector_of
from octavo.memory.holders import Holder, HolderKind
from octavo.params import SamplerParams
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.retention.session_table import Session, StoredSession
from octavo.types import Request

PROMPT = tuple(range(100, 122))  # 5 blocks of 4, and two tokens


class Chats(Served):
    """A served scheduler whose requests may be turns."""

    def say(
        self, session: str, prompt: tuple[int, ...], max_tokens: int = 1, *, tenant: str = "", n: int = 1
    ) -> int:
        self._next_id += 1
        sampling = SamplerParams(ignore_eos=True)
        request = Request(
            self._next_id, prompt, sampling, max_tokens, 0, n, tenant, session=session, session_ttl=60.0
        )
        self.scheduler.submit(request)
        return self._next_id

    def whole_turn(self, session: str, prompt: tuple[int, ...], max_tokens: int = 1) -> None:
        """Serve it, and let no transfer end."""
        request = self.say(session, prompt, max_tokens)
        while self.state(request) is not State.FINISHED:
            self.moving += turn(self)

    def settle(self) -> None:
        """All transfers end well."""
        while self.moving or self.scheduler.transfers.could_store:
            moving, self.moving = self.moving, []
            finish(self, moving)
            self.moving += turn(self)

    moving: list  # type: ignore[type-arg]

    def __init__(self, **options: int) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.moving = []

    def blocks(self, session: str = "a"):  # type: ignore[no-untyped-def]
        return inspector_of(self.scheduler).session(session)

    def restore(self, session: str, tokens: Sequence[int], left_s: float = 60.0, **stored: int) -> Session:
        """As a scheduler that is new is given it."""
        said = array("I", tokens).tobytes()
        return self.scheduler.session_holds.restore(
            StoredSession(session, "", said, 60.0, left_s, **stored), 0.0
        )

    def evict_all(self) -> None:
        table = self.memory.open(Holder(HolderKind.SEQUENCE))
        self.memory.reserve(table, 0, self.memory.pool.num_available * self.memory.block_size)
        self.memory.close(table)


def resume(chats: Chats, tokens: tuple[int, ...]) -> int:
    order = PinRequest("a", tokens, 60.0, Strength.HOT, "", is_resumed_session=True)
    chats.scheduler.client_pins.open(order, chats.next_id, 0.0)
    return chats.add(tokens, 1, fills_pin=order.pin_name)
