"""Sums of a few products of neighbours at once: the body of a loop of kind `dot`.

Operands are integers of 8 or 16 bits and the state is an i32, or they are bf16 and it is an f32:
with `vdpbf16ps` a lane takes in two products of those. With `vpdpbusd` a lane takes in four
products of u8 by i8, with `vpdpwssd` two of i16. Without them it takes in four where factors
are small, as sums of two products fit 16 bits then, and are added up by a product with ones; and
two products of i16 otherwise, to which bytes are widened. None of these saturates.
A lane's neighbours are put together in an i32: loaded as they are where they lie together, shared
by all lanes where the operand does not vary with them, else put together from several loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rutc.base.record import record
from rutc.emit.cast import emit_cast, splat_int
from rutc.emit.expression import ExpressionEmitter
from rutc.emit.index import Lane
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, is_vector, splat
from rutc.emit.llvm.opaque import opaque, vector_register
from rutc.emit.loads.load_store import align
from rutc.emit.loads.nibbles import HALF
from rutc.emit.loads.storage import memory_type
from rutc.emit.short_product import pairs
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Read
from rutc.tensor_ir.facts.products import Factor, narrow_factors
from rutc.tensor_ir.indices.affine import ZERO, Index
from rutc.tensor_ir.kernel import Kind, Loop, Stmt, Update
from rutc.tensor_ir.machine import OCTET, PAIR, QUAD, Machine
from rutc.tensor_ir.statements import reads_in, walk_loops

I1, I8, I16 = ir.IntType(1), ir.IntType(8), ir.IntType(16)


@record
class DotLoop:
    """The loop being emitted: `var` from 0 below `extent`, of at most `group` iterations.

    What it reads is `away` from where it is known to be, by nothing. Registers have `room` for
    both parts of a factor whose signs are apart, for all rows of the tile.
    """

    var: str
    extent: int
    away: ir.Value | None = None
    start: int = 0
    room: bool = False

    def parts(self, length: int) -> list[DotLoop]:
        """Loops of so many of its iterations each, from `start` on."""
        starts = range(0, self.extent, length)
        return [replace(self, extent=min(length, self.extent - x), start=x) for x in starts]


def shares_windows(loop: Loop) -> bool:
    """Whether what a loop reads along itself, unrolled loops inside of it move along, too."""
    inside = {x.var for x in walk_loops(loop.body) if x.kind is Kind.UNROLL}
    found = (c for r in reads_in(loop.body) for _, c in r.coords)
    places = (c.names() for c in found if isinstance(c, Index))
    return any(loop.var in names and inside & names for names in places)


def has_room(loop: Loop, machine: Machine) -> bool:
    """Whether a tile's sums leave registers for magnitudes and signs of all columns of a step."""
    found = _sums(loop.body, machine)
    return found is not None and machine.holds_signs(*found)


