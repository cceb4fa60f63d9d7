"""What schedules and code generation know of a processor: a description, not code."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

from rutc.base.record import record
from rutc.tensor_ir.coefficients import COEFFICIENTS, Coefficients
from rutc.tensor_ir.dtype import DType

NEAR_STRIDES = range(2, 5)
"""How far apart elements may lie that are loaded with all between them, and sorted in registers."""

NARROWEST_MASKED = 4
"""Bytes of the narrowest elements for which every machine has masked loads."""

PAIR = 2
"""Products of neighbours that instructions for factors of 16 bits add up."""

BF16_VECTORS = "avx512bf16"
"""The feature of instructions that make bf16, and add up products of pairs of it."""

QUAD = 4
"""Products of neighbours that instructions for factors of 8 bits add up."""

OCTET = 8
"""Those of which two sums of 16 bits are added up first."""

VECTOR_BITS = (128, 256, 512)
"""The widths of vectors that instructions for products of neighbours take."""
FEWEST_LANES = VECTOR_BITS[0] // 32
"""Lanes of 32 bits of the narrowest vectors: those of no machine pay along shorter loops."""
ROWS_OF_PAGE = 4
"""The hardware foresees the next row from these, and asks for nothing beyond their page."""
WORD = 4
"""Bytes of elements that are picked in registers."""
ROW_REGISTERS = 4
"""A row of which lanes pick elements has no more of them."""
SHUFFLED_BYTES = 16
"""Bytes among which an instruction picks that does so in each part of a register by itself."""
MOST_SHUFFLED = 256
"""Bytes of the longest row that such instructions pick from: as many as a byte numbers."""

MATRICES = "amx-tile"
"""The feature of all registers for matrices."""


def matrix_feature(dtype: DType) -> str:
    """Returns the feature of registers for matrices of such elements."""
    return "amx-bf16" if dtype is DType.BF16 else "amx-int8"


@record
class Machine:
    """One target: all that decisions may know about the processor that code is for.

    `vector_bits` is the width of a vector register, `registers` their number; `fma_per_cycle` and
    `loads_per_cycle` are vector operations, `half_fma_per_cycle` those on vectors half as long,
    `scalar_loads_per_cycle` loads of single elements, into all lanes too; `bf16_pairs_per_cycle`
    are those that add up products of pairs of bf16, where there are any. `load_cycles` is what a
    load adds that is hidden behind arithmetic: on some processors many of them lower the clock;
    `sort_cycles` is what a vector adds whose elements are sorted out of their neighbours,
    `store_cycles` what one adds that is stored right after `hidden_stores` others, which arithmetic
    hides; `divide_cycles` is the time from one division of vectors to the next, `gather_cycles`
    that from one gather of elements of 32 bits to the next; `fma_latency` the cycles until a
    multiply-add has its result, `forward_cycles` those from a store until a load has what it
    stored. Caches are bytes per core; addresses that differ by multiples of `l1_way_bytes` share
    the lines of one set of the first one. The hardware asks for nothing beyond a page. `l3` is
    shared by all cores.
    `l2_bytes_per_cycle`, `l3_bytes_per_cycle` and `memory_bytes_per_cycle` arrive at one thread
    that reads in order, `foreign_bytes_per_cycle` where another core has just written them; from
    memory, `hint_gain` times as many arrive at one that converts what it reads and asks ahead.

    With `cores` 1 no kernel is split among threads; otherwise their number is left to the time of
    running. `launch_cycles` is what it takes to start threads that wait for it, and to wait for
    them; `turn_cycles` until one goes on to its next turn of a kernel, `wake_cycles` until one runs
    that has slept. `coefficients` are those of decisions for it.
    """

    name: str
    triple: str
    features: frozenset[str]
    vector_bits: int
    registers: int
    fma_per_cycle: float = 2.0
    half_fma_per_cycle: float = 2.0
    bf16_pairs_per_cycle: float = 1.0
    loads_per_cycle: float = 2.0
    scalar_loads_per_cycle: float = 2.0
    load_cycles: float = 0.2
    sort_cycles: float = 0.0
    store_cycles: float = 0.0
    hidden_stores: int = 16
    divide_cycles: float = 8.0
    gather_cycles: float = 4.0
    fma_latency: int = 4
    forward_cycles: float = 8.0
    l1: int = 32 << 10
    l1_way_bytes: int = 4 << 10
    l2: int = 1 << 20
    l2_bytes_per_cycle: float = 32.0
    l3: int = 32 << 20
    l3_bytes_per_cycle: float = 24.0
    line_bytes: int = 64
    page_bytes: int = 4 << 10
    memory_bytes_per_cycle: float = 8.0
    hint_gain: float = 1.0
    foreign_bytes_per_cycle: float = 3.0
    cores: int = 2
    launch_cycles: int = 3000
    turn_cycles: int = 60
    wake_cycles: int = 100_000
    coefficients: Coefficients = COEFFICIENTS

    def __repr__(self) -> str:
        return f"Machine({self.name!r})"

    def __str__(self) -> str:
        """All that is known of the processor, on one line, the same in every process."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "coefficients"}
        return str({**values, "features": sorted(self.features)})

    @property
    def architecture(self) -> str:
        """The processor's family, as the operating system calls it."""
        return self.triple.partition("-")[0]

    @property
    def width(self) -> int:
        """Lanes of 32 bits in a register."""
        return self.vector_bits // 32

    def has_matrices(self, dtype: DType) -> bool:
        """Whether there are registers for matrices of such elements: 8-bit integers, or bf16."""
        if dtype is DType.I16:
            return False
        return matrix_feature(dtype) in self.features

    @property
    def has_masks(self) -> bool:
        """Whether there are registers for masks, so that a masked store is one operation."""
        return "avx512f" in self.features

    @property
    def saturates(self) -> bool:
        """Whether an instruction makes bytes of integers of 32 bits, the nearest that there are."""
        return self.architecture == "x86_64" and "avx512vl" in self.features

    @property
    def packs(self) -> bool:
        """Whether instructions put integers of 32 bits together as the nearest bytes."""
        return self.architecture == "x86_64" and "avx2" in self.features

    @property
    def passes_over_nan(self) -> bool:
        """Whether the instruction for the larger of two numbers may give one beside a NaN."""
        return self.architecture == "x86_64"

    def alone(self) -> Machine:
        """The same machine for kernels whose tasks are not shared among threads."""
        return replace(self, cores=1)

    def without_matrices(self) -> Machine:
        """The same machine, its matrix registers left alone."""
        kept = frozenset(f for f in self.features if not f.startswith("amx-"))
        return replace(self, features=kept)

    def with_matrices(self, used: Collection[str]) -> Machine:
        """The same machine, of whose matrix registers only these features are used, or none."""
        kept = self.features & {*used, *((MATRICES,) if used else ())}
        return replace(self, features=self.without_matrices().features | kept)

    def without_bf16(self) -> Machine:
        """The same machine without instructions on bf16, which take subnormal numbers for zeros."""
        return replace(self, features=frozenset(f for f in self.features if "bf16" not in f))

    def products(self, a: DType, b: DType, *, small: bool = False, fours: bool = False) -> int:
        """How many products of neighbours of these types instructions add up at once.

        They are added to an i32, those of bf16 to an f32. 1 where there are no such instructions.
        Factors of i8 may be `small` (`tensor_ir.facts.products`), and in `fours`: then two sums of
        two products are added up in 16 bits.
        """
        if a is DType.BF16 and b is DType.BF16:
            return PAIR if BF16_VECTORS in self.features and self.vector_bits == 512 else 1
        bytes_ = (DType.I8, DType.U8, DType.U4)
        if not {a, b} <= {*bytes_, DType.I16} or self.architecture != "x86_64":
            return 1
        if DType.I16 in (a, b):
            return PAIR
        mixed = a.is_signed is not b.is_signed
        if mixed and fours and not self.adds_products:
            return OCTET
        return QUAD if mixed and (small or self.adds_products) else PAIR

    def permutes(self, dtype: DType) -> bool:
        """Whether an instruction picks lanes of a register by numbers that a run gives."""
        return dtype is DType.F32 and self.architecture == "x86_64"

    def picks(self, bytes_: int, elements: int, lanes: int) -> int:
        """The operations by which so many lanes take what data choose among some neighbours.

        One takes elements of as many registers as instructions permute at once; of more, several
        do, and what each gives is chosen from by a comparison. 0 where lanes are not those of a
        register, bytes those of a part of one, or there are too many neighbours: each lane is
        loaded by itself.
        """
        at_once = self.permutes_at_once(bytes_)
        if bytes_ == 1 and not at_once:
            return self._picks_in_parts(elements, lanes)
        registers = -(-elements * bytes_ // (self.vector_bits // 8))
        full = lanes == self.width if bytes_ == WORD else self.width <= lanes <= WORD * self.width
        if not at_once or not full or registers > ROW_REGISTERS:
            return 0
        permutations = max(-(-registers // at_once), 1)
        return 3 * permutations - 2

    def _picks_in_parts(self, elements: int, lanes: int) -> int:
        """The same of bytes, of which an instruction picks among 16: three operations for each 16.

        To extract a number, to load a byte and to insert it are three for each lane.
        """
        parts = -(-elements // SHUFFLED_BYTES)
        operations = 3 * parts - 2
        able = self.shuffles_bytes and elements <= MOST_SHUFFLED and lanes <= WORD * self.width
        return operations if able and operations <= 3 * lanes else 0

    @property
    def shuffles_bytes(self) -> bool:
        """Whether an instruction picks bytes in each part of a register by itself."""
        needed = "avx512bw" if self.vector_bits == 512 else "avx2"
        return self.architecture == "x86_64" and needed in self.features

    def permutes_at_once(self, bytes_: int) -> int:
        """The registers of which an instruction picks elements of so many bytes, by numbers."""
        if bytes_ == 1:
            return 2 if self.vector_bits == 512 and "avx512vbmi" in self.features else 0
        if bytes_ != WORD or not self.permutes(DType.F32) or "avx2" not in self.features:
            return 0
        return 2 if self.vector_bits == 512 else 1

    @property
    def pairs_by_singles(self) -> float:
        """How many products of bf16 vectors add up, in pairs, in the time of one of f32."""
        return PAIR * self.bf16_pairs_per_cycle / self.fma_per_cycle

    @property
    def adds_products(self) -> bool:
        """Whether one instruction adds products of neighbours, of bytes or of i16, to an i32."""
        return ("avx512vnni" if self.vector_bits == 512 else "avxvnni") in self.features

    def adds_in_vectors_of(self, lanes: int) -> bool:
        """Whether instructions that add up products of neighbours take so many lanes of 32 bits.

        There are some for whole vectors, and for halves and quarters of the longest ones.
        """
        return lanes <= self.width and 32 * lanes in VECTOR_BITS

    def adds_apart(self, dtype: DType) -> bool:
        """Whether another instruction adds sums of products of neighbours of a type to what is."""
        return dtype is not DType.BF16 and not self.adds_products

    @property
    def vectors_at_once(self) -> int:
        """Vectors that an iteration computes side by side, one of which begins in each cycle.

        So the first has its result when the last one has begun.
        """
        return self.fma_latency

    @property
    def hints_help(self) -> bool:
        """Whether to ask ahead for what is read in order and converted brings more."""
        return self.hint_gain > 1

    @property
    def far_bytes(self) -> int:
        """From this distance on, the hardware does not know the next row from the one before."""
        return self.page_bytes // ROWS_OF_PAGE

    @property
    def loads_ahead(self) -> bool:
        """Whether a tile of sums leaves registers to load operands ahead of their use.

        Twice as many sums as are under way at a time fill a tile: none waits for the one before.
        """
        return self.registers > 2 * self.fma_latency * self.fma_per_cycle

    def bytes_again(self, size: float) -> float:
        """The bytes a cycle of what is read in every run, so many in all.

        Half of the second cache keeps them until the next one.
        """
        return self.l2_bytes_per_cycle if size <= self.l2 // 2 else self.l3_bytes_per_cycle

    @property
    def rows_that_hide(self) -> float:
        """So many rows of a product take as long as its weights from beyond the second cache.

        Each of them multiplies `fma_per_cycle` vectors of weights in a cycle.
        """
        fetched = self.coefficients.filtering.far_bytes
        return self.fma_per_cycle * self.vector_bits / 8 / fetched

    def holds_signs(self, sums: int, columns: int) -> bool:
        """Whether so many sums leave registers for magnitudes and signs of so many vectors.

        Besides, there are one that all lanes share, a product, and the ones that add up its halves.
        """
        return sums + 2 * columns + 3 <= self.registers

    @property
    def least_part(self) -> float:
        """The part of an operation on a whole register that the smallest one takes as long as."""
        return self.fma_per_cycle / max(self.half_fma_per_cycle, self.fma_per_cycle)

    def part_of_register(self, lanes: int) -> float:
        """The part of an operation on a whole register that one on so many lanes takes."""
        return max(lanes / self.width, self.least_part)

    def lanes(self, extent: int) -> int:
        """Lanes that a vector loop of `extent` iterations uses: a power of two."""
        lanes, most = 1, min(extent, self.width)
        while lanes < most:
            lanes *= 2
        return lanes


COMMON = Machine("common", "", frozenset(), vector_bits=512, registers=32)
"""What rules assume where no machine is named: the usual rates and caches."""
