"""The native module: kernels over NumPy arrays, chosen for the machine at first use.

Arrays are C-contiguous and of exactly the type named here: nothing is converted, and a wrong type, rank
or layout is a TypeError. A wrong size is a ValueError, an index out of range an IndexError; nothing is
written then. Every function releases the interpreter's lock while it computes; any thread may call it.

Exactness: a row's bits depend on that row's input alone, never on other rows or on the number of
threads; and all instruction sets give the same bits, except for attention over KV in bf16 with AMX
(OCTAVO_ISA = portable | avx2 | avx2_vnni | avx512 | avx512_bf16 | avx512_amx chooses one; a wrong value is a
ValueError at first use).
"""

from typing import TypedDict

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]
_Ints = npt.NDArray[np.int32]
_Bytes = npt.NDArray[np.uint8]
_Halves = npt.NDArray[np.uint16]  # the bits of floats of 16 bits

class SimdProbe(TypedDict):
    found: list[str]  # instruction sets of the processor
    usable: list[str]  # kernels that are built in and run here, worst first
    chosen: str
    vector_bits: int
    cores: int  # that this process may use

def simd_probe() -> SimdProbe: ...
def set_num_threads(count: int) -> None:
    """1 to 256 threads share each operation from now on. Stops and starts the team: not for every step."""

def num_threads() -> int: ...

# -- files and memory ------------------------------------------------------------------------------

def read_string_array(data: _Bytes, offset: int, count: int) -> tuple[list[bytes], int]:
    """`count` strings (little-endian u64 length, bytes) from `offset` on, and the offset behind them."""

def dequantise(data: _Bytes, kind: str, count: int, out: _Floats) -> None:
    """`data`, exactly the bytes of `count` elements, to float32.

    kind, in all functions: one of `octavo.kernels.packed.BLOCKS`.
    """

def pack(data: _Bytes, kind: str, outputs: int, inputs: int, panels: _Floats) -> None:
    """A matrix as its file stores it to panels (ceil(outputs / 16), inputs, 16), padded with zeros."""

def pack_halves(data: _Bytes, kind: str, outputs: int, inputs: int, stored: str, panels: _Halves) -> None:
    """The same to panels of 16 bits, rounded to nearest even; stored: F16, or BF16, whose inputs are even in
    number and lie in pairs, (ceil(outputs / 16), inputs / 2, 16, 2)."""

def code_panel_bytes(kind: str, inputs: int) -> int:
    """Bytes of an integer panel: 16 outputs. inputs: whole blocks of the kind."""

def pack_codes(data: _Bytes, kind: str, outputs: int, inputs: int, stored: str, panels: _Bytes) -> None:
    """A matrix as its file stores it to integer panels (ceil(outputs / 16), code_panel_bytes).

    stored: the same kind; or Q8_0 or Q4_1, quantised again by ggml's arithmetic, group by group. A group that
    holds an infinity or a NaN gets a scale that is NaN.
    """

def copy_blocks(pool: _Bytes, sources: _Ints, targets: _Ints) -> None:
    """pool[targets[i]] = pool[sources[i]], in order of i."""

def take_pages(data: _Bytes) -> bool:
    """Memory behind all whole pages of it, as if each had been written to; False where the system can't."""

# -- the sampler -----------------------------------------------------------------------------------

def log_sum_exp(x: _Floats, out: _Floats) -> None:
    """(R, V) -> (R,): summed in double in a fixed order. NaN where a row holds NaN or +inf, or only -inf."""

def argmax(x: _Floats, out: _Ints) -> None:
    """(R, V) -> (R,): the lowest index of the largest value; -1 where there is NaN or +inf, or only -inf."""

def gumbel(seed: int, choice: int, position: int, out: _Floats) -> None:
    """out[t] = -log(-log u), u = (word >> 8 + 1/2) / 2^24, the word being lane t % 4 of Philox 4x32-10.

    Key: seed (low, high word); counter: (t // 4, position, choice, 0).
    """

def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """The four words of one counter. Source: Salmon et al. 2011."""

# -- the step --------------------------------------------------------------------------------------

class KvLayout:
    """The inside of a block, as `kernels/pool.py` draws it.

    head_size: multiples of 8 up to 256; block_size: 16, 32 or 64; kind: f32, bf16 or int8; otherwise a
    ValueError.
    """

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_size: int, block_size: int, kind: str = "f32"
    ) -> None: ...
    @property
    def bytes_per_block(self) -> int:
        """A multiple of 4 KiB."""
    def layers(self, pool: _Bytes) -> list[KvLayer]:
        """Where each layer lies in a pool, which must outlive them."""

class KvLayer:
    """One layer of one pool."""

def linear(x: _Floats, panels: _Floats, bias: _Floats | None, out: _Floats) -> None:
    """out (T, outputs) = x (T, inputs) times packed panels; bias (outputs,) is added last."""

def embed(panels: _Floats, outputs: int, rows: _Ints, out: _Floats) -> None:
    """out[i] = row rows[i] of the packed matrix of `outputs` rows."""

