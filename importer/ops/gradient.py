"""Gradient: reverse-mode differentiation of the nests between the named tensors.

A nest y{D} = sum{B} f(reads) passes the adjoint of y to what a read x[coords] names:

    dx[coords] += dy{D} * (df / dread)      for every point of D and B

Where the coordinates are distinct dims this is a nest again, the other dims being reduced; any
other coordinates scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError, lit
from rutc.importer.building.tensor import Axis, Item, Tensor
from rutc.importer.ops.activations import add, mul
from rutc.importer.ops.derivative import derivative
from rutc.importer.ops.scatter import scattered
from rutc.importer.ops.training import DOMAIN
from rutc.importer.registry import operator
from rutc.tensor_ir import Expr, Index, Nest, Node, Read, apply
from rutc.tensor_ir.expr import point, reads, substitute, transform
from rutc.tensor_ir.graph import outs, used_deep
from rutc.tensor_ir.indices.affine import ONE, ZERO

Adjoints = dict[str, list[Tensor]]
"""Per value what its readers contribute, over its dims in order."""


@operator("Gradient", DOMAIN)
def gradient(
    b: Builder, *operands: Tensor, xs: Sequence[str], y: str, zs: Sequence[str] = ()
) -> tuple[Tensor, ...]:
    """The derivatives of the sum of `y` by each of `xs`, where `xs` and `zs` are the operands."""
    names = (*xs, *zs)
    if len(operands) != len(names):
        raise OperatorError(f"{len(operands)} operands for {len(names)} names")
    places = [_named(b.scope, name) for name in names]
    result = _named(b.scope, y)
    nodes = list(b.nodes)
    if any(p.name != t.name for p, t in zip(places, operands, strict=True)):
        operands = tuple(_copied(b, p, t) for p, t in zip(places, operands, strict=True))
        result, nodes = _evaluated(b, nodes, places, operands, result)
    wanted = operands[: len(xs)]
    if any(t.known is not None for t in (*wanted, result)):
        raise OperatorError("the derivative of a constant is asked for")
    adjoints = _passed_back(b, nodes, wanted, result)
    return tuple(_gathered(b, t, adjoints) for t in wanted)


def _named(scope: Mapping[str, Item], name: str) -> Tensor:
    found = scope.get(name)
    if not isinstance(found, Tensor):
        raise OperatorError(f"{name!r} is no tensor that is computed before")
    return found


def _dims(t: Tensor) -> tuple[str, ...]:
    """The dims of a tensor's value."""
    return tuple(sorted((*(a.dim for a in t.axes if a.dim is not None), *t.units)))


def _copied(b: Builder, place: Tensor, given: Tensor) -> Tensor:
    """A value with the elements of an operand that stands for another tensor."""
    if place.shape != given.shape or place.dtype is not given.dtype:
        raise OperatorError(f"{given} cannot stand for {place}")
    return b.relabelled(given, b.axes(given.shape))


def _evaluated(
    b: Builder,
    nodes: Sequence[Node],
    places: Sequence[Tensor],
    operands: Sequence[Tensor],
    result: Tensor,
) -> tuple[Tensor, list[Node]]:
    """The result with operands in place of other tensors, and the nests that compute it."""
    made: list[Node] = []
    change: dict[str, Callable[[Read], Expr]] = {
        p.name: _reader(b, p, t) for p, t in zip(places, operands, strict=True)
    }
    renamed: dict[str, str] = {}

    def changed(e: Expr) -> Expr:
        if isinstance(e, Read) and e.value in change:
            return change[e.value](e)
        if isinstance(e, Read) and e.value in renamed:
            return replace(e, value=renamed[e.value])
        return e

    for node in nodes:
        if not {*change, *renamed}.intersection(used_deep(node)):
            continue
        if not isinstance(node, Nest):
            raise _no_nest(node)
        values = tuple(replace(v, name=b.fresh()) for v in node.outs)
        renamed |= {v.name: w.name for v, w in zip(node.outs, values, strict=True)}
        body = tuple(transform(e, changed) for e in node.body)
        made.append(Nest(values, node.bound, node.reducer, body, b.origin))
    b.nodes += made
    by_name = {p.name: t for p, t in zip(places, operands, strict=True)}
    if result.name in by_name:
        return by_name[result.name], made
    return replace(result, name=renamed.get(result.name, result.name)), made


