"""Preloading: read a tile of an operand into registers before anything is computed from it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.expr import Expr, Read, point, reads_plainly, transform
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import Access, Assign, Buffer, Kernel, Kind, Loop, Space, Stmt
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.statements import reads_in, rewrite
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

    @property
    def alike(self) -> Hashable:
        """Tiles of several operands are read before the same loops."""
        return self.loops

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with the tile's reads apart from its stores."""
        nested = _nested(kernel, self.loops)
        return _preloaded(kernel, (self._tile(_buffers(kernel), nested),))

    def apply_all(self, kernel: Kernel, run: Sequence[Step]) -> Kernel:
        """The same as one after the other, in time that grows with their number."""
        tiles: list[_Tile] = []
        buffers = _buffers(kernel)
        nested: list[_Nested] | None = None
        for step in run:
            assert isinstance(step, Preload)
            try:
                nested = nested or _nested(kernel, step.loops)
                tile = step._tile(buffers, nested)
            except NotApplicable as e:
                raise NotApplicable(f"{step}: {e}") from None
            tiles.append(tile)
            buffers[tile.buffer.name] = tile.buffer
        if not all(reads_plainly(r) for tile in tiles for r in tile.kept):
            # One may tell where another is read.
            return super().apply_all(kernel, run)
        return _preloaded(kernel, tiles)

    def _tile(self, buffers: Mapping[str, Buffer], nested: Sequence[_Nested]) -> _Tile:
        """What is read first. Raises NotApplicable where that cannot be apart."""
        name = f"{self.buffer}.tile"
        if name in buffers:
            raise NotApplicable(f"there are registers %{name} already")
        # The tile of another operand may be read before, in loops of its own.
        reading = [n for n in nested if self.buffer in n.places]
        if not reading:
            raise NotApplicable(f"%{self.buffer} is read at 0 places, not at one")
        extents: dict[str, int] = {}
        for n in reading:
            self._check(n)
            for x in n.loops:
                extents[x.var] = max(extents.get(x.var, 0), constant_extent(x))
        tile = Buffer(name, buffers[self.buffer].dtype, dense(self.loops, extents), Space.REGISTER)
        coords = point(self.loops)
        places = dict.fromkeys(r for n in reading for r in n.places[self.buffer])
        return _Tile(self.loops, tile, {r: Read(name, coords, r.dtype) for r in places})

    def _check(self, nested: _Nested) -> None:
        for x in nested.loops:
            if x.kind not in (Kind.UNROLL, Kind.VECTOR):
                raise NotApplicable(f"{x.var} is {x.kind.value}: registers are no arrays")
            if x.lo != Index.of(0):
                raise NotApplicable(f"{x.var} does not start at 0")
        inner = nested.loops[-1]
        if nested.more:
            raise NotApplicable(f"{inner.var} does more than assign")
        if self.buffer in nested.written:
            raise NotApplicable(f"%{self.buffer} is written in {inner.var}")
        found = nested.places[self.buffer]
        if len(found) != 1:
            raise NotApplicable(f"%{self.buffer} is read at {len(found)} places, not at one")


@record
class _Nested:
    """Loops each all that the last one does, and what the innermost does.

    It reads each buffer at `places`, has `written` some, and may do `more` than assign.
    """

    loops: tuple[Loop, ...]
    places: Mapping[str, Sequence[Read]]
    written: frozenset[str]
    more: bool


def _nested(kernel: Kernel, variables: tuple[str, ...]) -> list[_Nested]:
    """The loops over some variables. Raises NotApplicable where they are not directly nested."""
    if not variables:
        raise NotApplicable("it takes one loop at least")
    found: list[_Nested] = []
    for outer in find_loops(kernel, variables[0]):
        loops = tuple(directly_nested(outer, variables))
        body = loops[-1].body
        places: dict[str, list[Read]] = {}
        for r in dict.fromkeys(reads_in(body)):
            places.setdefault(r.value, []).append(r)
        assigned = [s for s in body if isinstance(s, Assign)]
        written = frozenset(s.target.buffer for s in assigned)
        found.append(_Nested(loops, places, written, len(assigned) < len(body)))
    return found


@record
class _Tile:
    """Registers before some loops, and what is read from them instead, by the place in memory."""

    loops: tuple[str, ...]
    buffer: Buffer
    kept: Mapping[Read, Read]


def _buffers(kernel: Kernel) -> dict[str, Buffer]:
    """All buffers of a kernel by their names."""
    return {b.name: b for b in (*kernel.args, *kernel.locals)}


def _preloaded(kernel: Kernel, tiles: Sequence[_Tile]) -> Kernel:
    """The kernel that reads the tiles of some operands, one after the other, before its loops."""
    loops = tiles[0].loops
    coords = point(loops)
    kept = {place: own for tile in tiles for place, own in tile.kept.items()}

    def local(e: Expr) -> Expr:
        return transform(e, lambda x: kept.get(x, x) if isinstance(x, Read) else x)

    def visit(loop: Loop) -> tuple[Stmt, ...]:
        chain = directly_nested(loop, loops)
        found = set(reads_in(chain[-1].body))
        first = [
            _around((Assign(Access(own.value, coords), place),), chain)
            for place, own in kept.items()
            if place in found
        ]
        if not first:
            return (loop,)
        return (*first, _around(rewrite(chain[-1].body, expr=local), chain))

    body = replace_loop(kernel.body, loops[0], visit)
    return replace(kernel, body=body, locals=(*kernel.locals, *(t.buffer for t in tiles)))


def _around(body: tuple[Stmt, ...], chain: Sequence[Loop]) -> Loop:
    """Statements in loops like these, the outermost first."""
    for x in reversed(chain[1:]):
        body = (replace(x, body=body),)
    return replace(chain[0], body=body)
