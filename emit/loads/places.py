"""Where reads and stores are in memory, and the condition under which there is such a place."""

from __future__ import annotations

from collections.abc import Callable

from rutc.emit.index import FARTHEST, IndexEmitter
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import I32, i64, is_vector, splat
from rutc.emit.loads.lane_masks import both, constant_lanes
from rutc.emit.loads.load_store import BOOL
from rutc.emit.site import Sites
from rutc.tensor_ir.expr import Coord, Expr, Lit
from rutc.tensor_ir.indices.affine import ZERO, Index, Size
from rutc.tensor_ir.indices.quotients import is_below
from rutc.tensor_ir.kernel import Buffer


class PlaceEmitter:
    """Tells coordinates' element numbers, and tests those that may be outside."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        index: IndexEmitter,
        sites: Sites,
        evaluate: Callable[[Expr], ir.Value],
        same_width: Callable[[list[ir.Value]], list[ir.Value]],
    ) -> None:
        """Emit at `builder`'s place; `evaluate` gives the coordinates that are data."""
        self.builder = builder
        self.index = index
        self.sites = sites
        self.evaluate = evaluate
        self.same_width = same_width
        self._fresh = 0
        self._rooms: dict[tuple[str, str, int], tuple[Lit | None, tuple[int, Index]]] = {}

    def located(
        self,
        places: tuple[tuple[str, Coord], ...],
        buffer: Buffer,
        fill: Lit | None,
        *,
        sure: bool = False,
    ) -> tuple[Index | None, ir.Value | None]:
        """The element number at coordinates, and the condition under which there is one.

        None for coordinates that are never inside, or if `sure` for such as need a test of the
        run: their variables need no values. Without a fill they always are inside.
        """
        site = self.sites.at(places, buffer, fill)
        at: tuple[object, ...] | None = None
        if site.names is not None:
            lane = self.index.lane
            # Which lanes are inside depends on the lanes, too.
            chunk = lane.key if fill is not None and lane is not None else None
            at = (*self.index.at(site.names), chunk)
        if at in site.addresses:
            return site.addresses[at], None
        address: Index | None
        if fill is None and site.address is not None:
            address, guard = self.index.resolve(site.address), None
        else:
            coords, guard = self.tested(places, buffer, fill, guarded=fill is not None, sure=sure)
            if coords is None:
                address = None
            elif site.address is not None:
                address = self.index.resolve(site.address)
            else:
                address = self.index.simplified(buffer.layout.element(coords, self.index.ranges))
        if at is not None and guard is None and not (sure and address is None):
            site.addresses[at] = address
        return address, guard

    def tested(
        self,
        places: tuple[tuple[str, Coord], ...],
        buffer: Buffer,
        fill: Lit | None,
        *,
        guarded: bool,
        sure: bool = False,
    ) -> tuple[dict[str, Index] | None, ir.Value | None]:
        """The coordinates inside of the buffer, and the condition under which they are inside.

        None as in `located`; without `guarded` what data give is clamped.
        """
        extents = dict(buffer.layout.extents)
        coords: dict[str, Index] = {}
        guard: ir.Value | None = None
        for d, c in places:
            if isinstance(c, Index):
                index = self.index.resolve(c)
            else:
                index = self._data_index(self.evaluate(c), extents[d], guarded=guarded)
            coords[d] = index
            if not guarded:
                continue
            low, high = self._room(d, buffer, fill)
            if self._is_within(index, low, high):
                continue
            if self._is_beyond(index, low, high):
                return None, None
            inside = self._lanes_within(index, low, high)
            if inside is None and sure:
                return None, None
            inside = inside or self._within(index, low, high, 8 * buffer.dtype.bytes)
            lanes = constant_lanes(inside)
            if lanes is not None and all(lanes):
                continue
            if lanes is not None and not any(lanes):
                return None, None
            guard = inside if guard is None else self._both(guard, inside)
        return coords, guard

    def first(
        self, places: tuple[tuple[str, Coord], ...], buffer: Buffer, fill: Lit | None
    ) -> Index:
        """The element number at coordinates of 0, but those that no loop within a tested one gives.

        Memory has this element wherever code comes that tests the others. It need not have the
        first of all: what lies near has one index of a dim, for which there is a loop around
        all else, or one with it, as loops of tasks are one, and begins as if those before it were
        there.
        """
        extents, tested = dict(buffer.layout.extents), FARTHEST
        inside: list[tuple[str, Index, int]] = []
        for d, c in places:
            index = self.index.resolve(c) if isinstance(c, Index) else None
            least = Index.of(extents[d]).bounds(self.index.ranges)
            if index is not None and self._is_within(index, *self._room(d, buffer, fill)):
                inside.append((d, index, self.index.depth(index)))
            elif least is None or least[0] < 1:
                # It may be empty, and none of its places be there.
                return ZERO
            elif index is not None:
                tested = min(tested, self.index.depth(index))
        given = {d: x for d, x, at in inside if at <= tested and at < FARTHEST}
        coords = dict.fromkeys(extents, ZERO) | given
        return self.index.simplified(buffer.layout.element(coords, self.index.ranges))

    def never_inside(
        self, places: tuple[tuple[str, Coord], ...], buffer: Buffer, fill: Lit | None
    ) -> bool:
        """Whether coordinates are known to be outside of the buffer, in all lanes."""
        site = self.sites.at(places, buffer, fill)
        at = None if site.names is None else self.index.at(site.names)
        known = site.outside.get(at) if at is not None else None
        if known is None:
            inside = [(d, self.index.resolve(c)) for d, c in places if isinstance(c, Index)]
            known = any(self._is_beyond(x, *self._room(d, buffer, fill)) for d, x in inside)
            if at is not None:
                site.outside[at] = known
        return known

    def _room(self, dim: str, buffer: Buffer, fill: Lit | None) -> tuple[int, Index]:
        """The first and the last coordinate along a dim that a buffer has memory for.

        The table keeps the fill, so that nothing else gets its identity.
        """
        key = buffer.name, dim, id(fill)
        known = self._rooms.get(key)
        if known is None:
            before, after = buffer.layout.room(dim, fill)
            last = Index.of(dict(buffer.layout.extents)[dim]) + (after - 1)
            known = self._rooms[key] = fill, (-before, last)
        return known[1]

    def _is_beyond(self, index: Index, low: int, high: Index) -> bool:
        """Whether an index is known not to be within."""
        bounds, last = self.index.bounds(index), high.bounds(self.index.ranges)
        return bounds is not None and last is not None and (bounds[1] < low or bounds[0] > last[1])

    def _is_within(self, index: Index, low: int, high: Index) -> bool:
        """Whether an index is known to be within."""
        bounds, last = self.index.bounds(index), high.bounds(self.index.ranges)
        if bounds is None or bounds[0] < low:
            return False
        if last is not None and bounds[1] <= last[0]:
            return True
        return is_below(index, high + 1, self.index.ends, self.index.ranges)

    def _data_index(self, value: ir.Value, extent: Size, *, guarded: bool) -> Index:
        """A fresh variable for a data-dependent coordinate, clamped unless a guard tests it."""
        if not guarded:
            value = self._clamp(value, extent)
        self._fresh += 1
        name = f"${self._fresh}"
        self.index.define(name, value)
        if not guarded:
            most = Index.of(extent).bounds(self.index.ranges)
            if most is not None:
                self.index.ranges[name] = (0, max(most[1] - 1, 0))
        return Index.of(name)

    def _clamp(self, value: ir.Value, extent: Size) -> ir.Value:
        b = self.builder
        zero = ir.Constant(value.type, None) if is_vector(value) else i64(0)
        high = self._limit(Index.of(extent) - 1, value)
        value = b.select(b.icmp_signed("<", value, zero), zero, value)
        return b.select(b.icmp_signed(">", value, high), high, value)

    def _limit(self, limit: Index, value: ir.Value) -> ir.Value:
        """A limit to compare `value` with."""
        emitted = self.index.emit(limit)
        return splat(self.builder, emitted, value.lanes) if is_vector(value) else emitted

    def _within(self, index: Index, low: int, high: Index, bits: int) -> ir.Value:
        """The condition that an index is within, computed once for equal ones.

        Elements of so many bits are loaded where it holds.
        """
        key = "within", index, low, high, bits, self.index.window(index)
        return self.index.shared(key, lambda: self._compared(index, low, high, bits), index, high)

    def _compared(self, index: Index, low: int, high: Index, bits: int) -> ir.Value:
        bounds, last = self.index.bounds(index), high.bounds(self.index.ranges)
        begin = self._first_of_neighbours(index)
        value = self.index.emit(index) if begin is None else None
        condition: ir.Value | None = None
        for op, limit, known in (
            (">=", Index.of(low), bounds is not None and bounds[0] >= low),
            ("<=", high, bounds is not None and last is not None and bounds[1] <= last[0]),
        ):
            if known:
                continue
            if begin is not None:
                test = self._numbers(op, limit - begin, bits)
            else:
                assert value is not None
                test = self.builder.icmp_signed(op, value, self._limit(limit, value))
            condition = test if condition is None else self.builder.and_(condition, test)
        assert condition is not None
        return condition

    def _first_of_neighbours(self, index: Index) -> Index | None:
        """What the first lane's index is, where each lane's is one more than that before it."""
        lane = self.index.lane
        if lane is None or index.coefficient(lane.var) != 1 or self.index.holds_vectors(index):
            return None
        first = index - Index.of(lane.var) + lane.base
        return None if lane.var in first.names() else first

    def _numbers(self, op: str, limit: Index, bits: int) -> ir.Value:
        """The lanes whose numbers compare so with a limit.

        Numbers are as long as the elements that are loaded then: a vector of them is compared in as
        many registers as it has, and is their mask.
        """
        b, lane = self.builder, self.index.lane
        assert lane is not None
        number = ir.IntType(min(bits, I32.width) if lane.lanes < 1 << (bits - 1) else I32.width)
        # Beyond both ends all limits are alike.
        above = b.intrinsic("smax", self.index.emit(limit), i64(-1))
        near = b.intrinsic("smin", above, i64(lane.lanes))
        numbers = ir.Constant(ir.VectorType(number, lane.lanes), list(range(lane.lanes)))
        return b.icmp_signed(op, numbers, splat(b, b.trunc(near, number), lane.lanes))

    def _lanes_within(self, index: Index, low: int, high: Index) -> ir.Value | None:
        """The lanes whose coordinate is within, as a constant; None where they are not known.

        Idle lanes count as their neighbours do.
        """
        lane = self.index.lane
        if lane is None or not high.is_const or index.names() != {lane.var}:
            return None
        last = lane.lanes - 1
        if lane.end.is_const:
            last = min(last, lane.end.const - 1 - lane.base)
        at = [index.subs({lane.var: Index.of(lane.base + min(i, last))}) for i in range(lane.lanes)]
        inside = [low <= c.value <= high.const for c in at]
        return ir.Constant(ir.VectorType(BOOL, lane.lanes), inside)

    def _both(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """That two conditions hold, computed once for the same two."""

        def build() -> ir.Value:
            p, q = self.same_width([a, b])
            return both(self.builder, p, q) if is_vector(p) else self.builder.and_(p, q)

        return self.index.shared(("both", a.ref, b.ref), build, a, b)