def _reader(b: Builder, place: Tensor, given: Tensor) -> Callable[[Read], Expr]:
    """Reads of one tensor as reads of another with its shape."""

    def read(r: Read) -> Expr:
        at = dict(r.coords)
        coords = [ZERO if a.dim is None else at[a.dim] for a in place.axes]
        return b.read(given, coords, r.fill)

    return read


def _no_nest(node: Node) -> OperatorError:
    kind = type(node).__name__.lower()
    return OperatorError(f"there is no derivative through {', '.join(node.origin)} (a {kind})")


def _passed_back(
    b: Builder, nodes: Sequence[Node], wanted: Sequence[Tensor], result: Tensor
) -> Adjoints:
    """The adjoints of all values between the wanted tensors and the result."""
    active = {t.name for t in wanted}
    for node in nodes:
        if active.intersection(used_deep(node)):
            active.update(v.name for v in outs(node) if v.dtype.is_float)
    seed = b.nest(b.axes([b.extents[d] for d in _dims(result)]), lit(1, result.dtype))
    adjoints: Adjoints = {result.name: [seed]}
    for node in reversed(nodes):
        given = {v.name for v in outs(node)} & adjoints.keys() & active
        if not given:
            continue
        if not isinstance(node, Nest) or len(node.outs) > 1:
            raise _no_nest(node)
        total = _total(b, adjoints[node.out.name])
        for r in dict.fromkeys(reads(node.body[0])):
            if r.value in active and r.value != node.out.name:
                slope = _slope(b, node, r)
                if slope is not None:
                    part = _contribution(b, node, r, slope, total)
                    adjoints.setdefault(r.value, []).append(part)
    return adjoints


def _total(b: Builder, parts: Iterable[Tensor]) -> Tensor:
    return reduce(lambda p, q: b.map(add, p, q), parts)


def _slope(b: Builder, node: Nest, r: Read) -> Expr | None:
    """The derivative of the node's value by one read at a point of its dims."""
    (body,) = node.body
    inner = derivative(body, r)
    name = None if node.reducer is None else node.reducer.name
    if inner is None or name in (None, "sum"):
        return inner
    if name not in ("max", "min"):
        raise OperatorError(f"there is no derivative of the reducer {name!r}")
    reached = Read(node.out.name, point(node.out.dims), node.out.dtype)
    return apply("select", apply("eq", body, reached), inner, lit(0, inner.dtype))


def _contribution(b: Builder, node: Nest, r: Read, slope: Expr, adjoint: Tensor) -> Tensor:
    """What a read's value gets of the adjoint of the node's."""
    here = b.read(adjoint, [Index.of(d) for d in node.out.dims])
    body = mul(here, slope)
    shape = [b.extents[d] for d, _ in r.coords]
    axes = b.axes(shape)
    env: dict[str, Index] = {}
    for (_, c), a in zip(r.coords, axes, strict=True):
        if a.extent == ONE and c == ZERO:
            continue
        name = c.as_var if isinstance(c, Index) else None
        if name is None or name in env or b.extents.get(name) != a.extent:
            return _scattered(b, node, r, body, axes)
        env[name] = a.index
    if not env.keys() <= set(node.dims):
        return _scattered(b, node, r, body, axes)
    rest = {d: b.axis(b.extents[d]) for d in node.dims if d not in env}
    env |= {d: a.index for d, a in rest.items()}
    return b.nest(axes, substitute(body, env), tuple(rest.values()))


def _scattered(b: Builder, node: Nest, r: Read, body: Expr, axes: Sequence[Axis]) -> Tensor:
    """The contribution through coordinates that are not plain dims."""
    space = {d: b.axis(b.extents[d]) for d in node.dims}
    env = {d: a.index for d, a in space.items()}
    coords = [c.subs(env) if isinstance(c, Index) else substitute(c, env) for _, c in r.coords]
    zeros = b.nest(axes, lit(0, body.dtype))
    return scattered(b, zeros, tuple(space.values()), coords, substitute(body, env), "add")


def _gathered(b: Builder, t: Tensor, adjoints: Adjoints) -> Tensor:
    """The adjoint of a tensor with its axes in order; 0 where the result does not depend on it."""
    parts = adjoints.get(t.name)
    if parts is None:
        return b.nest(b.axes(t.shape), lit(0, t.dtype))
    axes = b.axes(t.shape)
    at = {a.dim: x.index for a, x in zip(t.axes, axes, strict=True)}
    return b.nest(axes, b.read(_total(b, parts), [at.get(d, ZERO) for d in _dims(t)]))
