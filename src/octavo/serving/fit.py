"""Whether a model fits this machine, and for how many users, before it is loaded: pure arithmetic.

    needed = weights + rotary tables + max(KV blocks, the file's largest tensor)
    speed at 1 <= bandwidth / (weights that a token reads + K and V that it reads)

Its inputs are a model's weight sizes (`model/weight_sizes.py`), the available memory and the measured
bandwidth; it reads no file and loads nothing. The function that sizes the pool at start counts the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.executor.backend import Backend
from octavo.executor.runner import kv_shape_of
from octavo.model.weight_sizes import MeasuredModel
from octavo.serving.start import USER_TOKENS, Budget, size_pool_for
from octavo.units import blocks_for


@dataclass(frozen=True, slots=True)
class Fit:
    """One choice of settings, and its result. `budget` is None if fewer than two blocks fit."""

    options: StartOptions
    model: MeasuredModel
    bytes_per_block: int
    available: int  # bytes, before the model is loaded
    budget: Budget | None
    refusal: str = ""

    @property
    def bytes_per_token(self) -> float:
        """K and V of one position."""
        return self.bytes_per_block / self.options.block_size

    @property
    def needed(self) -> int:
        """Bytes for the weights together with K and V or, while they load, with one tensor of the file."""
        return self.model.num_bytes + max(self.kv_needed, self.model.largest_tensor_bytes)

    @property
    def kv_needed(self) -> int:
        """Bytes of K and V of one user, or of the requested pool."""
        if self.options.kv_memory_bytes is not None and self.budget is not None:
            return self.budget.num_bytes
        tokens = min(USER_TOKENS, self.model.spec.context_length)
        return blocks_for(tokens, self.options.block_size) * self.bytes_per_block

    @property
    def is_loading_the_most(self) -> bool:
        """Whether loading the weights needs more than serving them."""
        return self.model.largest_tensor_bytes > self.kv_needed

    @property
    def fits(self) -> bool:
        """Whether the weights fit together with one user's K and V, or with the requested pool."""
        return self.budget is not None and self.needed <= self.available

    def users(self, tokens: int) -> int:
        """How many sequences of `tokens` tokens the pool holds at once."""
        blocks = 0 if self.budget is None else self.budget.num_blocks
        return blocks // blocks_for(tokens, self.options.block_size)

    def kv_read(self, tokens: int) -> int:
        """Bytes of K and V that a token reads after `tokens` others; layers with a window read only the
        window."""
        spec = self.model.spec
        seen = sum(min(tokens, spec.window(layer) or tokens) for layer in range(spec.num_layers))
        return round(seen * self.bytes_per_token / spec.num_layers)

    def tokens_per_s(self, bytes_per_s: float, tokens: int = 0) -> float:
        """The upper bound for one user with `tokens` tokens in context, by the bytes that a token reads."""
        return bytes_per_s / max(1, self.model.bytes_read_for_a_token + self.kv_read(tokens))


def fit_of(model: MeasuredModel, backend: Backend, options: StartOptions, available: int) -> Fit:
    """The result of these settings with `available` bytes. `backend`: one in host memory."""
    per_block = backend.bytes_per_block(kv_shape_of(model.spec, options.block_size, options.kv))
    try:
        budget = size_pool_for(model.spec, model.num_bytes, backend, options)
    except ConfigError as error:
        return Fit(options, model, per_block, available, None, str(error))
    return Fit(options, model, per_block, available, budget)
