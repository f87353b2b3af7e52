"""An executor whose slots hold their *meaning*, so any error of ledger or scheduler changes an answer.

Each slot stores (position, token, owner). The next token folds every slot, read through the block table, with
the sequence's seed and choice: a stale, mis-shared or un-copied block changes the output, or is detected as
foreign. `next_token` is the same function without paging: the reference of a run. With a `window` the token
depends on the last positions only, so a step's cost does not grow with its contexts.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from octavo.params import Pooling
from octavo.types import (
    COLD_FIRST,
    AdmittedRow,
    Chunk,
    Move,
    SampledToken,
    StepPlan,
    StepResult,
    Transfer,
    TransferDone,
)
from octavo.units import blocks_for


def next_token(tokens: Sequence[int], seed: int, choice: int, vocab_size: int) -> int:
    """The oracle's model: a strong hash of everything the token depends on."""
    data = array("Q", [seed, choice, *tokens]).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") % vocab_size


def likeliest(tokens: Sequence[int], seed: int, vocab_size: int, count: int) -> tuple[tuple[int, float], ...]:
    """The candidates of a beam: the first `count` of the vocabulary, with stand-ins for their logprobs."""
    drawn = random.Random(next_token(tokens, seed, 0, 2**63))
    ranked = sorted((drawn.expovariate(0.5), token) for token in range(vocab_size))
    return tuple((token, -value) for value, token in ranked[:count])


def embedding_of(prompt: Sequence[int]) -> bytes:
    """A stand-in for an embedding: a strong hash of its inputs."""
    return hashlib.blake2b(array("Q", prompt).tobytes(), digest_size=16).digest()


@dataclass(slots=True)
class _Row:
    admitted: AdmittedRow
    tokens: list[int]  # grows with every sample, ahead of the host
    blocks: list[int] = field(default_factory=list)
    parts: list[tuple[int, tuple[int, int, int]]] = field(
        default_factory=list
    )  # of a chunk that is not whole yet
    num_summed: int = 0  # positions whose hidden states were needed, for a mean


