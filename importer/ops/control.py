"""Control flow: If, with one branch taken at import where the condition is known then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from onnx import GraphProto

from rutc.base.earlier import Earlier
from rutc.errors import UserError
from rutc.importer.boxes import (
    Leaf,
    gathered,
    joined,
    leaves,
    packed,
    spread,
    type_of,
    unpacked,
)
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.size_builder import MOST
from rutc.importer.building.tensor import Item, Tensor, TensorType, Type
from rutc.importer.registry import operator
from rutc.tensor_ir import Body, Call, DType, If, Index, IndexValue, Node, apply
from rutc.tensor_ir.indices.affine import ONE

Results = Callable[[], Sequence[Item]]
"""Builds one branch and gives its results."""

Branch = tuple[list[Node], tuple[Item, ...]]


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
    check_condition(condition)
    if condition.array is not None:
        taken = then_branch if bool(condition.array.reshape(-1)[0]) else else_branch
        return b.subgraph(taken)
    chosen = b.nest((), b.read(condition, [0] * condition.rank))
    return branched(b, chosen, lambda: b.subgraph(then_branch), lambda: b.subgraph(else_branch))


def check_condition(condition: Tensor) -> None:
    """Raises OperatorError unless a tensor can be a condition: one bool."""
    if condition.dtype is not DType.BOOL or any(e.is_const and e != ONE for e in condition.shape):
        raise OperatorError(f"the condition must be one bool, not {condition}")


def branched(b: Builder, chosen: Tensor, then: Results, orelse: Results) -> tuple[Item, ...]:
    """The results of one branch, chosen by a bool scalar.

    Where the branches' results differ in an extent, it becomes a size that the program computes:

        %n = select(%chosen, 3, 5);   bind s = %n;   %y{d} = if %chosen ..     extent(d) = s

    Where they differ in more, or a branch computes a size itself, they give boxes.
    """
    known = Earlier(b.ranges)
    branches = [_imported(b, f) for f in (then, orelse)]
    fitting = [r for r in branches if not isinstance(r, UserError)]
    if not fitting:
        assert isinstance(branches[0], UserError)
        raise branches[0]
    types = [
        _common([type_of(items[k], known) for _, items in fitting]) for k in range(_count(fitting))
    ]
    flat = [leaf for t in types for leaf in leaves(t)]
    parts = [
        None
        if isinstance(r, UserError)
        else [x for i, t in zip(r[1], types, strict=True) for x in spread(i, t)]
        for r in branches
    ]
    there = [p for p in parts if p is not None]
    flat = [_sized(b, chosen, leaf, [p[k] for p in there], known) for k, leaf in enumerate(flat)]
    axes = [
        b.axes(t.fixed) if isinstance(t, TensorType) and t.fixed is not None else () for t in flat
    ]
    kinds = [
        t.dtype if isinstance(t, TensorType) and t.fixed is not None else DType.TENSOR for t in flat
    ]
    bodies: list[Body] = []
    for branch, items in zip(branches, parts, strict=True):
        if isinstance(branch, UserError):
            lost = [b.tensor(kind, a) for kind, a in zip(kinds, axes, strict=True)]
            which = "else" if bodies else "then"
            bodies.append(_failing(b, which, branch, lost))
            continue
        nodes, _ = branch
        with b.body(nodes):
            tensors = [packed(b, i, t) for i, t in zip(items or (), flat, strict=True)]
            copies = [b.defined(b.relabelled(t, a)) for t, a in zip(tensors, axes, strict=True)]
        bodies.append(Body(tuple(nodes), tuple(t.name for t in copies)))
    outs = [b.tensor(kind, a) for kind, a in zip(kinds, axes, strict=True)]
    values = tuple(b.value(t) for t in outs)
    b.nodes.append(If(values, chosen.name, bodies[0], bodies[1], b.origin))
    made = iter([unpacked(b, t, leaf) for t, leaf in zip(outs, flat, strict=True)])
    return tuple(gathered(made, t) for t in types)


def _count(branches: Sequence[Branch]) -> int:
    counts = {len(items) for _, items in branches}
    if len(counts) > 1:
        raise OperatorError("the branches differ in the number of their outputs")
    return counts.pop()


def _common(types: Sequence[Type]) -> Type:
    try:
        found = joined(types)
    except OperatorError as e:
        raise OperatorError(f"the branches give different types: {e}") from e
    assert found is not None
    return found


def _sized(
    b: Builder, chosen: Tensor, t: Leaf, items: Sequence[Item], known: AbstractSet[str]
) -> Leaf:
    """The type of a result, extents that differ made sizes where both branches know theirs."""
    if not isinstance(t, TensorType) or t.shape is None or t.fixed is not None:
        return t
    shapes = [i.shape for i in items if isinstance(i, Tensor)]
    if any(not e.names() <= known for s in shapes for e in s):
        return t
    shape: list[Index | None] = []
    for k, extent in enumerate(t.shape):
        if extent is None:
            found = [s[k] for s in shapes]
            size = b.nest((), apply("select", b.read(chosen, []), *map(IndexValue, found)))
            extent = b.size(size, "chosen", _most(b, found))
        shape.append(extent)
    return TensorType(t.dtype, tuple(shape))


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


def _failing(b: Builder, which: str, why: UserError, outs: Sequence[Tensor]) -> Body:
    """A branch that ends the run."""
    values = tuple(b.value(t) for t in outs)
    where = ", ".join(map(repr, b.origin))
    message = f"this run takes the {which} branch of {where}, which was left out, as {why}"
    call = Call(values, "fail", (), (("message", message),), b.origin)
    return Body((call,), tuple(t.name for t in outs))


def _most(b: Builder, extents: Sequence[Index]) -> int:
    bounds = [e.bounds(b.ranges) for e in extents]
    return max((MOST if x is None else min(max(x[1], 0), MOST)) for x in bounds)
