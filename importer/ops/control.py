"""Control flow: If, with one branch taken at import where the condition is known then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from onnx import GraphProto

from rutc.errors import UserError
from rutc.importer.assembly import needed_nodes
from rutc.importer.builder import MOST, Builder, OperatorError
from rutc.importer.registry import operator
from rutc.importer.tensor import Item, Tensor, TensorList
from rutc.tensor_ir import Body, Call, DType, If, Index, IndexValue, Node, apply

Results = Callable[[], Sequence[Tensor]]
"""Builds one branch and gives its results."""

Branch = tuple[list[Node], tuple[Tensor, ...]]


class Divergent(OperatorError):
    """The branches of an if give results of different rank, so what follows differs as well."""

    def __init__(self, message: str, chosen: Tensor) -> None:
        super().__init__(message)
        self.chosen = chosen


def tensors(items: Sequence[Item]) -> tuple[Tensor, ...]:
    """The items, none of which may be a sequence. Raises OperatorError where one is."""
    made = tuple(t for t in items if isinstance(t, Tensor))
    if len(made) < len(items):
        raise OperatorError(
            "a nested graph gives what is no tensor; its condition or trip count must be known "
            "when compiling"
        )
    return made


@operator("If")
def if_(
    b: Builder, condition: Tensor, *, then_branch: GraphProto, else_branch: GraphProto
) -> tuple[Item, ...]:
    """The outputs of one branch; a condition known at import chooses it then.

    A branch that does not fit the model's shapes becomes a call of the routine `fail`, which ends
    the run with the reason, as ONNX Runtime does when it comes there.
    """
    if condition.size.is_const and condition.size.const != 1:
        raise OperatorError(f"the condition must be one element, not {condition}")
    if condition.array is not None:
        taken = then_branch if bool(condition.array.reshape(-1)[0]) else else_branch
        return b.subgraph(taken)
    chosen = b.nest((), b.read(condition, [0] * condition.rank))
    lengths: list[tuple[int | None, ...]] = []

    def flat(branch: GraphProto) -> tuple[Tensor, ...]:
        items = b.subgraph(branch)
        lengths.append(tuple(len(i.items) if isinstance(i, TensorList) else None for i in items))
        inner = (i.items if isinstance(i, TensorList) else (i,) for i in items)
        return tensors([t for part in inner for t in part])

    made = iter(branched(b, chosen, lambda: flat(then_branch), lambda: flat(else_branch)))
    if len(set(lengths)) > 1:
        raise OperatorError(
            "the branches give sequences of different lengths; the condition must be known when "
            "compiling"
        )
    return tuple(
        next(made) if n is None else TensorList(tuple(islice(made, n))) for n in lengths[0]
    )


def branched(b: Builder, chosen: Tensor, then: Results, orelse: Results) -> tuple[Tensor, ...]:
    """The results of one branch, chosen by a bool scalar.

    Where the branches' results differ in an extent, it becomes a size that the program computes:

        %n = select(%chosen, 3, 5);   bind s = %n;   %y{d} = if %chosen ..     extent(d) = s
    """
    known = frozenset(b.ranges)
    functions = (then, orelse)
    branches = [_imported(b, f) for f in functions]
    shapes, repeat = _shapes(b, chosen, branches, known)
    if repeat:
        branches = [_imported(b, f) for f in functions]
    model = _model(branches)
    axes = [b.axes(shape) for shape in shapes]
    bodies: list[Body] = []
    for branch in branches:
        if isinstance(branch, UserError):
            outs = [b.tensor(t.dtype, a) for t, a in zip(model, axes, strict=True)]
            bodies.append(_failing(b, branch, outs))
            continue
        nodes, results = branch
        for p, q in zip(model, results, strict=True):
            if p.dtype is not q.dtype:
                raise OperatorError(f"the branches give different types, {p} and {q}")
        with b.body(nodes):
            copies = [b.relabelled(t, a) for t, a in zip(results, axes, strict=True)]
            for t in copies:
                b.defined(t)
        bodies.append(Body(tuple(nodes), tuple(t.name for t in copies)))
    outs = [b.tensor(t.dtype, a) for t, a in zip(model, axes, strict=True)]
    values = tuple(b.value(t) for t in outs)
    b.nodes.append(If(values, chosen.name, bodies[0], bodies[1], b.origin))
    return tuple(outs)


def unless(b: Builder, bad: Tensor, t: Tensor, message: str) -> Tensor:
    """`t`, or the end of the run with a message where the bool scalar `bad` holds."""
    axes = b.axes(t.shape)
    with b.body([]) as nodes:
        same = b.relabelled(t, axes)
    failed = b.tensor(t.dtype, axes)
    call = Call((b.value(failed),), "fail", (), (("message", message),), b.origin)
    branches = Body((call,), (failed.name,)), Body(tuple(nodes), (same.name,))
    out = b.tensor(t.dtype, axes)
    b.nodes.append(If((b.value(out),), bad.name, *branches, b.origin))
    return out


def _imported(b: Builder, function: Results) -> Branch | UserError:
    """A branch's nodes and results, or why it cannot be imported."""
    with b.body([]) as nodes:
        try:
            return nodes, tuple(function())
        except UserError as e:
            return e