class OracleExecutor:
    """Runs plans over meanings instead of floats, with a real executor's diffs, order and errors."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        owner_of_seed: Callable[[int], int] = lambda seed: 0,
        window: int | None = None,
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._stop_ids = stop_ids
        self.window = window
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.slots: list[tuple[int, int, int] | None] = [None] * (num_blocks * block_size)
        self.rows: dict[int, _Row] = {}
        self._owner_of_seed = owner_of_seed
        self.shared: Sequence[Sequence[int]] = ()  # prompts whose slots every tenant may read
        self.tier_slots: dict[
            int, tuple[bytes, list[tuple[int, int, int] | None]]
        ] = {}  # slot -> name, meanings
        self.moving: list[Transfer] = []  # transfers before `end_transfer`
        self.damaged: set[int] = set()  # offload slots that attention cannot read
        self._num_begun = 0
        self._moved: dict[
            int, list[tuple[int, int, int] | None]
        ] = {}  # of these, the ones that have moved already

    def run(self, plan: StepPlan) -> StepResult:
        """Apply the plan, in the order that StepPlan states."""
        self._apply(plan)
        for transfer in plan.transfers:
            if transfer.move is Move.FORGET:
                self.tier_slots.pop(transfer.slot, None)
            elif transfer.move is Move.MOVE:
                self._move_between_slots(transfer)
            else:
                self._begin_transfer(transfer)
        unreadable = {c.seq_id: slots for c in plan.chunks if (slots := self._unreadable(c))}
        assert sum(chunk.is_cold for chunk in plan.chunks) <= 1, "two chunks with cold blocks in one plan"
        for chunk in plan.chunks:
            self._write(chunk)
            self._follow(chunk)
        prompt_logprobs = {c.seq_id: scored for c in plan.ended if (scored := self._score_prompt(c))}
        sampled = [chunk for chunk in plan.chunks if chunk.num_samples]
        contexts = {c.row: [] if c.seq_id in unreadable else self._read(c) for c in sampled}
        drafts = {chunk.row: chunk.drafts for chunk in plan.chunks if chunk.drafts}
        for fork in plan.forks:
            parent = self.rows[fork.parent_row]
            admitted = replace(
                parent.admitted, row=fork.child_row, seq_id=fork.child_seq_id, choice=fork.choice
            )
            self.rows[fork.child_row] = _Row(admitted, list(parent.tokens), list(parent.blocks))
            contexts[fork.child_row] = contexts[fork.parent_row]
        samples: dict[int, tuple[SampledToken, ...]] = {}
        pooled: dict[int, bytes] = {}
        for chunk in plan.chunks:
            self._sum(chunk)
        for row_id, context in contexts.items():
            row = self.rows[row_id]
            seq_id = row.admitted.seq_id
            if seq_id in unreadable:
                row.tokens.append(0)  # a plan in flight may rely on a token; it will be dropped
                continue
            if row.admitted.params.pooling is not None:
                samples[seq_id], pooled[seq_id] = (SampledToken(0),), embedding_of(context)
                continue
            samples[seq_id] = self._walk(row, context, drafts.get(row_id, ()))
        return StepResult(plan.step_id, samples, prompt_logprobs, pooled=pooled, unreadable=unreadable)

    def _unreadable(self, chunk: Chunk) -> tuple[int, ...]:
        """Damaged slots of its cold blocks."""
        entries = self.rows[chunk.row].blocks
        slots = [entry - COLD_FIRST for entry in entries if entry >= COLD_FIRST]
        return tuple(slot for slot in slots if slot in self.damaged or not self.tier_slots[slot][0])

    def _follow(self, chunk: Chunk) -> None:
        """Check that each part of a chunk with cold blocks follows the previous one, and reads all positions
        before its end."""
        row = self.rows[chunk.row]
        has_cold = any(entry >= COLD_FIRST for entry in row.blocks)
        assert has_cold <= chunk.is_cold, "a chunk that is not cold reads cold blocks"
        if chunk.is_cold:
            wanted = (chunk.start, chunk.length, chunk.num_parts)
            assert chunk.part == (row.parts[-1][0] + 1 if row.parts else 0), "a part is missing"
            assert all(wanted == before for _, before in row.parts), "another chunk between the parts of one"
            row.parts.append((chunk.part, wanted))
            if chunk.is_last_part:
                row.parts.clear()
        elif row.parts:
            raise AssertionError("a chunk comes between the parts of another")
        if not chunk.is_last_part and not self._unreadable(chunk):
            for position in range(chunk.stop):
                found = self._meaning(row, position)
                assert found is not None, "an empty slot is read"
                assert found[0] == position, f"position {position} reads one of position {found[0]}"

    def _sum(self, chunk: Chunk) -> None:
        """A mean sums all hidden states, in order of positions, while the sequence keeps its row."""
        row = self.rows[chunk.row]
        if row.admitted.params.pooling is Pooling.MEAN and chunk.is_last_part:
            assert row.num_summed == chunk.start == chunk.logits_from, "a position is missing in a mean"
            row.num_summed = chunk.stop

    def _move_between_slots(self, transfer: Transfer) -> None:
        """Immediately: a sequential worker has done it before anything later."""
        name, meanings = self.tier_slots.pop(transfer.source)
        assert name == transfer.name, "an offload slot has another block's bytes"
        self.tier_slots[transfer.slot] = (name, meanings)

    def _walk(self, row: _Row, context: list[int], drafts: tuple[int, ...]) -> tuple[SampledToken, ...]:
        """The samples of a chunk: one, and one more after each accepted draft. At times a draft's position is
        not sampled, as if that were impossible. A token that ends the output may or may not end the samples.
        """
        samples: list[SampledToken] = []
        for guess in (*drafts, None):
            first = len(context) - len(drafts) + len(samples)
            if samples and next_token(context[:first], 0, 0, 16) == 0:
                break
            samples.append(self._sample(row, context[:first]))
            if samples[-1].token != guess or (guess in self._stop_ids and first % 2):
                break
        return tuple(samples)

    def _sample(self, row: _Row, context: list[int]) -> SampledToken:
        """The row's next token; for a beam its candidates, of which a later plan takes one."""
        admitted = row.admitted
        beams = admitted.params.beams
        if beams is None:
            row.tokens.append(next_token(context, admitted.seed, admitted.choice, self.vocab_size))
            return SampledToken(row.tokens[-1])
        count = beams.num_candidates(len(admitted.params.end_ids(self._stop_ids)))
        top = likeliest(context, admitted.seed, self.vocab_size, count)
        return SampledToken(*top[0], top)

    def _begin_transfer(self, transfer: Transfer) -> None:
        """Every other transfer moves at the earliest possible moment, the rest at the latest."""
        self.moving.append(transfer)
        self._num_begun += 1  # its id also counts those of other runs in this process
        if self._num_begun % 2:
            self._moved[transfer.transfer_id] = self._move(transfer)

    def _move(self, transfer: Transfer) -> list[tuple[int, int, int] | None]:
        size = self.block_size
        own = slice(transfer.block * size, (transfer.block + 1) * size)
        if transfer.move is Move.VERIFY:
            return self.tier_slots[transfer.slot][1]
        if transfer.move is Move.STORE:
            stored = self.slots[own]
            assert None not in stored, "a block is stored before it was written"
            return stored
        name, meanings = self.tier_slots[transfer.slot]
        if not name:  # a move of the same plan has failed, as its checksum shows
            meanings = [None] * size
        assert name in (transfer.name, b""), "an offload slot has another block's bytes"
        self.slots[own] = meanings
        return meanings

    def end_transfer(self, transfer: Transfer, ok: bool) -> TransferDone:
        """Ends a transfer that has moved. Not ok: its target holds garbage."""
        self.moving.remove(transfer)
        moved = self._moved.pop(transfer.transfer_id, None) or self._move(transfer)
        if transfer.move is Move.STORE:
            self.tier_slots[transfer.slot] = (transfer.name if ok else b"", moved)
            self.damaged.discard(transfer.slot)
        elif None in moved:
            ok = False
        elif not ok and transfer.move is Move.LOAD:
            size = self.block_size
            self.slots[transfer.block * size : (transfer.block + 1) * size] = [None] * size
        return TransferDone(transfer.transfer_id, ok, 0.001)

    def _apply(self, plan: StepPlan) -> None:
        for row_id in plan.retired:
            del self.rows[row_id]
        for admitted in plan.admitted:
            assert admitted.row not in self.rows, "a row is admitted before it was retired"
            self.rows[admitted.row] = _Row(admitted, list(admitted.tokens))
        for said in plan.token_writes:
            assert said.index == len(self.rows[said.row].tokens), "a beam's token is not the next of its row"
            self.rows[said.row].tokens.append(said.token)
        for write in plan.table_writes:
            blocks = self.rows[write.row].blocks
            assert write.index <= len(blocks), "a table has no holes"
            blocks[write.index : write.index + 1] = [write.block]
        size = self.block_size
        for copy in plan.copies:
            source = self.slots[copy.source * size : (copy.source + 1) * size]
            self.slots[copy.target * size : (copy.target + 1) * size] = source
        for first, last in plan.discarded:
            self.slots[first * size : last * size] = [None] * ((last - first) * size)

    def _slot(self, row: _Row, position: int) -> int:
        block = row.blocks[position // self.block_size]
        assert block < COLD_FIRST, "a cold block is written"
        return block * self.block_size + position % self.block_size

    def _meaning(self, row: _Row, position: int) -> tuple[int, int, int] | None:
        """The meaning that attention finds at a position."""
        block = row.blocks[position // self.block_size]
        if block >= COLD_FIRST:
            return self.tier_slots[block - COLD_FIRST][1][position % self.block_size]
        return self.slots[self._slot(row, position)]

    def _write(self, chunk: Chunk) -> None:
        row = self.rows[chunk.row]
        assert row.admitted.seq_id == chunk.seq_id, "a chunk runs in another's row"
        assert blocks_for(chunk.stop, self.block_size) <= len(row.blocks), "a chunk writes beyond its table"
        owner = self._owner_of_seed(row.admitted.seed)
        assert chunk.stop - len(chunk.drafts) <= len(row.tokens), "a chunk runs ahead of its tokens"
        tokens = [*row.tokens[: chunk.stop - len(chunk.drafts)], *chunk.drafts]
        for position in range(chunk.start, chunk.stop):
            self.slots[self._slot(row, position)] = (position, tokens[position], owner)

    def _score_prompt(self, chunk: Chunk) -> tuple[SampledToken, ...]:
        """The prompt tokens that follow the positions with logits; their "logprob" is their position."""
        admitted = self.rows[chunk.row].admitted
        if admitted.params.prompt_logprobs is None:
            return ()
        following = range(chunk.logits_from + 1, min(chunk.stop + 1, admitted.num_prompt))
        return tuple(SampledToken(admitted.tokens[position], float(position)) for position in following)

    def _is_shared(self, position: int, token: int) -> bool:
        """Whether it may belong to a prefix that all tenants share."""
        return any(position < len(prompt) and prompt[position] == token for prompt in self.shared)

    def _read(self, chunk: Chunk) -> list[int]:
        row = self.rows[chunk.row]
        assert chunk.stop == len(row.tokens) + len(chunk.drafts), "a sample is taken after the last token"
        owner = self._owner_of_seed(row.admitted.seed)
        context = []
        first = 0 if self.window is None else max(0, chunk.stop - self.window)
        for position in range(first, chunk.stop):
            slot = self._meaning(row, position)
            assert slot is not None, "an empty slot was read"
            assert slot[0] == position, f"position {position} read a slot of position {slot[0]}"
            if slot[2] != owner:
                assert self._is_shared(position, slot[1]), "a slot of another tenant was read"
                assert min(slot[2], owner) >= 0, "a slot of another cache salt was read"
            context.append(slot[1])
        return context
