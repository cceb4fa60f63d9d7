"""Kernels without names: equal kernels of one model, or of two, become the same text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rutc.tensor_ir.affine import Index, Size
from rutc.tensor_ir.expr import Coord, Expr, Read, transform
from rutc.tensor_ir.kernel import (
    Access,
    Branch,
    Kernel,
    Loop,
    Merge,
    Prefetch,
    Stmt,
    Update,
    rewrite,
    walk_stmts,
)
from rutc.tensor_ir.layout import Axis, Layout


@dataclass(frozen=True)
class Canonical:
    """A renamed kernel, and the old name of every new buffer and dim."""

    kernel: Kernel
    buffers: Mapping[str, str]
    dims: Mapping[str, str]


def canonical(kernel: Kernel) -> Canonical:
    """The kernel with buffers and dims named by where they first occur, its origin left out."""
    buffers: dict[str, str] = {}
    for number, b in enumerate((*kernel.args, *kernel.locals)):
        buffers[b.name] = f"b{number}"
    dims: dict[str, str] = {}

    def name_dim(d: str) -> str:
        return dims.setdefault(d, f"d{len(dims)}")

    for s in walk_stmts(kernel.body):
        if isinstance(s, Loop):
            name_dim(s.var)
    for name, _ in kernel.symbols:
        name_dim(name)
    for b in (*kernel.args, *kernel.locals):
        for a in b.layout.axes:
            name_dim(a.dim)
    env = {old: Index.of(new) for old, new in dims.items()}

    def coords(pairs: tuple[tuple[str, Coord], ...]) -> tuple[tuple[str, Coord], ...]:
        return tuple(sorted(((name_dim(d), c) for d, c in pairs), key=lambda p: p[0]))

    def rename_read(e: Expr) -> Expr:
        return transform(
            e,
            lambda x: (
                replace(x, value=buffers[x.value], coords=coords(x.coords))
                if isinstance(x, Read)
                else x
            ),
        )

    def rename_access(a: Access) -> Access:
        return Access(buffers[a.buffer], coords(a.coords))

    body = rewrite(kernel.body, index=lambda i: i.subs(env), expr=rename_read, access=rename_access)
    renamed = replace(
        kernel,
        name="kernel",
        args=tuple(
            replace(b, name=buffers[b.name], layout=rename_layout(b.layout, dims))
            for b in kernel.args
        ),
        locals=tuple(
            replace(b, name=buffers[b.name], layout=rename_layout(b.layout, dims))
            for b in kernel.locals
        ),
        body=_rename_loops(body, dims, buffers),
        origin=(),
        symbols=tuple((dims[n], r) for n, r in kernel.symbols),
    )
    back = {new: old for old, new in buffers.items()}
    return Canonical(renamed, back, {new: old for old, new in dims.items()})


def renamed(kernel: Kernel, loops: Mapping[str, str], buffers: Mapping[str, str]) -> Kernel:
    """The kernel with some of its loops and buffers renamed; layouts keep the names of dims."""
    env = {old: Index.of(new) for old, new in loops.items()}

    def rename_read(e: Expr) -> Expr:
        return transform(
            e,
            lambda x: replace(x, value=buffers.get(x.value, x.value)) if isinstance(x, Read) else x,
        )

    body = rewrite(
        kernel.body,
        index=lambda i: i.subs(env),
        expr=rename_read,
        access=lambda a: replace(a, buffer=buffers.get(a.buffer, a.buffer)),
    )
    return replace(
        kernel,
        args=tuple(replace(b, name=buffers.get(b.name, b.name)) for b in kernel.args),
        locals=tuple(replace(b, name=buffers.get(b.name, b.name)) for b in kernel.locals),
        body=_rename_loops(body, loops, buffers),
    )


def rename_layout(layout: Layout, dims: Mapping[str, str]) -> Layout:
    """The layout with its dims renamed."""
    env = {n: Index.of(dims[n]) for n in layout.names()}

    def size(x: Size) -> Size:
        return x.subs(env) if isinstance(x, Index) else x

    def axis(a: Axis) -> Axis:
        return replace(a, dim=dims[a.dim], extent=size(a.extent), stride=size(a.stride))

    return Layout(
        tuple(axis(a) for a in layout.axes),
        tuple(sorted((dims[d], lo, hi) for d, lo, hi in layout.halo)),
        layout.fill,
        tuple(sorted(((dims[d], size(e)) for d, e in layout.extents), key=lambda p: p[0])),
    )


def _rename_loops(
    body: tuple[Stmt, ...], dims: Mapping[str, str], buffers: Mapping[str, str]
) -> tuple[Stmt, ...]:
    def rename(s: Stmt) -> Stmt:
        match s:
            case Loop():
                return replace(
                    s, var=dims.get(s.var, s.var), body=_rename_loops(s.body, dims, buffers)
                )
            case Merge():
                return replace(s, var=dims.get(s.var, s.var))
            case Prefetch():
                return replace(s, buffer=buffers.get(s.buffer, s.buffer))
            case Update(lanes=str(lanes)):
                return replace(s, lanes=dims.get(lanes, lanes))
            case Branch():
                then = _rename_loops(s.then, dims, buffers)
                return replace(s, then=then, orelse=_rename_loops(s.orelse, dims, buffers))
            case _:
                return s

    return tuple(map(rename, body))
