"""Counts what a scheduled kernel's code does, region by region, and collects what it touches.

As code generation does it: equal loads of straight-line code are one, what does not depend on a
loop is computed outside of it, vectors move whole registers where lanes lie side by side.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import assert_never

from rutc.tensor_ir.cost.accesses import Accesses, Load
from rutc.tensor_ir.cost.addresses import NONE, Names, region_of, union
from rutc.tensor_ir.cost.frames import Frame, Frames, Role, block_loads, copies_held, executions
from rutc.tensor_ir.cost.operations import (
    add_operations,
    depth_of,
    is_added_to,
    is_larger,
    is_waited_for,
    kind_of,
    reads_of,
    whole_within,
)
from rutc.tensor_ir.cost.work import Operand, Tally
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import (
    Apply,
    BitCast,
    Cast,
    Expr,
    IndexValue,
    Lit,
    Local,
    Read,
    bind,
    children,
    index_names,
    plain_names,
)
from rutc.tensor_ir.facts.gradual import row_chosen, table_along
from rutc.tensor_ir.facts.matrix_blocks import ROWS
from rutc.tensor_ir.facts.products import narrow_factors
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Branch,
    Buffer,
    Init,
    Kernel,
    Kind,
    Loop,
    Merge,
    Prefetch,
    Put,
    Stmt,
    Update,
)
from rutc.tensor_ir.kernel import Space as Memory
from rutc.tensor_ir.machine import OCTET, PAIR, QUAD, Machine
from rutc.tensor_ir.reducer import as_locals
from rutc.tensor_ir.statements import walk_within


class Counter(Accesses):
    """Walks through a kernel once."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        """Count all of the kernel's statements."""
        super().__init__(kernel, machine)
        self.started: dict[str, tuple[int, ...]] = {}
        """The regions in which the states of reductions begin."""
        self.written = dict[str, Names]()
        """The loops around what writes to memory: none of it is loaded before them."""
        self._note_writes(kernel.body)
        self._stmts(kernel.body, ())

    # -- statements -----------------------------------------------------------------------------
    def _stmts(self, body: tuple[Stmt, ...], frames: Frames) -> None:
        for number, s in enumerate(body):
            match s:
                case Loop():
                    frame = self.space.frame(s, frames)
                    if frame.trip > 0:
                        inner = (*frames, frame)
                        self.tally(inner)
                        self._stmts(s.body, inner)
                case Branch():
                    for arm, around, narrowed in self.space.arms(s, frames):
                        before = {v: self.space.ranges[v] for v in narrowed}
                        self.space.ranges.update(narrowed)
                        self._stmts(arm, around)
                        self.space.ranges.update(before)
                case Assign():
                    names = self._expr(s.value, frames)
                    self._assign(s.target, names, frames)
                case Put():
                    self._put(s, frames)
                case Init():
                    for a in s.states:
                        self.started[a.buffer] = region_of(frames)
                        self._assign(a, plain_names(a.coords), frames)
                case Update():
                    self._update(s, frames)
                case Merge():
                    self._merge(s, frames, waits=is_waited_for(s, body[number + 1 :]))
                case Prefetch():
                    at, count = self.home(NONE.union(s.address.names()), frames)
                    self.tally(frames, at).add("prefetches", count)
                case _:
                    assert_never(s)

    def _note_writes(self, body: tuple[Stmt, ...]) -> None:
        for s, around in walk_within(body):
            if isinstance(s, Assign | Put):
                loops = {x.var for x in around if x.kind in (Kind.SERIAL, Kind.PARALLEL)}
                name = s.target.buffer
                self.written[name] = self.written.get(name, NONE) | loops

    def _assign(self, target: Access, names: Names, frames: Frames) -> None:
        buffer = self.buffers[target.buffer]
        if buffer.space is Memory.REGISTER:
            self.registers[buffer.name] = names | plain_names(target.coords)
            return
        if any(f.role is Role.GROUP for f in frames):
            self.tally(frames).add("blocks", ROWS * executions(frames))
            self.touch(buffer, target.coords, frames, is_store=True)
            return
        self.store(buffer, target, frames)

    def _put(self, s: Put, frames: Frames) -> None:
        self._expr(s.value, frames)
        told = NONE.union(
            *[self._expr(c, frames) for _, c in s.target.coords if not isinstance(c, Index)]
        )
        buffer = self.buffers[s.target.buffer]
        address = self.address(buffer, s.target.coords)
        lanes = next((f for f in frames if f.role is Role.LANES and f.lanes > 1), None)
        tally, times = self.tally(frames), executions(frames)
        if lanes is None or (lanes.var not in told and address.coefficient(lanes.var) == 1):
            # One element, or neighbours of which data tell where they all are.
            each = times * (1.0 if lanes is None else self.part_of(lanes, buffer.dtype.bytes))
            stored, loaded = "stores", "broadcasts" if lanes is None else "loads"
            tests = times
        else:
            each = tests = times * lanes.lanes
            stored, loaded = "scattered", "gathered"
        tally.add(stored, each)
        if s.reducer is not None:
            tally.add(loaded, each)
            tally.add("arithmetic", times * self.least)
        tally.add("scalar", 2 * tests)
        self.touch(buffer, s.target.coords, frames, is_store=True)

    def _update(self, s: Update, frames: Frames) -> None:
        tally, everything = self.tally(frames), frozenset(f.var for f in frames)
        times = executions(frames)
        roles = {f.role for f in frames}
        first, moved = self.buffers[s.states[0].buffer], plain_names(s.states[0].coords)
        if first.space is Memory.REGISTER:
            self.summing.add(region_of(frames))
        held = 1.0
        for f in frames:
            if f.role in (Role.COPIES, Role.LANES) and f.var in moved:
                held *= f.times
        carried = self.started.get(first.name) != region_of(frames) and any(
            f.role is Role.LOOP and f.trip > 1 for f in frames
        )
        steps = times / held if held else 0.0
        if Role.GROUP in roles and self._grouped(s, frames, steps):
            latency = float(self.machine.fma_latency)
        else:
            # Where no instruction does a group, its iterations are copies.
            frames = tuple(
                replace(f, role=Role.COPIES, times=f.trip) if f.role is Role.GROUP else f
                for f in frames
            )
            steps = executions(frames) / held if held else 0.0
            for a in s.states:
                self.registers[a.buffer] = everything
            lifted = [bind(e, as_locals(x=s.elements)) for e in s.reducer.lift]
            types = s.reducer.state
            states = [Read(a.buffer, a.coords, t) for a, t in zip(s.states, types, strict=True)]
            env: dict[str, Expr] = as_locals(a=states, b=lifted)
            known: dict[int, Names] = {}
            merged = [bind(e, env) for e in s.reducer.merge]
            for e in merged:
                self._expr(e, frames, known, tally.operands, steps)
            own = {a.buffer for a in s.states}
            latency = max(depth_of(e, own, self.machine) or 0.0 for e in merged)
        for a in s.states:
            self.registers[a.buffer] = self._outer(frames) | moved
        if first.space is Memory.REGISTER:
            wide = sum(max(1, t.bytes // 4) for t in s.reducer.state)
            tally.states[first.name] = max(tally.states.get(first.name, 0.0), held * wide)
            if carried:
                tally.wait(first.name, steps * latency)

    def _outer(self, frames: Frames) -> Names:
        return frozenset(f.var for f in frames if f.role is Role.LOOP)

    def _is_small(self, r: Read, var: str) -> bool:
        """Whether a factor's neighbours along a loop are small."""
        small = self.buffers[r.value].small
        return small.any_two or any(
            d in small.pairs and isinstance(c, Index) and var in c.names() for d, c in r.coords
        )

    def _in_fours(self, r: Read, var: str) -> bool:
        """Whether pairs of a factor's neighbours along a loop are small together."""
        fours = self.buffers[r.value].small.fours
        return any(d in fours and isinstance(c, Index) and var in c.names() for d, c in r.coords)

    def _grouped(self, s: Update, frames: Frames, steps: float) -> bool:
        """Count the instructions of a dot or matrix loop; False where there are none for it."""
        tally, times = self.tally(frames), executions(frames)
        pair = narrow_factors(s)
        groups = [f for f in frames if f.role is Role.GROUP]
        if len(groups) > 1:
            tally.add("matrices", times)
            for r in reads_of(s.elements):
                names = plain_names(r.coords)
                at, count = self.home(names, frames)
                count *= ROWS * block_loads(names, plain_names(s.states[0].coords), frames)
                self.tally(frames, at).add("blocks", count)
                self.touch(self.buffers[r.value], r.coords, frames, is_store=False)
            return True
        lanes = next((f.lanes for f in frames if f.role is Role.LANES), 1)
        if pair is None or not self.machine.adds_in_vectors_of(lanes):
            return False
        factors = [r for f in pair for r in f.reads]
        small = any(self._is_small(r, groups[0].var) for r in factors)
        fours = any(self._in_fours(r, groups[0].var) for r in factors)
        together = self.machine.products(pair[0].dtype, pair[1].dtype, small=small, fours=fours)
        if together < groups[0].trip:
            return False
        direct = not self.machine.adds_apart(pair[0].dtype)
        changes = len(factors) - len(pair)
        if pair[0].dtype is DType.BF16:
            # They use the units of multiply-adds.
            each = self.machine.fma_per_cycle / self.machine.bf16_pairs_per_cycle
            tally.add("multiply_adds", times * each)
        elif direct:
            # So do those of bytes and of i16, as many in a cycle.
            tally.add("multiply_adds", times)
            tally.add("dots", times * changes)
        else:
            operations = {PAIR: 2, QUAD: 3, OCTET: 5}[together]
            tally.add("dots", times * (operations + changes))
        widened = together == PAIR
        for r in factors:
            before = dict(tally.work)
            self.read(r, frames, tally.operands, steps)
            loads = sum(
                tally.work.get(k, 0.0) - before.get(k, 0.0) for k in ("loads", "broadcasts")
            )
            if widened and r.dtype.bytes == 1:
                tally.add("conversions", loads)
        if not direct:
            tally.states[f"{s.states[0].buffer}.products"] = (
                ceil(self.machine.fma_per_cycle) + together // QUAD
            )
        return True

    def _merge(self, s: Merge, frames: Frames, *, waits: bool) -> None:
        tally, times = self.tally(frames), executions(frames)
        lanes = self.machine.lanes(s.extent)
        halvings = lanes.bit_length() - 1
        joins = -(-s.extent // lanes) - 1 + halvings + 1
        states = len(s.states)
        scratch = Tally("", 1.0, 1.0)
        for e in s.reducer.merge:
            add_operations(e, scratch, joins * times)
        for kind, count in scratch.work.items():
            tally.add(kind, count * self.least)
        for name, count in scratch.functions.items():
            tally.call(name, count * self.least)
        tally.add("shuffles", times * 2 * halvings * states * self.least)
        if waits:
            own = {f"a{i}" for i in range(states)}
            depth = max(depth_of(e, own, self.machine) or 0.0 for e in s.reducer.merge) + 2
            tally.wait("merge", times * depth * (halvings + 1))
        names = self._outer(frames)
        for a in s.states:
            self.registers[a.buffer] = names | plain_names(a.coords)

    # -- expressions ----------------------------------------------------------------------------
    def _expr(
        self,
        e: Expr,
        frames: Frames,
        known: dict[int, Names] | None = None,
        operands: list[Operand] | None = None,
        steps: float = 0.0,
    ) -> Names:
        """What the value depends on; its operations are counted once."""
        return _Expression(self, frames, {} if known is None else known, operands, steps).visit(e)

    def operation(
        self,
        kind: str,
        count: float,
        dtype: DType,
        names: Names,
        frames: Frames,
        known: float | None = None,
    ) -> None:
        """So many operations of a kind, computed where what they depend on is known.

        They are done as often as copies differ that need them, or as is `known`.
        """
        at, times = self.home(names, frames)
        times = times if known is None else known
        lanes = self.lanes(names, frames)
        if dtype.is_float or kind != "divisions":
            whole = lanes is None and not dtype.is_float
            kind, share = ("scalar", 1.0) if whole else (kind, self.part(dtype, names, frames))
        elif lanes is not None and dtype.quotient is not None:
            share = self.part(dtype.quotient, names, frames)
        else:
            share = 1.0 if lanes is None else float(lanes.lanes)
        self.tally(frames, at).add(kind, count * times * share)

    def _permutes(self, r: Read, buffer: Buffer, lanes: Frame) -> int:
        """The shuffles by which lanes take what data choose from a register; 0 where they do not.

        That is a table along the lanes, or a short row.
        """
        if buffer.singly:
            return 0
        if self.machine.permutes(buffer.dtype) and table_along(r, self.buffers, lanes.var):
            return 1
        row = row_chosen(r.coords, buffer.layout)
        if row is None or lanes.var in plain_names(r.coords):
            return 0
        return self.machine.picks(buffer.dtype.bytes, row[1], lanes.lanes)

    # -- memory ---------------------------------------------------------------------------------
    def read(
        self,
        r: Read,
        frames: Frames,
        operands: list[Operand] | None = None,
        steps: float = 0.0,
    ) -> Names:
        """What the element depends on that is read."""
        buffer = self.buffers[r.value]
        names = plain_names(r.coords)
        if buffer.space is Memory.REGISTER:
            return names | self.registers.get(buffer.name, NONE)
        names |= self.written.get(buffer.name, NONE)
        chosen = [c for _, c in r.coords if not isinstance(c, Index)]
        for c in chosen:
            names |= self._expr(c, frames)
        at, count = self.home(names, frames)
        tally = self.tally(frames, at)
        address = self.address(buffer, r.coords, frames)
        key = (buffer.name, address, r.fill, self.around(frames).region) if not chosen else None
        beyond = frames[at + 1 :]
        # What stays in registers for a loop is no operand of the code before it.
        straight = not any(f.role is Role.LOOP and f.trip > 1 for f in beyond)
        copies = executions(beyond) if straight and self.lanes(names, frames) is not None else 0.0
        tally.used += executions(frames[: at + 1]) * copies * self.share
        if key in tally.seen:
            return names
        if key is not None:
            tally.seen.add(key)
            count = self.distinct(address, frames, at, names)
            tally.loaded += count if copies else 0.0
        outside = self.outside(r, buffer) if r.fill is not None else []
        guarded = bool(outside)
        loops = {f.var for f in frames if f.role is Role.LOOP and f.open}
        tested = any(not loops.isdisjoint(c.names()) for c in outside)
        unknown = bool(chosen) or tested
        for place in outside:
            self.quotients(place, frames)
        self.quotients(address if unknown or guarded else self.first_lane(address, frames), frames)
        lanes = self.lanes(names, frames)
        if chosen and lanes is not None and (shuffles := self._permutes(r, buffer, lanes)):
            self.load_permuted(buffer, lanes, tally, count, shuffles)
            self.touch(buffer, r.coords, frames, is_store=False, address=address)
            return names
        load = Load(buffer, address, lanes, frames, unknown or guarded, unknown)
        self.load(load, tally, count)
        if tested:
            tally.add("tested", count)
        elif outside:
            tally.add("guarded", count)
        if operands is not None:
            held = copies_held(names, frames[at + 1 :])
            operands.append(Operand(count, steps, held))
        if not guarded and at < len(frames) - 1:
            self.hold(address, frames, at, names)
        self.touch(buffer, r.coords, frames, is_store=False, address=address)
        return names


class _Expression:
    """Counts an expression of a statement, its operations once.

    These are no closures that call each other: only the search for cycles would find those to be
    garbage.
    """

    def __init__(
        self,
        counter: Counter,
        frames: Frames,
        known: dict[int, Names],
        operands: list[Operand] | None,
        steps: float,
    ) -> None:
        """Count in these frames; what is `known` is counted."""
        self.counter = counter
        self.frames = frames
        self.known = known
        self.operands = operands
        self.steps = steps

    def visit(self, e: Expr) -> Names:
        """What the value depends on."""
        names = self.known.get(id(e))
        if names is None:
            names = self.known[id(e)] = self._inner(e)
        return names

    def _inner(self, e: Expr) -> Names:
        match e:
            case Lit() | Local():
                return NONE
            case IndexValue():
                return e.index.names()
            case Read():
                return self.counter.read(e, self.frames, self.operands, self.steps)
            case BitCast():
                return self.visit(e.arg)
            case Cast():
                return self._conversion(e)
            case Apply():
                return self._operation(e)
            case _:
                assert_never(e)

    def _conversion(self, e: Cast) -> Names:
        """A conversion: one for all copies of equal loads, as these are."""
        counter, frames = self.counter, self.frames
        bounded = whole_within(e, counter.machine)
        if bounded is None:
            names, count = self.visit(e.arg), 1.0
        else:
            names, count = self.visit(bounded.number), bounded.conversions
            counter.operation(
                "arithmetic", bounded.instructions, bounded.number.dtype, names, frames
            )
        bigger = max(e.dtype, e.arg.dtype, key=lambda d: d.bytes)
        times = counter.times_converted(e, names, frames)
        counter.operation("conversions", count, bigger, names, frames, times)
        return names

    def _chosen(self, e: Apply, taken: float) -> Names:
        """A choice that the code knows: each arm in its share of the copies."""
        before, names = self.counter.share, index_names(e.args[0])
        for arm, share in ((e.args[1], taken), (e.args[2], 1 - taken)):
            if share:
                self.counter.share = before * share
                names |= self.visit(arm)
        self.counter.share = before
        return names

    def _operation(self, e: Apply) -> Names:
        counter, frames, dtype = self.counter, self.frames, e.args[-1].dtype
        if e.op in ("add", "sub"):
            for product, other in ((e.args[1], e.args[0]), (e.args[0], e.args[1])):
                if is_added_to(product, e.op, counter.machine):
                    names = union(self.visit(x) for x in (*children(product), other))
                    counter.operation("multiply_adds", 1.0, dtype, names, frames)
                    return names
        if is_larger(e):
            names = union(map(self.visit, e.args[1:]))
            counter.operation("arithmetic", 1.0, dtype, names, frames)
            return names
        if e.op == "select":
            taken = counter.taken(e.args[0], frames)
            if taken is not None:
                return self._chosen(e, taken)
        names = union(map(self.visit, e.args))
        kind, count = kind_of(e)
        if kind == "function":
            at, times = counter.home(names, frames)
            share = counter.part(dtype, names, frames)
            counter.tally(frames, at).call(e.op, times * share)
        else:
            counter.operation(kind, count, dtype, names, frames)
        return names
