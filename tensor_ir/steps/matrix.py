"""Matrix tiles: blocks of a sum of products in the registers that some machines have for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.base.record import record
from rutc.tensor_ir.expr import Expr, Read, point, transform
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.kernel import (
    Access,
    Assign,
    Buffer,
    Init,
    Kernel,
    Kind,
    Loop,
    Space,
    Stmt,
    Update,
)
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.statements import rewrite, walk_loops, walk_stmts
from rutc.tensor_ir.steps.step import (
    NotApplicable,
    Step,
    constant_extent,
    directly_nested,
    find_loops,
    outer_ranges,
    replace_loop,
)
from rutc.tensor_ir.terms import terms


@record
class MatrixTile(Step):
    """Sum products in matrix registers; the sums then go to the stack, and on from there.

    Sums that are stored as they are, each row of a block in one piece, go there directly.

    for t { for u { for i { for j { acc.init; for k { for l { acc.update } }; S(acc) } } } }
      ->  for t, u unroll { for i, j matrix { acc[t,u,i,j].init } }
          for k { for t, u unroll { for i, j, l matrix { acc[t,u,i,j].update } } }
          for t, u unroll { for i, j matrix { out[t,i,u,j] = acc[t,u,i,j] } }
          for t { for i { for u unroll { for j vector { S(out[t,i,u,j]) } } } }

    The products of an element that is a sum of several have tiles of updates of their own.

    `tiles` are t and u, `rows` is i, `columns` j, `var` the innermost loop l. `results` is the kind
    of i in what follows: serial; or unroll where results lie along the rows in memory, so that
    squares of them can be transposed in registers, as they can with j unrolled around a vector i
    where the run tells how many rows there are; or vector where results of a column lie nearer to
    each other than those of a row: then j is a serial loop around i.
    """

    tiles: tuple[str, str]
    rows: str
    columns: str
    var: str
    results: Kind

    def apply(self, kernel: Kernel) -> Kernel:
        """The tiled kernel. Raises NotApplicable unless the loops hold one sum of products."""
        loops = (*self.tiles, self.rows, self.columns)
        if self.results not in (Kind.SERIAL, Kind.UNROLL, Kind.VECTOR):
            raise NotApplicable(f"results of rows that are {self.results.value}")
        if len(find_loops(kernel, loops[0])) != 1:
            raise NotApplicable(f"{loops[0]} occurs several times")
        ranges = outer_ranges(kernel)
        sizes = {v: ranges[v][1] + 1 for v in loops}
        acc = self._state(kernel)
        dtype = kernel.buffer(acc).dtype
        stage = f"{acc}.sums"
        if any(b.name == stage for b in kernel.locals):
            raise NotApplicable(f"there is a buffer %{stage} already")
        coords = point(sorted(loops))
        state, sums = Access(acc, coords), Read(acc, coords, dtype)
        staged = False

        def tile(loop: Loop) -> tuple[Stmt, ...]:
            nonlocal staged
            chain, init, reduction, after = self._parts(loop)
            blocks = _in_registers(kernel, chain, sizes)
            start = _nested(blocks, replace(init, states=(state,)))
            products = replace_loop((reduction,), self.var, lambda x: _products(x, blocks, state))
            place = self._whole_place(kernel, chain, after, sizes)
            if place is not None:
                return start, *products, _nested(blocks, Assign(place, sums))
            staged = True
            stored = _nested(blocks, Assign(Access(stage, coords), sums))
            read = rewrite(
                after, expr=lambda e: transform(e, lambda x: _read_from(x, acc, stage, coords))
            )
            return start, *products, stored, *self._following(chain, read)

        body = replace_loop(kernel.body, loops[0], tile)
        locals_ = tuple(
            replace(b, layout=dense(loops, sizes)) if b.name == acc else b for b in kernel.locals
        )
        if staged:
            order = (self.tiles[0], self.rows, self.tiles[1], self.columns)
            locals_ = (*locals_, Buffer(stage, dtype, dense(order, sizes), Space.STACK))
        return replace(kernel, body=body, locals=locals_)

    def _following(self, chain: list[Loop], after: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The loops around what follows the sums, which it reads from the stack."""
        t, u = self.tiles
        by_name = {x.var: x for x in chain}
        kinds = {self.rows: self.results, u: Kind.UNROLL, self.columns: Kind.VECTOR}
        order = (t, u, self.rows, self.columns)
        if self.results is Kind.SERIAL:
            order = (t, self.rows, u, self.columns)
        elif self.results is Kind.VECTOR:
            kinds, order = {self.rows: Kind.VECTOR}, (t, u, self.columns, self.rows)
        elif not by_name[self.rows].hi.is_const:
            constant_extent(by_name[self.columns])
            kinds |= {self.rows: Kind.VECTOR, self.columns: Kind.UNROLL}
            order = (t, u, self.columns, self.rows)
        for v in reversed(order):
            after = (replace(by_name[v], kind=kinds.get(v, Kind.SERIAL), body=after),)
        return after

    def _whole_place(
        self, kernel: Kernel, chain: list[Loop], after: tuple[Stmt, ...], sizes: Mapping[str, int]
    ) -> Access | None:
        """Where whole blocks of sums are stored as they are, each row in one piece; or None."""
        match after:
            case (Assign(target=target, value=Read() as value),):
                pass
            case _:
                return None
        inside = [b.name for b in kernel.locals]
        if value.value not in inside or target.buffer in inside:
            return None
        stored = kernel.buffer(target.buffer)
        coords = {d: c for d, c in target.coords if isinstance(c, Index)}
        whole = all(x.hi == Index.of(sizes[x.var]) for x in chain)
        if stored.dtype is not value.dtype or not whole or len(coords) < len(target.coords):
            return None
        address = stored.layout.address(coords, outer_ranges(kernel))
        row = address.coefficient(self.rows)
        near = address.coefficient(self.columns) == 1 and row is not None and row > 0
        return target if near else None

    def _state(self, kernel: Kernel) -> str:
        _, init, _, _ = self._parts(find_loops(kernel, self.tiles[0])[0])
        if len(init.states) != 1 or init.states[0].coords:
            raise NotApplicable("it takes one sum")
        return init.states[0].buffer

    def _parts(self, loop: Loop) -> tuple[list[Loop], Init, Loop, tuple[Stmt, ...]]:
        """(the four loops, start, reduction, what follows)."""
        chain = directly_nested(loop, (*self.tiles, self.rows, self.columns))
        match chain[-1].body:
            case (Init() as init, Loop() as reduction, *_):
                after = chain[-1].body[2:]
            case _:
                raise NotApplicable(f"{self.columns} does more than one reduction")
        inner = [s for s in walk_loops((reduction,)) if s.var == self.var]
        others = [s for s in walk_stmts((reduction,)) if not isinstance(s, Loop)]
        if len(inner) != 1 or len(others) != 1 or inner[0].body != tuple(others):
            raise NotApplicable(f"{self.var} does not directly hold the only update")
        if not isinstance(others[0], Update) or others[0].reducer.name != "sum":
            raise NotApplicable(f"{self.var} does more than add to a sum")
        if any(isinstance(s, Loop | Init) for s in walk_stmts(after)):
            raise NotApplicable("what follows the sum has loops of its own")
        return chain, init, reduction, after


