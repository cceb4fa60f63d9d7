"""Control flow: If, with one branch taken at import where the condition is known then."""

from __future__ import annotations

from onnx import GraphProto

from rutc.errors import UserError
from rutc.importer.builder import Builder, OperatorError
from rutc.importer.registry import operator
from rutc.importer.tensor import Tensor
from rutc.tensor_ir import Body, Call, If, Node

Branch = tuple[list[Node], tuple[Tensor, ...]]


@operator("If")
def if_(
    b: Builder, condition: Tensor, *, then_branch: GraphProto, else_branch: GraphProto
) -> tuple[Tensor, ...]:
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
    branches = [_imported(b, g) for g in (then_branch, else_branch)]
    model = next((r for r in branches if not isinstance(r, UserError)), None)
    if model is None:
        assert isinstance(branches[0], UserError)
        raise branches[0]
    axes = [b.axes(t.shape) for t in model[1]]
    bodies: list[Body] = []
    for branch in branches:
        if isinstance(branch, UserError):
            outs = [b.tensor(t.dtype, a) for t, a in zip(model[1], axes, strict=True)]
            values = tuple(b.value(t) for t in outs)
            call = Call(values, "fail", (), (("message", str(branch)),), b.origin)
            bodies.append(Body((call,), tuple(t.name for t in outs)))
            continue
        nodes, results = branch
        for name, p, q in zip(b.outputs, model[1], results, strict=True):
            if p.shape != q.shape or p.dtype is not q.dtype:
                raise OperatorError(
                    f"the branches give {name!r} different shapes or types, {p} and {q}; "
                    "a condition that is known when compiling would choose one"
                )
        with b.body(nodes):
            copies = [b.relabelled(t, a) for t, a in zip(results, axes, strict=True)]
        bodies.append(Body(tuple(nodes), tuple(t.name for t in copies)))
    outs = [b.tensor(t.dtype, a) for t, a in zip(model[1], axes, strict=True)]
    values = tuple(b.value(t) for t in outs)
    b.nodes.append(If(values, chosen.name, bodies[0], bodies[1], b.origin))
    return tuple(outs)


def _imported(b: Builder, graph: GraphProto) -> Branch | UserError:
    """A branch's nodes and results, or why it cannot be imported."""
    with b.body([]) as nodes:
        try:
            return nodes, b.subgraph(graph)
        except UserError as e:
            return e
