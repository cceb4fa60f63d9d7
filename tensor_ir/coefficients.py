"""The coefficients of decisions: numbers that no rate of a machine tells, and no definition.

A coefficient says what something costs, or from where on it pays. They lie in `coefficients.json`:
`python -m benchmarks.coefficients` halves and doubles each, measures the kernels and models whose
code that changes, and writes what it finds to docs/coefficients.md;
`python -m benchmarks.sensitivity` tells without times what changes, in docs/sensitivity.md.
Decisions have them from the machine that they are for, `machine.coefficients`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import get_type_hints

from rutc.base.record import record

FILE = Path(__file__).with_name("coefficients.json")


@record
class Tiles:
    """Of the tile of registers that a sum of products is computed in. Cycles, or shares of them."""

    spare: int
    """One register in so many is better left to the allocator."""
    tight: float
    """Slow-down for every register that it is short of."""
    spill: float
    """Slow-down for every register that does not exist."""
    together: float
    """How sharply the longer of the times that hide each other prevails."""
    stream: float
    """Share of the second cache's transfer time that is not hidden behind arithmetic, of what
    tiles read for the first time or blocks again."""
    lines_anew: float
    """Share of the rows' lines that the tile before has not left in the first cache."""
    evicted: float
    """What it costs to get a line from the second cache before it is written to."""
    far: float
    """Slow-down for every doubling of the lines over which a tile's rows lie."""
    unknown: float
    """Slow-down by rows that are a whole loop of symbolic extent, which may well have fewer."""
    around: float
    """Cycles of a tile besides its loads, its arithmetic and its stores."""
    uneven: float
    """The most that a tile may cost that fits evenly into a chunk of packed rows, over the best."""


@record
class Blocks:
    """Of blocks of long sums, and of what is asked for ahead of its use."""

    panel: float
    """Share of the first cache that the vector operand of a blocked reduction may take, with the
    lines that several tiles share."""
    second: float
    """Share of the second cache that it may take where arithmetic hides that it comes from there:
    with 128 rows, in blocks of a part of the first cache, sums of 768 took 1.15 times as long."""
    busy: float
    """Share of a step's cycles from which on it shows that lines come from the second cache."""
    near_steps: int
    """Steps of the reduction ahead to ask for rows of an operand that lie far apart. Shorter
    reductions are over before lines come that they ask for at their start."""
    few_tiles: int
    """Up to so many tiles use the vector operand again: waiting for it from memory then shows.

    So many at least use a block of it before the next is loaded, where only a run tells how many
    there are."""
    few_lines: int
    """Pieces of rows of so many lines or fewer are stored side by side: of 96 bytes, of 1,000 rows
    of 1,933 sums of 20 products, they took half as long as one below the other (Zen 4, AVX2)."""
    reuse: int
    """Tiles that use a block of the vector operand before the next is loaded. What is used as often
    is asked for, though it may be near."""
    piece_lines: int
    """Pieces of rows that a block of a sum over windows reads have so many lines at least: of 3x3
    windows of stride 2 over 512 channels, blocks of 64 took 0.8 of the time of 16 (Zen 3)."""


@record
class Windows:
    """Of windows: where loops over their inside pay."""

    least_gain: float
    """What loops over the inside have to bring the cost to: their ends are not known. Convolutions
    by 3x3 in steps of two whose maps become 7x7 bring it to 0.95, and took 0.94 to 0.97 of the time
    (Zen 5)."""


@record
class Sharing:
    """Of threads: what is shared among them, and into which pieces."""

    launches: int
    """Kernels estimated to take less than so many launches of threads run on one."""
    wakes: int
    """A model estimated to take less than it takes to wake threads so often runs on one thread."""
    least: float
    """Cycles that a kernel with parallel loops takes at least: schedules make none in smaller
    ones."""
    gather: int
    """Cycles of an element that is read at a place which depends on data; measured: 1.1 to 1.7, all
    else included, where Zen 4 walks for 100 rows through 100 trees."""


@record
class Layouts:
    """Of the orders of values in memory: of an element, or a lane. A vector of neighbours is 1."""

    broadcast: float
    """An element that goes into all lanes."""
    other_line: float
    """What a broadcast adds where each step of a long sum reads another line than that before."""
    packed: float
    """A vector of a constant, which lies as it is read."""
    scattered: float
    """A lane of scattered elements."""
    store_crossed: float
    """A lane of an elementwise nest: squares are transposed in registers."""
    store_scattered: float
    """A lane of sums, which go to memory lane by lane."""
    copy: float
    """Copying a value into another layout."""
    merge: float
    """Each of the steps that join the lanes of a reduction, which halve them."""


@record
class Fusion:
    """Of what is computed together, or anew."""

    row: float
    """The largest row that a group keeps, in second caches: it has to stay in the nearest ones."""
    operations: int
    """The most operations of what each reader of a row computes anew."""
    widened: int
    """An element read so often costs more to convert each time than to store in 32 bits."""


@record
class StoredTypes:
    """Of values that are stored in fewer bits than they are computed in."""

    least_gain: float
    """What the kernels that read a value gain at least by that, of their time."""
    least_moved: float
    """What a computed value's saved bytes take to come from memory, of the time of the kernels that
    touch it, from which on it is rounded: a smaller share costs more accuracy than time."""