def _read_from(e: Expr, acc: str, stage: str, coords: tuple[tuple[str, Index], ...]) -> Expr:
    return Read(stage, coords, e.dtype) if isinstance(e, Read) and e.value == acc else e


def _in_registers(kernel: Kernel, chain: list[Loop], sizes: Mapping[str, int]) -> list[Loop]:
    """The loops t, u, i and j as those of blocks in registers.

    These hold whole blocks, also where a loop around cuts short what follows.
    """
    symbols = dict(kernel.symbols).keys()
    kinds = (Kind.UNROLL, Kind.UNROLL, Kind.MATRIX, Kind.MATRIX)
    return [
        replace(x, kind=k, hi=x.hi if x.hi.names() <= symbols else Index.of(sizes[x.var]))
        for x, k in zip(chain, kinds, strict=True)
    ]


def _products(x: Loop, blocks: list[Loop], state: Access) -> tuple[Stmt, ...]:
    """The update in the loop `x` as updates of whole blocks, one for each product it adds up."""
    (update,) = x.body
    assert isinstance(update, Update)
    constant_extent(x)
    (element,) = update.elements
    inner = replace(x, kind=Kind.MATRIX)
    updates = (replace(update, states=(state,), elements=(term,)) for term in terms(element))
    return tuple(_nested([*blocks, inner], u) for u in updates)


def _nested(loops: list[Loop], body: Stmt) -> Stmt:
    """A statement in loops, the first of them outermost."""
    for x in reversed(loops):
        body = replace(x, body=(body,))
    return body