def linear_halves(x: _Floats, panels: _Halves, kind: str, bias: _Floats | None, out: _Floats) -> None:
    """The same with panels of 16 bits: F16 has the bits of `linear` over the widened weights, BF16 those of
    `brain_reference.multiply`; its inputs are even in number."""

def embed_halves(panels: _Halves, kind: str, outputs: int, rows: _Ints, out: _Floats) -> None:
    """The same with panels of 16 bits."""

def linear_codes(x: _Floats, panels: _Bytes, kind: str, bias: _Floats | None, out: _Floats) -> None:
    """The same with integer panels: x is quantised to 8 bits in groups of 32, group sums are exact."""

def embed_codes(panels: _Bytes, kind: str, outputs: int, rows: _Ints, out: _Floats) -> None:
    """out[i] = row rows[i] of the matrix in integer panels, as `dequantise` would give it."""

def store_kv(
    layout: KvLayout,
    pool: _Bytes,
    layer: int,
    k: _Floats,
    v: _Floats,
    starts: _Ints,
    offsets: _Ints,
    tables: _Ints,
) -> None:
    """Write k and v (T, K * D) of the step's tokens into their slots; chunks as in `contract.Batch`."""

def attend(
    layout: KvLayout,
    pool: _Bytes,
    layer: int,
    q: _Floats,
    starts: _Ints,
    offsets: _Ints,
    tables: _Ints,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: _Floats | None,
    slopes: _Floats | None,
    out: _Floats,
    log_sum_exp: _Floats | None = None,
    piece_partitions: int = 0,
) -> None:
    """Causal attention of q (T, H * D) over the block tables, in fixed partitions of 256 positions.

    sinks and slopes (H,); log_sum_exp (T, H) is filled. Threads share a long context in pieces of
    piece_partitions; 0 decides by load; no value changes a bit.
    """

def rms_norm(x: _Floats, weight: _Floats, eps: float, out: _Floats) -> None:
    """(T, E) -> (T, E): x / sqrt(mean(x^2) + eps) * weight."""

def layer_norm(x: _Floats, weight: _Floats, bias: _Floats, eps: float, out: _Floats) -> None: ...
def rope(x: _Floats, positions: _Ints, cos: _Floats, sin: _Floats, head_size: int, out: _Floats) -> None:
    """Rotate halves of each head of x (T, heads * D); cos and sin (context, dims / 2)."""

def map(function: str, x: _Floats, out: _Floats) -> None:
    """Elementwise over flat arrays; function: exp, tanh, silu, gelu_tanh, gelu, relu."""

def gated(function: str, gate: _Floats, up: _Floats, out: _Floats) -> None:
    """function(gate) * up over flat arrays; function: those, and swiglu_clamped, which changes both."""

def add(x: _Floats, y: _Floats, out: _Floats) -> None: ...
def scale(x: _Floats, factor: float, out: _Floats) -> None: ...
def soft_cap(x: _Floats, cap: float, out: _Floats) -> None:
    """cap * tanh(x / cap) over flat arrays."""

# -- the machine's limits --------------------------------------------------------------------------

def peak_multiply_add(rounds: int) -> int:
    """Float32 multiply-adds out of registers on every thread; the operations done (two each)."""

def peak_pairs(rounds: int) -> int:
    """The same with pairs of bfloat16, summed in float32."""

def peak_dots(rounds: int) -> int:
    """The same with products of unsigned and signed bytes, summed in 32 bits."""

def read_bytes(data: _Bytes) -> int:
    """Read everything once, on every thread: a multiple of 512 bytes. The result means nothing."""

def copy_bytes(source: _Bytes, target: _Bytes) -> None:
    """Copy a flat array, on every thread: a multiple of 512 bytes; they may not overlap."""

# -- the recorded step -----------------------------------------------------------------------------

class Weight:
    """A matrix as a program reads it: a view, which its panels must outlive."""

def float_weight(panels: _Floats, outputs: int) -> Weight:
    """Of panels (ceil(outputs / 16), inputs, 16)."""

def half_weight(panels: _Halves, kind: str, outputs: int) -> Weight:
    """Of panels in 16 bits, as `pack_halves` makes them. kind: F16, BF16."""

def code_weight(panels: _Bytes, kind: str, outputs: int, inputs: int) -> Weight:
    """Of integer panels (ceil(outputs / 16), code_panel_bytes)."""

class Mixture:
    """Experts of one layer, and how rows choose among them: a view of arrays that must outlive it."""

    def __init__(
        self, top_k: int, scoring: str, normalised: bool, weighs_input: bool, activation: str
    ) -> None:
        """scoring: softmax, softmax_of_chosen, sigmoid; activation: of `gated`. ValueError otherwise."""

    def add_expert(
        self,
        gate: Weight,
        gate_bias: _Floats | None,
        up: Weight,
        up_bias: _Floats | None,
        down: Weight,
        down_bias: _Floats | None,
    ) -> None:
        """The next one, 1,024 at most. Raises ValueError for sizes that differ from the first one's."""

