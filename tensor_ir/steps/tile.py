"""The register tile: a block of the iteration space held in registers across a reduction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from rutc.tensor_ir.affine import Index
from rutc.tensor_ir.expr import Expr, Read, walk
from rutc.tensor_ir.kernel import (
    Access,
    Branch,
    Kernel,
    Kind,
    Loop,
    Space,
    Stmt,
    accesses,
    exprs,
    rewrite,
    walk_stmts,
)
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.steps.base import NotApplicable, find_loop, replace_loop


@dataclass(frozen=True)
class Tile:
    """Move directly nested loops inward past the reductions they hold.

    Every local scalar becomes an array over the moved loops, one element per iteration.

    for i { acc.init; for k { acc.update(a[i,k]) }; o[i] = acc }
      ->  for i { acc[i].init }; for k { for i { acc[i].update(a[i,k]) } }; for i { o[i] = acc[i] }

    `kinds` says how the moved loops are carried out: unrolled or vectorised.
    """

    loops: tuple[str, ...]
    kinds: tuple[Kind, ...]

    def apply(self, kernel: Kernel) -> Kernel:
        """The tiled kernel. Raises NotApplicable where inner bounds depend on a moved loop."""
        find_loop(kernel, self.loops[0])
        expanded: dict[str, tuple[tuple[str, int], ...]] = {}

        def tile(loop: Loop) -> tuple[Stmt, ...]:
            chain = [loop]
            for v in self.loops[1:]:
                body = chain[-1].body
                if len(body) != 1 or not isinstance(body[0], Loop) or body[0].var != v:
                    raise NotApplicable(f"{chain[-1].var} does not directly hold {v}")
                chain.append(body[0])
            moved = [
                replace(x, kind=k, body=()) for x, k in zip(chain, self.kinds, strict=True)
            ]
            body = chain[-1].body
            for name, extents in _scalars(kernel, body, moved).items():
                before = expanded.get(name, extents)
                widest = tuple(
                    (v, max(e, f)) for (v, e), (_, f) in zip(before, extents, strict=True)
                )
                expanded[name] = widest
            body = _expand(body, set(expanded), self.loops)
            return _distribute(moved, body)

        body = replace_loop(kernel.body, self.loops[0], tile)
        locals_ = tuple(
            replace(b, layout=_with_axes(b.layout, expanded[b.name]))
            if b.name in expanded
            else b
            for b in kernel.locals
        )
        return replace(kernel, body=body, locals=locals_)


def _scalars(
    kernel: Kernel, body: tuple[Stmt, ...], moved: list[Loop]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """The locals used in `body` alone, with the extents that they gain."""
    inside = _uses(body)
    everywhere = _uses(kernel.body)
    extents: list[tuple[str, int]] = []
    for x in moved:
        bounds = (x.hi - x.lo).bounds(_outer_ranges(kernel))
        if bounds is None:
            raise NotApplicable(f"the extent of {x.var} has no bound")
        extents.append((x.var, bounds[1]))
    return {
        b.name: tuple(extents)
        for b in kernel.locals
        if inside[b.name]
        and (inside[b.name] == everywhere[b.name] or b.space is Space.REGISTER)
        and _local_to(kernel, b.name, body)
    }


def _local_to(kernel: Kernel, name: str, body: tuple[Stmt, ...]) -> bool:
    """Whether every use of the buffer stands under loops of the same variables as `body`."""
    first_written = any(
        a.buffer == name for s in walk_stmts(body) for a in accesses(s)
    )
    return first_written


def _outer_ranges(kernel: Kernel) -> dict[str, tuple[int, int]]:
    ranges: dict[str, tuple[int, int]] = {}
    for s in walk_stmts(kernel.body):
        if isinstance(s, Loop):
            low, high = s.lo.bounds(ranges), s.hi.bounds(ranges)
            if low is not None and high is not None:
                ranges[s.var] = (low[0], max(high[1] - 1, low[0]))
    return ranges


def _uses(body: tuple[Stmt, ...]) -> Counter[str]:
    count: Counter[str] = Counter()
    for s in walk_stmts(body):
        count.update(a.buffer for a in accesses(s))
        for e in exprs(s):
            count.update(x.value for x in walk(e) if isinstance(x, Read))
    return count


def _expand(body: tuple[Stmt, ...], names: set[str], loops: tuple[str, ...]) -> tuple[Stmt, ...]:
    extra = tuple((v, Index.of(v)) for v in loops)

    def widen_read(e: Expr) -> Expr:
        from rutc.tensor_ir.expr import transform

        return transform(
            e,
            lambda x: replace(x, coords=(*x.coords, *extra))
            if isinstance(x, Read) and x.value in names
            else x,
        )

    def widen(a: Access) -> Access:
        return replace(a, coords=(*a.coords, *extra)) if a.buffer in names else a

    return rewrite(body, expr=widen_read, access=widen)


def _with_axes(layout: Layout, extents: tuple[tuple[str, int], ...]) -> Layout:
    axes: list[Axis] = []
    stride = layout.size
    for v, e in reversed(extents):
        axes.append(Axis(v, e, stride))
        stride *= e
    return replace(layout, axes=(*reversed(axes), *layout.axes))


def _distribute(moved: list[Loop], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    names = {x.var for x in moved}
    result: list[Stmt] = []
    run: list[Stmt] = []

    def flush() -> None:
        if run:
            inner: tuple[Stmt, ...] = tuple(run)
            for x in reversed(moved):
                inner = (replace(x, body=inner),)
            result.extend(inner)
            run.clear()

    for s in body:
        if isinstance(s, Loop) and s.kind in (Kind.SERIAL, Kind.PARALLEL):
            if (s.lo.names() | s.hi.names()) & names:
                raise NotApplicable(f"the bounds of {s.var} depend on {sorted(names)}")
            flush()
            result.append(replace(s, body=_distribute(moved, s.body)))
        elif isinstance(s, Branch):
            if (s.left.names() | s.right.names()) & names:
                raise NotApplicable(f"a branch depends on {sorted(names)}")
            flush()
            then = _distribute(moved, s.then)
            result.append(replace(s, then=then, orelse=_distribute(moved, s.orelse)))
        else:
            run.append(s)
    flush()
    return tuple(result)