@record
class Plans:
    """Of plans that are chosen by estimates."""

    least_gain: float
    """What launches of a plan gain at least by others instead of them, of their time. Estimates
    of two launches alike err less than those of one: where a twentieth was enough, plans of two
    models took longer than before."""
    least_of_few: float
    """What the best plan of a graph of few nests gains at least, of the time of all of it, and
    filters that suit several images of what the sums of a run take."""


@record
class Slices:
    """Of chains of kernels that work on one slice after the other."""

    ring: float
    """What the values between the kernels may take while one slice is worked on, in second
    caches."""
    most_ring: float
    """What they may take where slices cannot be shorter: little of it is lost."""
    block: int
    """Indices of a block: so many use what register tiles load of the other operand."""
    reread: float
    """What a byte that is read again costs, in bytes that stay near."""
    again: float
    """What every slice reads again stays near up to this size, in second caches."""


@record
class Filtering:
    """Of minimal filtering (Winograd), and of separable windows."""

    reached: float
    """Share of the machine's multiply-adds that sums reach."""
    far_bytes: float
    """Bytes a cycle that are fetched ahead from beyond the second cache: weights arrive while
    others are used."""
    transform: float
    """Cycles per vector that a transform reads or writes."""
    paired: float
    """Products of i16 that sums reach in pairs, for each one of f32 (Zen 4, AVX2: sums of 576 to
    2304 products)."""
    many_products: int
    """From so many products of each element on, constants are stored in 16 bits: to widen them
    where they are loaded takes 0.003 cycles a product (Zen 4, AVX2), a byte more from memory
    0.4."""
    summed: int
    """From so many products of each element of a factor on, a sum of the factor costs nothing
    beside products in pairs (Zen 4: MobileNetV2 with unsigned weights takes 0.91 of the time with
    32 that it takes with 128, and 0.97 of that with 12)."""
    small: float
    """The time of a sum of products with small factors, of that with factors in 16 bits (Zen 4,
    AVX2: convolutions of 28 x 28 x 256 by 3 x 3 x 256)."""
    fours: float
    """The same where four products fit 16 bits (Zen 4, AVX2: 128 x 768 x 768, 0.83 of the time of
    small ones)."""
    signed: float
    """The time of a sum of products with magnitudes, of that with factors in 16 bits (Zen 3: loops
    of 256 and 768 products)."""


@record
class SplitPrecision:
    """Of products of f32 as products of parts in registers for matrices of bf16."""

    fewest_rows: int
    """Rows of a sum from which on it is weighed."""
    products: float
    """Products of f32 per cycle that sums of products of parts reach, in registers of many rows."""
    many_rows: int
    """Where the inputs tell the number of rows, parts are used from so many on: fewer would wait
    for constants, which are half as large again."""
    busy_rows: int
    """With fewer rows, registers are loaded more than they compute."""
    busy_products: int
    """With fewer products at a time, likewise."""
    split: float
    """Cycles to take an element of a value apart, and to bring its parts into order."""
    store: float
    """Cycles for a sum to pass over the stack."""
    moved: float
    """Bytes a cycle of parts that are stored, and read again."""
    streamed: float
    """Bytes a cycle of constants that come from memory, as they do in all but small models."""


@record
class Bf16Pairs:
    """Of products of factors that are rounded to bf16, which vectors multiply in pairs."""

    rounded: float
    """Cycles to round a vector of a value."""
    packed: float
    """Cycles to bring an element of a computed factor into the order of vectors of pairs."""


@record
class Remainders:
    """Of remainders of products of bytes, which are summed apart."""

    gathered: float
    """Cycles to put a byte in its place in a list (Zen 3)."""


@record
class Counting:
    """Of what a summary counts."""

    ahead: float
    """Lines that are loaded ahead of those that wait for room in the first cache (Zen 4)."""


@record
class Forests:
    """Of decision trees as sieves, or as walks: in steps of a walk down a tree (Zen 4, AVX-512).

    A step of one of many walks takes 0.6 ns. Of more features than registers hold, tests and sieves
    take about three times as long, and so do steps.
    """

    test: float
    """A test of a first sieve of 16 ways: 0.06 ns."""
    long_test: float
    """A test of one of 32 ways: 0.09 ns."""
    sieve: float
    """A sieve that data choose: 3.6 ns."""
    walks: int
    """Fewer walks take as long as so many, as their steps wait for one another: 29 ns a step."""


@record
class Fourier:
    """Of Fourier transforms in stages, in products of a number."""

    moved: float
    """A number that a stage stores and the next one loads (Zen 5, lengths of 16 to 1024)."""


@record
class Coefficients:
    """The coefficients of all decisions, in groups."""

    tiles: Tiles
    blocks: Blocks
    windows: Windows
    sharing: Sharing
    layouts: Layouts
    fusion: Fusion
    stored_types: StoredTypes
    plans: Plans
    slices: Slices
    filtering: Filtering
    split_precision: SplitPrecision
    bf16_pairs: Bf16Pairs
    remainders: Remainders
    counting: Counting
    forests: Forests
    fourier: Fourier

    def __hash__(self) -> int:
        """Of few numbers: machines are hashed often, and most have the same coefficients."""
        return hash(self.bf16_pairs)


GROUPS: Mapping[str, type] = get_type_hints(Coefficients)
"""The groups by their names."""


def load(path: Path = FILE) -> Coefficients:
    """Those of a file."""
    found: Mapping[str, Mapping[str, float]] = json.loads(path.read_text("utf-8"))
    return Coefficients(**{group: made(**found[group]) for group, made in GROUPS.items()})


COEFFICIENTS = load()
"""Those of decisions for all machines."""