def _sums(body: tuple[Stmt, ...], machine: Machine) -> tuple[int, int] | None:
    """(vectors of sums, vectors of columns) of a tile; None where their number is not known."""
    sums = columns = 0
    for s in body:
        if not isinstance(s, Loop):
            sums, columns = sums + 1, columns + 1
            continue
        inside = _sums(s.body, machine)
        if inside is None or not (s.lo.is_const and s.hi.is_const):
            return None
        extent = s.hi.value - s.lo.value
        if s.kind is Kind.VECTOR:
            vectors = -(-extent // machine.width)
            sums, columns = sums + vectors * inside[0], columns + vectors * inside[1]
        else:
            sums, columns = sums + extent * inside[0], max(columns, inside[1])
    return sums, columns


class DotEmitter:
    """Emits the updates of a dot loop."""

    def __init__(self, expressions: ExpressionEmitter) -> None:
        """Emit where `expressions` does."""
        self.expressions = expressions
        self.builder = expressions.builder
        self.index = expressions.index
        self.machine = expressions.machine
        self.few = not self.machine.loads_ahead

    def update(self, s: Update, loop: DotLoop, old: ir.Value) -> ir.Value | None:
        """The state after all iterations; None where no instruction does it."""
        lane = self.index.lane
        operands = narrow_factors(s)
        if operands is None or lane is None or not self.machine.adds_in_vectors_of(lane.lanes):
            return None
        a, b = operands
        factors = [r for f in operands for r in f.reads]
        small = any(self._is_small(r, loop) for r in factors)
        fours = any(self._in_fours(r, loop) for r in factors)
        group = self.machine.products(a.dtype, b.dtype, small=small, fours=fours)
        if group < loop.extent:
            return None
        neighbours = [self._neighbours(x, a, b, group, lane) for x in loop.parts(min(group, QUAD))]
        old = self.expressions.memory.widen(old, lane.lanes)
        p, q = neighbours[0]
        if a.dtype is DType.BF16:
            return self._bf16_pairs(old, *((q, p) if self._is_shared(a) else (p, q)))
        if self.machine.adds_apart(a.dtype):
            sums = (
                pairs(self.builder, p, q, lane.lanes) if group == PAIR else self._quads(neighbours)
            )
            # LLVM would add up products of several steps first, and spill what is not yet added;
            # where registers are few, it would also load factors of several steps first.
            register = vector_register(self.machine)
            return opaque(self.builder, self.builder.add(old, sums), register, in_order=self.few)
        narrow = ir.VectorType(ir.IntType(32 // group), group * lane.lanes)
        p, q = (self.builder.bitcast(x, narrow) for x in (p, q))
        kind = "wssd" if group == PAIR else "busd"
        name = f"llvm.x86.avx512.vpdp{kind}.{32 * lane.lanes}"
        return self.builder.call_named(name, old.type, [old, p, q])

    def _neighbours(
        self, loop: DotLoop, a: Factor, b: Factor, group: int, lane: Lane
    ) -> tuple[ir.Value, ir.Value]:
        """Both factors' neighbours that an instruction takes, the unsigned one's first."""
        with (
            self.index.variable(loop.var, None, (0, loop.extent - 1)),
            # Blocks of values may be as long as vectors.
            self.index.variable(lane.var, None, (lane.base, lane.base + lane.lanes - 1)),
        ):
            p, q = (
                self._factor(f.moved(loop.var, loop.start), loop, min(group, QUAD), lane)
                for f in (a, b)
            )
        return (q, p) if a.dtype is DType.I8 else (p, q)

    def _in_fours(self, r: Read, loop: DotLoop) -> bool:
        """Whether two pairs of the factor's neighbours are small together."""
        fours = self.expressions.buffers[r.value].small.fours
        return self._along(r, loop, fours, OCTET)

    def _is_small(self, r: Read, loop: DotLoop) -> bool:
        """Whether pairs of the factor's neighbours, from the loop's first one on, are small."""
        small = self.expressions.buffers[r.value].small
        if not small.pairs:
            return small.any_two
        return self._along(r, loop, small.pairs, PAIR)

    def _along(self, r: Read, loop: DotLoop, dims: tuple[str, ...], group: int) -> bool:
        """Whether a loop goes along one of these dims, from the first one of a group on."""
        at = {d: self.index.resolve(c) for d, c in r.coords if isinstance(c, Index)}
        along = [d for d, c in at.items() if loop.var in c.names()]
        return len(along) == 1 and all(
            d in dims and (at[d] - Index.of(loop.var)).is_multiple(group) for d in along
        )

    def _is_shared(self, f: Factor) -> bool:
        """Whether a factor is the same for all lanes."""
        return not any(
            self.index.varies(self.index.resolve(c))
            for r in f.reads
            for _, c in r.coords
            if isinstance(c, Index)
        )

    def _bf16_pairs(self, old: ir.Value, p: ir.Value, q: ir.Value) -> ir.Value:
        """The state after the two products of bf16 in every lane.

        Only the last operand of the instruction may be in memory, for all lanes at once, too.
        """
        factors = ir.VectorType(ir.BFloatType(), PAIR * old.lanes)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * old.lanes}"
        both = [self.builder.bitcast(x, factors) for x in (p, q)]
        return self.builder.call_named(name, old.type, [old, *both])

    def _quads(self, factors: Sequence[tuple[ir.Value, ir.Value]]) -> ir.Value:
        """The sums of the four products of u8 by small i8 in every lane, or of twice as many."""
        lanes = factors[0][0].lanes
        bytes_, halves = ir.VectorType(I8, 4 * lanes), ir.VectorType(I16, 2 * lanes)
        name = {
            16: "avx512.pmaddubs.w.512",
            8: "avx2.pmadd.ub.sw",
            4: "ssse3.pmadd.ub.sw.128",
        }[lanes]
        found: list[ir.Value] = []
        for pair in factors:
            own = [self.builder.bitcast(x, bytes_) for x in pair]
            found.append(self.builder.call_named(f"llvm.x86.{name}", halves, own))
        sums = found[0] if len(found) == 1 else self.builder.add(*found)
        return pairs(self.builder, sums, ir.Constant(halves, [1] * (2 * lanes)), lanes)

    # -- operands -------------------------------------------------------------------------------
    def _factor(self, f: Factor, loop: DotLoop, group: int, lane: Lane) -> ir.Value:
        """The factor's neighbours in every lane, as a vector of i32."""
        first, *signs = f.reads
        found: ir.Value = self._grouped(first, loop, group, lane)
        for r in signs:
            # An operand of the operation itself takes no register, but a load for each row.
            anew = self.few and not loop.room and not self._is_shared(Factor((r,)))
            found = self.builder.xor(found, self._grouped(r, loop, group, lane, anew=anew))
        return found

    def _grouped(
        self, r: Read, loop: DotLoop, group: int, lane: Lane, *, anew: bool = False
    ) -> ir.Value:
        """The operand's neighbours in every lane, as a vector of i32; `anew` if not to be kept."""
        coords = tuple((d, self.index.resolve(c)) for d, c in r.coords if isinstance(c, Index))
        shared = not any(self.index.varies(c) for _, c in coords)
        lanes = lane.lanes if shared else lane.key
        key = (r.value, coords, lanes, "dot", group, loop.extent)
        found = None if anew else self.expressions.kept(key)
        if found is None:
            found = self._together(r, loop, group, lane, anew=anew) or self._gathered(
                r, loop, group, lane
            )
            self.expressions.keep(key, found)
        return found

    def _together(
        self, r: Read, loop: DotLoop, group: int, lane: Lane, *, anew: bool = False
    ) -> ir.Value | None:
        """The group where a single load gets it; None where none does."""
        buffer = self.expressions.buffers[r.value]
        place = self.expressions.place(r)
        if place is None or place.coefficient(loop.var) != 1:
            return None
        if buffer.layout.nibbles:
            return self._from_nibbles(r, place, loop, group, lane)
        b, memory = self.builder, self.expressions.memory
        element = memory_type(r.dtype)
        first = place.subs({loop.var: Index.of(0)})
        if not self.index.varies(place):
            last = first.bounds(self.index.ranges)
            size = buffer.layout.size
            fits = last is not None and isinstance(size, int) and last[1] + group <= size
            if loop.extent < group and not fits:
                return None
            neighbours = ir.VectorType(element, group)
            at = memory.place(buffer, first)
            if loop.away is not None:
                at = b.gep(at, [loop.away], type_=I8)
            one = b.load(at, type_=neighbours, align=align(buffer))
            packed = self._cleared(self._packed(one, r.dtype, group), loop, group)
            return splat(b, packed, lane.lanes)
        if not self._side_by_side(first, group, lane):
            return None
        start = first.subs({lane.var: Index.of(lane.base)})
        vector = ir.VectorType(element, group * lane.lanes)
        end = (start + group * lane.lanes).bounds(self.index.ranges)
        size = buffer.layout.size
        inside = end is not None and isinstance(size, int) and end[1] <= size
        at = memory.place(buffer, start)
        if inside or (lane.mask is None and loop.extent == group):
            loaded: ir.Value = b.load(at, type_=vector, align=align(buffer), anew=anew)
            return self._cleared(self._packed(loaded, r.dtype, group), loop, group)
        if lane.mask is None or loop.extent < group:
            return None
        picks = [i // group for i in range(group * lane.lanes)]
        mask = b.shuffled(lane.mask, picks)
        loaded = memory.masked_load(buffer, at, vector, mask, ir.Constant(vector, None))
        return self._packed(loaded, r.dtype, group)

    def _side_by_side(self, first: Index, group: int, lane: Lane) -> bool:
        """Whether the groups of all lanes follow each other in memory, each from `first` on."""
        between = first - Index.of(lane.var) * (group - 1)
        return first.coefficient(lane.var) == group and self.expressions.memory.contiguous(
            between, lane
        )

    def _from_nibbles(
        self, r: Read, place: Index, loop: DotLoop, group: int, lane: Lane
    ) -> ir.Value | None:
        """A vector's groups of unsigned halves of bytes; None where they do not lie together.

        bytes  b0 b1 ..         loaded, and widened to 16 bits each
        b0 | b0 << 4, ..        whose lower 4 bits, and those 8 further up, are neighbours
        """
        buffer, memory = self.expressions.buffers[r.value], self.expressions.memory
        first = place.subs({loop.var: Index.of(0)})
        if r.dtype.is_signed or loop.extent != group or group % 2:
            return None
        if not self._side_by_side(first, group, lane):
            return None
        at = self.expressions.nibbles.place(first.subs({lane.var: Index.of(lane.base)}))
        count = group * lane.lanes // 2
        bytes_ = self.expressions.nibbles.bytes_of(buffer)
        inside = lane.mask is None or memory.is_inside(bytes_, at.byte, count)
        if at.upper != ZERO or not inside:
            return None
        b, wide = self.builder, ir.VectorType(I16, count)
        loaded = b.load(memory.place(bytes_, at.byte), type_=ir.VectorType(I8, count), align=1)
        pairs = b.zext(loaded, wide)
        moved = b.shl(pairs, splat_int(wide, HALF))
        halves = b.and_(b.or_(pairs, moved), splat_int(wide, 0x0F0F))
        return self._packed(b.bitcast(halves, ir.VectorType(I8, 2 * count)), DType.U8, group)

    def _cleared(self, packed: ir.Value, loop: DotLoop, group: int) -> ir.Value:
        """Groups with 0 in place of the neighbours beyond the loop's end."""
        if loop.extent == group:
            return packed
        kept = ir.Constant(I32, (1 << (32 // group * loop.extent)) - 1)
        b = self.builder
        return b.and_(packed, splat(b, kept, packed.lanes) if is_vector(packed) else kept)

    def _packed(self, neighbours: ir.Value, dtype: DType, group: int) -> ir.Value:
        """A vector of neighbours as one of i32 with `group` of them each."""
        b = self.builder
        lanes = neighbours.lanes // group
        if 8 * dtype.bytes * group < 32:
            halves = ir.VectorType(I16, 2 * lanes)
            neighbours = (b.sext if dtype.is_signed else b.zext)(neighbours, halves)
        return b.bitcast(neighbours, ir.VectorType(I32, lanes) if lanes > 1 else I32)

    def _gathered(self, r: Read, loop: DotLoop, group: int, lane: Lane) -> ir.Value:
        """The group put together from a load for each neighbour, 0 beyond the loop's end."""
        b = self.builder
        bits = 32 // group
        parts: list[ir.Value] = []
        for i in range(loop.extent):
            with self.index.constant(loop.var, i):
                parts.append(self._bits(self.expressions.emit(r), r.dtype))
        # A neighbour beyond the operand's end is one number for all lanes.
        if any(map(is_vector, parts)):
            parts = [self.expressions.memory.widen(p, lane.lanes) for p in parts]
        total: ir.Value | None = None
        for i, part in enumerate(parts):
            shifts: ir.Value = ir.Constant(I32, bits * i)
            low: ir.Value = ir.Constant(I32, (1 << bits) - 1)
            if is_vector(part):
                shifts, low = (splat(b, x, lane.lanes) for x in (shifts, low))
            # Of the last one, the shift itself drops the upper bits.
            kept = b.and_(part, low) if i < group - 1 else part
            placed = b.shl(kept, shifts) if i else kept
            total = placed if total is None else b.or_(total, placed)
        assert total is not None
        return self.expressions.memory.widen(total, lane.lanes)

    def _bits(self, part: ir.Value, dtype: DType) -> ir.Value:
        """A neighbour in the lower bits of an i32."""
        if dtype is not DType.BF16:
            return emit_cast(self.builder, part, dtype, DType.I32)
        return self.builder.zext(part, ir.VectorType(I32, part.lanes) if is_vector(part) else I32)
