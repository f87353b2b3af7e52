"""The asynchronous client of a served model, for the HTTP edge and asyncio programs.

encoder     texts and chats to tokens              submitter   requests to the engine, deltas back
control     the pool, views and pins               sessions    conversations whose blocks are kept
"""

from __future__ import annotations

from typing import Self

from octavo.conversations.sessions import Sessions, SessionSupport
from octavo.engine.answers import Answers
from octavo.engine.assemble import Vocabulary
from octavo.engine.compilers import Compilers
from octavo.engine.control import Control
from octavo.engine.core import Engine
from octavo.engine.encoder import Encoder
from octavo.engine.host import EngineHost, Host
from octavo.engine.no_engine import NoEngine
from octavo.engine.requests import ModelFacts
from octavo.engine.submitter import Submitter
from octavo.engine.traffic import TrafficWriter
from octavo.kv_events.identity import EventSource, Identity
from octavo.sampling.grammars import Grammars
from octavo.serving.replica_feed import Feed
from octavo.text.tokenizer import Tokenizer


class EngineClient:
    """A served model; `start_engine` makes one for an engine in this process."""

    def __init__(
        self,
        host: Host,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        max_open: int,
        sessions: SessionSupport | None = None,
    ) -> None:
        """`max_open`: bound of open requests, and of each tenant's waiting texts and grammars."""
        self.facts, self.card = facts, facts.card
        self.feed: Feed | None = None  # reports to routers, if it is a replica of a cluster
        self.tokenizer = tokenizer
        vocabulary = Vocabulary(tokenizer.token_bytes, tokenizer.special_ids)
        self.compilers = Compilers(facts, max_open)
        self.encoder = encoder = Encoder(tokenizer, facts.context_length, max_open)
        self.submitter = submitter = Submitter(host, vocabulary, facts, self.compilers)
        self.control = Control(submitter)
        self.answers = Answers(tokenizer, facts.grammars, self.compilers.run)
        self._session_support = sessions or SessionSupport()
        self.sessions = Sessions(submitter, encoder, self.control, self._session_support)
        # The parts' methods, as methods of the client.
        self.encode, self.encode_all = encoder.encode, encoder.encode_all
        self.encode_chat = encoder.encode_chat
        self.bad_word_ids, self.tokenizer_info = encoder.bad_word_ids, encoder.tokenizer_info
        self.token_bytes = tokenizer.token_bytes
        self.submit, self.stats, self.drain = submitter.submit, submitter.stats, submitter.drain
        self.checked = submitter.checked

    @classmethod
    def over(
        cls,
        engine: Engine,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        max_queue: int,
        sessions: SessionSupport | None = None,
        traffic: TrafficWriter | None = None,
    ) -> Self:
        """Start a thread that drives this engine. `traffic`: as for `EngineHost`."""
        max_open = max_queue + engine.config.max_rows
        grammars = facts.grammars if isinstance(facts.grammars, Grammars) else None
        host = EngineHost(engine, max_open, grammars, traffic=traffic)
        return cls(host, tokenizer, facts, max_open, sessions)

    @property
    def name(self) -> str:
        """The model's name in /v1/models."""
        return self.facts.name

    @property
    def generates(self) -> bool:
        """Whether there is an engine; a renderer has none."""
        return not isinstance(self.submitter.host, NoEngine)

    @property
    def identity(self) -> Identity:
        """How routers read the names and tenants of KV events."""
        return self.facts.identity

    @property
    def event_source(self) -> EventSource | None:
        """The endpoints at which routers read KV events."""
        return self.facts.event_source

    @property
    def context_length(self) -> int:
        """The most tokens of prompt and output together."""
        return self.facts.context_length

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.submitter.host.block_size

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""
        return self.facts.vocab_size

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can work."""
        return self.tokenizer.chat_template is not None

    @property
    def engine(self) -> Engine:
        """The engine that the thread drives, for benchmarks and tests."""
        host = self.submitter.host
        assert isinstance(host, EngineHost), "the engine is in another process"
        return host.engine

    @property
    def num_open(self) -> int:
        """Requests that the engine has not ended."""
        return self.submitter.num_open

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more requests."""
        return self.submitter.is_closed

    @property
    def gave_up(self) -> str | None:
        """Why the engine ended by itself, after repeated failures."""
        return self.submitter.gave_up

    def close(self) -> None:
        """Stop the engine's thread after the current step. Open streams end with an error."""
        self.submitter.end()
        self._session_support.store.close()  # its file is under the disk cache's lock
        self.submitter.close()
        self.encoder.close()