def experts(x: _Floats, logits: _Floats, mixture: Mixture, out: _Floats) -> None:
    """out (T, E): each row of x (T, E) through the experts that its logits (T, X) choose."""

class SecondMemory:
    """Slots [0, num_host) of host memory and [num_host, num_slots) of a file; see csrc/cold_reader.hpp.

    Slot s of host memory is host[s * host_slot_bytes :], laid out like a block of the pool. The file has
    stripes of `lanes` slots: for each of `pieces` layers the bytes of all lanes, one after the other.
    """

    def __init__(
        self,
        host: _Bytes | None,
        host_slot_bytes: int,
        num_host: int,
        fd: int,
        lanes: int,
        pieces: int,
        num_slots: int,
        window_bytes: int,
        num_readers: int,
    ) -> None:
        """fd: -1 for no file; else it is duplicated. `num_readers` threads fill `window_bytes` of memory
        ahead of attention. Raises ValueError for numbers that do not fit each other, RuntimeError for a bad
        fd.
        """

class Program:
    """Ops over numbered buffers, recorded once and replayed in one call; see csrc/program.hpp.

    Recording methods take buffers by number and return the number of a new one; they raise ValueError for
    shapes that do not fit and IndexError for a buffer or layer that does not exist. Whatever arrays they are
    given must outlive the program.
    """

    def __init__(self, layers: list[KvLayer]) -> None: ...
    def given_rows(self, width: int) -> int: ...
    def embed(self, table: Weight, by_position: bool) -> int: ...
    def take(self, x: int) -> int: ...
    def rms_norm(self, x: int, weight: _Floats, eps: float) -> int: ...
    def layer_norm(self, x: int, weight: _Floats, bias: _Floats, eps: float) -> int: ...
    def linear(self, x: int, weight: Weight, bias: _Floats | None) -> int: ...
    def rope(self, x: int, cos: _Floats, sin: _Floats, head_size: int) -> int: ...
    def store(self, layer: int, k: int, v: int) -> None: ...
    def attend(
        self,
        layer: int,
        q: int,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: _Floats | None,
        slopes: _Floats | None,
    ) -> int: ...
    def experts(self, x: int, logits: int, mixture: Mixture) -> int: ...
    def gated(self, gate: int, up: int, function: str) -> int: ...
    def activate(self, x: int, function: str) -> int: ...
    def add(self, x: int, y: int) -> int: ...
    def scale(self, x: int, factor: float) -> int: ...
    def soft_cap(self, x: int, cap: float) -> int: ...
    def finish(self, result: int) -> None:
        """Nothing can be recorded any more; the program can run."""

    def time_phases(self, on: bool) -> None:
        """From now on each run adds the seconds of its phases; false stops and forgets."""

    def phase_times(self) -> list[tuple[str, float]]:
        """What each phase does, and its seconds so far; empty when not timed."""

    def prefetch_kv(self, wanted: bool | None) -> None:
        """Whether steps fetch the next attention's K and V while linear layers run; None: as it pays here."""

    def kv_prefetch_trial(self, rows: int) -> tuple[int, float]:
        """How often steps of about so many rows were compared, and their seconds without over those with.

        Raises ValueError for less than one row.
        """

    @property
    def num_phases(self) -> int:
        """Barriers of a run."""

    @property
    def floats_per_row(self) -> int:
        """The arena's size for each token of a step that wants all logits, in floats, without padding."""

    def run_step(
        self,
        tokens: _Ints,
        positions: _Ints,
        starts: _Ints,
        offsets: _Ints,
        tables: _Ints,
        logit_rows: _Ints,
        num_blocks: int,
    ) -> _Floats:
        """The result's rows over the program's own memory: overwritten by the next run.

        Raises ValueError or IndexError, before anything is written, for a batch that makes no sense.
        """

    def begin_step(
        self,
        tokens: _Ints,
        positions: _Ints,
        starts: _Ints,
        offsets: _Ints,
        tables: _Ints,
        logit_rows: _Ints,
        num_blocks: int,
        memory: SecondMemory,
    ) -> None:
        """A step whose tables may name slots of `memory`: see `program.ColdStepProgram`."""

    def advance(self, tables: _Ints, num_layers: int) -> _Floats | None:
        """Until so many more phases of attention are done, or to the end: then the result's rows."""

    def abandon(self) -> None: ...
    def failed_slots(self) -> list[int]: ...
    def cold_stats(self) -> tuple[int, float]:
        """Bytes read, and seconds waited for them, by all such steps so far."""

    def run_rows(self, x: _Floats) -> _Floats:
        """The same for rows given from outside."""

    def run_rows_argmax(self, x: _Floats, out: _Ints) -> None:
        """Into out (R,) what `argmax` finds in the rows that `run_rows` would give; a product at the end of
        the program is not written for it. Raises ValueError where x or out does not fit."""
