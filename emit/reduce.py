"""The statements of a reduction as LLVM IR: what updates states, and what merges their lanes."""

from __future__ import annotations

from rutc.base.record import record
from rutc.emit.dot import DotEmitter, DotLoop
from rutc.emit.expression import ExpressionEmitter
from rutc.emit.index import Lane
from rutc.emit.llvm import ir
from rutc.emit.llvm.ir_vectors import is_vector
from rutc.emit.llvm.opaque import opaque, opaque_mask, vector_register
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.expr import Expr, Read, bind, reads, reads_plainly
from rutc.tensor_ir.facts.outside import outside_adds_nothing
from rutc.tensor_ir.facts.products import narrow_factors
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Access, Init, Merge, Update
from rutc.tensor_ir.reducer import as_locals


@record
class _Taken:
    """How an update takes its elements in: what is read and what is evaluated.

    The update itself is kept, so that nothing else gets its identity.
    """

    update: Update
    states: tuple[Read, ...]
    lifted: tuple[Expr, ...]
    merged: Expr | None
    """The state after the update, where there is only one."""
    adds_pairs: bool
    padded: tuple[Read, ...]
    """What is read with a fill that changes nothing."""


class ReductionEmitter:
    """Begins, updates and merges the states of reducers."""

    def __init__(self, expressions: ExpressionEmitter) -> None:
        """Emit beside these expressions."""
        self.expressions = expressions
        self.builder = expressions.builder
        self.index = expressions.index
        self.machine = expressions.machine
        self.dot = DotEmitter(expressions)
        self.dot_loop: DotLoop | None = None
        """The dot loop around what is emitted, all of whose iterations are one update."""
        self._taken: dict[int, _Taken] = {}

    def init(self, s: Init) -> None:
        """Set the states to what changes nothing."""
        for a, identity in zip(s.states, s.reducer.identity, strict=True):
            self.expressions.store(a, self.expressions.emit(identity))

    def update(self, s: Update) -> None:
        """Take the elements at the current point into the states."""
        if self.dot_loop is not None:
            self._dot_update(s, self.dot_loop)
            return
        taken = self._taken_in(s)
        if any(self._outside(r) for r in taken.padded):
            return
        old = [self.expressions.emit(r) for r in taken.states]
        if taken.merged is not None:
            new = [self.expressions.emit(taken.merged)]
        else:
            lifted = map(self.expressions.emit, taken.lifted)
            self.expressions.locals = as_locals(a=old, b=lifted)
            new = [self.expressions.emit(e) for e in s.reducer.merge]
            self.expressions.locals = {}
        lane = self.index.lane
        for a, before, after in zip(s.states, old, new, strict=True):
            kept = after
            if taken.adds_pairs and is_vector(kept) and kept.lanes == self.machine.width:
                # LLVM would add up products of several steps first, and spill the others.
                kept = opaque(self.builder, kept, vector_register(self.machine))
            if s.lanes is not None and lane is not None and lane.mask is not None:
                wide = self.expressions.memory.widen(after, lane.lanes)
                old_wide = self.expressions.memory.widen(before, lane.lanes)
                mask = opaque_mask(self.builder, lane.mask, self.machine)
                kept = self.builder.select(mask, wide, old_wide)
            self.expressions.store(a, kept)

    def _taken_in(self, s: Update) -> _Taken:
        """What an update evaluates; of one in unrolled loops the same expressions every time."""
        found = self._taken.get(id(s))
        if found is None:
            env = as_locals(x=s.elements)
            lifted = tuple(bind(e, env) for e in s.reducer.lift)
            states = tuple(_read(a, t) for a, t in zip(s.states, s.reducer.state, strict=True))
            merged = None
            if len(states) == 1:
                merged = bind(s.reducer.merge[0], {"a0": states[0], "b0": lifted[0]})
            padded = self._padded(s)
            pairs = self._adds_pairs(s)
            found = self._taken[id(s)] = _Taken(s, states, lifted, merged, pairs, padded)
        return found

    def _padded(self, s: Update) -> tuple[Read, ...]:
        """The reads of an update that take in nothing where they are outside of their values."""
        buffers = self.expressions.buffers

        def adds_nothing(r: Read) -> bool:
            layout = buffers[r.value].layout
            return outside_adds_nothing(
                s.reducer, s.elements, r, layout, lambda v: buffers[v].finite
            )

        found = (r for e in s.elements for r in reads(e))
        return tuple(r for r in found if reads_plainly(r) and adds_nothing(r))

    def _outside(self, r: Read) -> bool:
        """Whether a read is known to be outside of its value, be it in memory's halo."""
        buffer = self.expressions.buffers[r.value]
        return self.expressions.places.never_inside(r.coords, buffer, None)

    def _adds_pairs(self, s: Update) -> bool:
        """Whether an update adds products that LLVM makes of pairs of factors in 16 bits."""
        pair = narrow_factors(s)
        if pair is None or not self.machine.adds_apart(pair[0].dtype):
            return False
        return self.machine.products(*(r.dtype for r in pair)) > 1

    def _dot_update(self, s: Update, loop: DotLoop) -> None:
        """All iterations of a dot loop at once, or one by one where no instruction does that."""
        old = self.expressions.emit(_read(s.states[0], s.reducer.state[0]))
        new = self.dot.update(s, loop, old)
        if new is not None:
            self.expressions.store(s.states[0], new)
            return
        self.dot_loop = None
        for i in range(loop.extent):
            with self.index.constant(loop.var, i):
                self.update(s)
        self.dot_loop = loop

    def merge(self, s: Merge) -> None:
        """Join the lanes: vectors pairwise, then halves of one vector, then the running state."""
        lanes = self.machine.lanes(s.extent)
        chunks: list[list[ir.Value]] = []
        for base in range(0, s.extent, lanes):
            self.index.lane = Lane(s.var, base, lanes, None, Index.of(s.extent))
            types = s.reducer.state
            chunks.append(
                [self.expressions.emit(_read(a, t)) for a, t in zip(s.sources, types, strict=True)]
            )
            self.index.lane = None
        while len(chunks) > 1:
            half = (len(chunks) + 1) // 2
            joined = [
                self._join(s, p, q) for p, q in zip(chunks[:half], chunks[half:], strict=False)
            ]
            chunks = joined + chunks[len(chunks) // 2 : half] * (len(chunks) % 2)
        state = self._part(chunks[0], 0, lanes)
        width = lanes
        while width > 1:
            width //= 2
            low = self._part(state, 0, width)
            high = self._part(state, width, width)
            state = self._join(s, low, high)
        types = s.reducer.state
        old = [self.expressions.emit(_read(a, t)) for a, t in zip(s.states, types, strict=True)]
        for a, value in zip(s.states, self._join(s, old, state), strict=True):
            self.expressions.store(a, value)

    def _part(self, state: list[ir.Value], start: int, width: int) -> list[ir.Value]:
        """So many lanes from `start`; a single one without lanes."""
        return [self.builder.part(v, start, width) if is_vector(v) else v for v in state]

    def _join(self, s: Merge, p: list[ir.Value], q: list[ir.Value]) -> list[ir.Value]:
        self.expressions.locals = as_locals(a=p, b=q)
        joined = [self.expressions.emit(e) for e in s.reducer.merge]
        self.expressions.locals = {}
        return joined


def _read(a: Access, dtype: DType) -> Read:
    return Read(a.buffer, a.coords, dtype)
