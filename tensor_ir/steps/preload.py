"""Preloading: read a tile of an operand into registers before anything is computed from it."""

from __future__ import annotations

from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Expr, Read, point, transform
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Buffer,
    Kernel,
    Kind,
    Loop,
    Space,
    Stmt,
    reads_in,
    rewrite,
)
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    constant_extent,
    directly_nested,
    find_loops,
    replace_loop,
)


@record
class Preload(Step):
    """Read `buffer` for all of an unrolled or vector tile first, into registers of its own.

    for i unroll { for j vector { o[j, i] = f(a[i, j]) } }
      ->  for i unroll { for j vector { r[i, j] = a[i, j] } };
          for i unroll { for j vector { o[j, i] = f(r[i, j]) } }

    With no store in between, vectors that lie across memory can be loaded along it and transposed
    in registers.
    """

    buffer: str
    loops: tuple[str, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with the tile's reads apart from its stores."""
        if not self.loops:
            raise NotApplicable("it takes one loop at least")
        found = find_loops(kernel, self.loops[0])
        name = f"{self.buffer}.tile"
        if any(b.name == name for b in (*kernel.args, *kernel.locals)):
            raise NotApplicable(f"there are registers %{name} already")
        # The tile of another operand may be read before, in loops of its own.
        chains = [c for x in found if self._reads(c := directly_nested(x, self.loops))]
        if not chains:
            raise NotApplicable(f"%{self.buffer} is read at 0 places, not at one")
        extents: dict[str, int] = {}
        for chain in chains:
            self._check(chain)
            for x in chain:
                extents[x.var] = max(extents.get(x.var, 0), constant_extent(x))
        original = kernel.buffer(self.buffer)
        tile = Buffer(name, original.dtype, dense(self.loops, extents), Space.REGISTER)
        coords = point(self.loops)

        def visit(loop: Loop) -> tuple[Stmt, ...]:
            chain = directly_nested(loop, self.loops)
            if not self._reads(chain):
                return (loop,)
            read = self._read(chain)
            kept = Read(name, coords, read.dtype)

            def local(e: Expr) -> Expr:
                return transform(e, lambda x: kept if x == read else x)

            first: tuple[Stmt, ...] = (Assign(Access(name, coords), read),)
            second = rewrite(chain[-1].body, expr=local)
            for x in reversed(chain):
                first = (replace(x, body=first),)
                second = (replace(x, body=second),)
            return (*first, *second)

        body = replace_loop(kernel.body, self.loops[0], visit)
        return replace(kernel, body=body, locals=(*kernel.locals, tile))

    def _check(self, chain: list[Loop]) -> None:
        for x in chain:
            if x.kind not in (Kind.UNROLL, Kind.VECTOR):
                raise NotApplicable(f"{x.var} is {x.kind.value}: registers are no arrays")
            if x.lo != Index.of(0):
                raise NotApplicable(f"{x.var} does not start at 0")
        for s in chain[-1].body:
            if not isinstance(s, Assign):
                raise NotApplicable(f"{chain[-1].var} does more than assign")
            if s.target.buffer == self.buffer:
                raise NotApplicable(f"%{self.buffer} is written in {chain[-1].var}")
        self._read(chain)

    def _reads(self, chain: list[Loop]) -> set[Read]:
        """The places at which the buffer is read."""
        return {r for r in reads_in(chain[-1].body) if r.value == self.buffer}

    def _read(self, chain: list[Loop]) -> Read:
        """The one place at which the buffer is read."""
        found = self._reads(chain)
        if len(found) != 1:
            raise NotApplicable(f"%{self.buffer} is read at {len(found)} places, not at one")
        return found.pop()
