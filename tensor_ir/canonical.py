"""Kernels without names: equal kernels of one model, or of two, become the same text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter

from rutc.base.record import record
from rutc.tensor_ir.expr import Coord, Read
from rutc.tensor_ir.indices.affine import Index, Size
from rutc.tensor_ir.kernel import (
    Access,
    Branch,
    Buffer,
    Kernel,
    Loop,
    Merge,
    Prefetch,
    Stmt,
    Update,
)
from rutc.tensor_ir.layout import Axis, Layout
from rutc.tensor_ir.statements import rewrite, walk_loops


@record
class Canonical:
    """Renamed kernels, and the old name of every new buffer and dim."""

    kernels: tuple[Kernel, ...]
    buffers: Mapping[str, str]
    dims: Mapping[str, str]

    @property
    def kernel(self) -> Kernel:
        """The only kernel."""
        (kernel,) = self.kernels
        return kernel


def canonical(*kernels: Kernel) -> Canonical:
    """The kernels with buffers and dims named by where they first occur, their origins left out.

    Buffers and symbols that have one name in several kernels still have; loops and the dims of a
    kernel's own buffers have other names than those of the kernels before it.
    """
    buffers: dict[str, str] = {}
    dims: dict[str, str] = {}
    before: dict[str, str] = {}
    owned: dict[str, dict[str, str]] = {b.name: {} for k in kernels[:1] for b in k.args}
    apart = list(kernels[:1])
    for number, kernel in enumerate(kernels[1:], start=1):
        apart.append(_apart(kernel, f"{number}:", owned, before))
    for kernel in apart:
        for b in (*kernel.args, *kernel.locals):
            buffers.setdefault(b.name, f"b{len(buffers)}")
        loops = [s.var for s in walk_loops(kernel.body)]
        axes = [a.dim for b in (*kernel.args, *kernel.locals) for a in b.layout.axes]
        for d in (*loops, *(name for name, _ in kernel.symbols), *axes):
            dims.setdefault(d, f"d{len(dims)}")
    found = tuple(_renamed_all(kernel, buffers, dims) for kernel in apart)
    back = {new: old for old, new in buffers.items()}
    return Canonical(found, back, {new: before.get(old, old) for old, new in dims.items()})


def _apart(
    kernel: Kernel, prefix: str, owned: dict[str, dict[str, str]], before: dict[str, str]
) -> Kernel:
    """The kernel with its loops and the dims of its buffers renamed.

    `owned` holds the new names of dims of each argument of the kernels before, and gets those of
    the others; `before` gets the old name of every new one.
    """
    loops = {s.var: f"{prefix}{s.var}" for s in walk_loops(kernel.body)}
    buffers = {b.name: b.layout for b in (*kernel.args, *kernel.locals)}
    names: dict[str, dict[str, str]] = {}
    for b, layout in buffers.items():
        dims = {d: f"{prefix}{d}" for d in (*(a.dim for a in layout.axes), *dict(layout.extents))}
        names[b] = owned.get(b, dims)

    def coords(name: str, pairs: tuple[tuple[str, Coord], ...]) -> tuple[tuple[str, Coord], ...]:
        if name not in owned:
            names[name] |= {d: f"{prefix}{d}" for d, _ in pairs}
        return tuple((names[name].get(d, d), c) for d, c in pairs)

    def read(r: Read) -> Read:
        return r.at(coords(r.value, r.coords))

    def buffer(b: Buffer) -> Buffer:
        dims = (*(a.dim for a in b.layout.axes), *dict(b.layout.extents))
        same = {n: n for n in (*b.layout.names(), *dims)}
        layout = rename_layout(b.layout, same | names[b.name])
        return _rename_known(replace(b, layout=layout), names[b.name])

    env = {old: Index.of(new) for old, new in loops.items()}
    body = rewrite(
        kernel.body,
        index=lambda i: i.subs(env),
        read=read,
        access=lambda a: Access(a.buffer, coords(a.buffer, a.coords)),
    )
    owned |= {b.name: names[b.name] for b in kernel.args}
    for table in (loops, *names.values()):
        before |= {new: old for old, new in table.items()}
    args, locals_ = tuple(map(buffer, kernel.args)), tuple(map(buffer, kernel.locals))
    return replace(kernel, args=args, locals=locals_, body=_rename_loops(body, loops, {}))


def _renamed_all(kernel: Kernel, buffers: dict[str, str], dims: dict[str, str]) -> Kernel:
    """The kernel with its buffers and dims renamed; dims of reads only are named here."""
    env = {old: Index.of(new) for old, new in dims.items()}

    def coords(pairs: tuple[tuple[str, Coord], ...]) -> tuple[tuple[str, Coord], ...]:
        named = [(dims.setdefault(d, f"d{len(dims)}"), c) for d, c in pairs]
        named.sort(key=itemgetter(0))
        return tuple(named)

    def rename_read(r: Read) -> Read:
        return Read(buffers[r.value], coords(r.coords), r.dtype, r.fill)

    def rename_access(a: Access) -> Access:
        return Access(buffers[a.buffer], coords(a.coords))

    def buffer(b: Buffer) -> Buffer:
        layout = rename_layout(b.layout, dims)
        return _rename_known(replace(b, name=buffers[b.name], layout=layout), dims)

    body = rewrite(kernel.body, index=lambda i: i.subs(env), read=rename_read, access=rename_access)
    return replace(
        kernel,
        name="kernel",
        args=tuple(map(buffer, kernel.args)),
        locals=tuple(map(buffer, kernel.locals)),
        body=_rename_loops(body, dims, buffers),
        origin=(),
        symbols=tuple((dims[n], r) for n, r in kernel.symbols),
    )


def renamed(kernel: Kernel, loops: Mapping[str, str], buffers: Mapping[str, str]) -> Kernel:
    """The kernel with some of its loops and buffers renamed; layouts keep the names of dims."""
    env = {old: Index.of(new) for old, new in loops.items()}

    def rename_read(r: Read) -> Read:
        name = buffers.get(r.value)
        return r if name is None else Read(name, r.coords, r.dtype, r.fill)

    body = rewrite(
        kernel.body,
        index=lambda i: i.subs(env),
        read=rename_read if buffers else None,
        access=lambda a: Access(buffers.get(a.buffer, a.buffer), a.coords),
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
        return Axis(dims[a.dim], size(a.extent), size(a.stride), a.div, a.whole)

    return Layout(
        tuple(axis(a) for a in layout.axes),
        tuple(sorted((dims[d], lo, hi) for d, lo, hi in layout.halo)),
        layout.fill,
        tuple(sorted(((dims[d], size(e)) for d, e in layout.extents), key=lambda p: p[0])),
        layout.nibbles,
        tuple(sorted((dims[d], n) for d, n in layout.capacity)),
    )


def _rename_known(b: Buffer, dims: Mapping[str, str]) -> Buffer:
    """The buffer with the dims renamed of which something is known."""
    said = b.small.pairs, b.small.fours, b.gradual
    if not any(said):
        return b
    pairs, fours, gradual = (tuple(sorted(dims[d] for d in x)) for x in said)
    return replace(b, small=replace(b.small, pairs=pairs, fours=fours), gradual=gradual)


def _rename_loops(
    body: tuple[Stmt, ...], dims: Mapping[str, str], buffers: Mapping[str, str]
) -> tuple[Stmt, ...]:
    def rename(s: Stmt) -> Stmt:
        match s:
            case Loop():
                inner = _rename_loops(s.body, dims, buffers)
                return Loop(dims.get(s.var, s.var), s.lo, s.hi, s.kind, inner)
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