def _model(branches: Sequence[Branch | UserError]) -> tuple[Tensor, ...]:
    """The results of the first branch that can be imported."""
    for branch in branches:
        if not isinstance(branch, UserError):
            return branch[1]
    assert isinstance(branches[0], UserError)
    raise branches[0]


def _failing(b: Builder, why: UserError, outs: Sequence[Tensor]) -> Body:
    """A branch that ends the run."""
    values = tuple(b.value(t) for t in outs)
    call = Call(values, "fail", (), (("message", str(why)),), b.origin)
    return Body((call,), tuple(t.name for t in outs))


def _shapes(
    b: Builder,
    chosen: Tensor,
    branches: Sequence[Branch | UserError],
    known: frozenset[str],
) -> tuple[list[tuple[Index, ...]], bool]:
    """The shapes of the results, and whether the branches must be imported again.

    Sizes that a branch computes are computed by an if of their own, which consumes the branches.
    """
    fitting = [r for r in branches if not isinstance(r, UserError)]
    first = _model(branches)
    shapes: list[list[Index]] = []
    inner: list[tuple[int, int]] = []
    for k, t in enumerate(first):
        others = [r[1][k] for r in fitting]
        if any(o.rank != t.rank for o in others):
            raise Divergent(
                f"the branches give results of different rank, {' and '.join(map(str, others))}; "
                "a condition that is known when compiling would choose one",
                chosen,
            )
        shape: list[Index] = []
        for i, extent in enumerate(t.shape):
            found = [o.shape[i] for o in others]
            if any(not e.names() <= known for e in found):
                inner.append((k, i))
                shape.append(extent)
            elif all(e == extent for e in found):
                shape.append(extent)
            else:
                sizes = [IndexValue(e) for e in found]
                size = b.nest((), apply("select", b.read(chosen, []), *sizes))
                shape.append(b.size(size, "chosen", _most(b, found)))
        shapes.append(shape)
    if inner:
        for (k, i), found_size in zip(inner, _computed(b, chosen, branches, inner), strict=True):
            shapes[k][i] = found_size
    return [tuple(s) for s in shapes], bool(inner)


def _computed(
    b: Builder,
    chosen: Tensor,
    branches: Sequence[Branch | UserError],
    places: Sequence[tuple[int, int]],
) -> list[Index]:
    """The extents of (result, axis) of the branch that is taken, as sizes."""
    bodies: list[Body] = []
    limits = [0] * len(places)
    for branch in branches:
        if isinstance(branch, UserError):
            bodies.append(_failing(b, branch, [b.tensor(DType.I64, ()) for _ in places]))
            continue
        nodes, results = branch
        extents = [results[k].shape[i] for k, i in places]
        limits = [max(n, _most(b, (e,))) for n, e in zip(limits, extents, strict=True)]
        with b.body(nodes):
            sizes = [b.nest((), IndexValue(e)) for e in extents]
        kept = needed_nodes(nodes, {t.name for t in sizes}, set(), b.extents)
        bodies.append(Body(tuple(kept), tuple(t.name for t in sizes)))
    outs = [b.tensor(DType.I64, ()) for _ in places]
    values = tuple(b.value(t) for t in outs)
    b.nodes.append(If(values, chosen.name, bodies[0], bodies[1], b.origin))
    return [b.size(t, "chosen", limit) for t, limit in zip(outs, limits, strict=True)]


def _most(b: Builder, extents: Sequence[Index]) -> int:
    bounds = [e.bounds(b.ranges) for e in extents]
    return max((MOST if x is None else min(max(x[1], 0), MOST)) for x in bounds)
