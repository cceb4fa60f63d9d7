"""A plan's inputs, outputs and states, as the host program has them."""

from __future__ import annotations

from dataclasses import replace

from rutc.base.record import record
from rutc.emit.host_program import ports
from rutc.errors import UserError
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.graph import Graph, Input, Output, State
from rutc.tensor_ir.indices.affine import Index, Size, plain, product
from rutc.tensor_ir.stated_sizes import stated_sizes
from rutc.tensor_ir.states import ends, growth


@record
class PlanPorts:
    """What a library takes, gives, and keeps for the next run: the last of both."""

    inputs: tuple[ports.Port, ...]
    outputs: tuple[ports.Port, ...]
    states: tuple[ports.State, ...]


def ports_of(plan: Plan) -> PlanPorts:
    """The ports of a plan.

    Raises:
        UserError: an input of strings is fixed to some.
    """
    extents = {d: plain(e) for d, e in plan.graph.dims}
    return PlanPorts(
        tuple(_input(n, extents) for n in plan.graph.inputs),
        tuple(_output(o, plan, extents) for o in plan.graph.outputs),
        tuple(_state(s, plan, extents) for s in plan.graph.states),
    )


def _input(n: Input, extents: dict[str, Size]) -> ports.Port:
    port = _port(n.name, n.out.dtype, n.axes, extents)
    if n.fixed is None:
        return port
    if n.out.dtype is DType.STRING:
        raise UserError(f"input {n.name!r} is of strings, which cannot be given when compiling")
    return replace(port, fixed=ports.Fixed(n.fixed.array.tobytes(), str(n.fixed)))


def _output(o: Output, plan: Plan, extents: dict[str, Size]) -> ports.Port:
    port = _port(o.name, plan.values[o.value].dtype, o.axes, extents)
    stated = stated_sizes(plan.graph)
    port = replace(port, said=tuple(plain(Index.of(x).subs(stated)) for x in port.shape))
    place = plan.places[o.value]
    return replace(port, block=place.index) if place.space == "block" else port


def _port(name: str, dtype: DType, axes: tuple[str, ...], extents: dict[str, Size]) -> ports.Port:
    return ports.Port(name, dtype.stored_name, tuple(extents[d] for d in axes))


def _state(state: State, plan: Plan, extents: dict[str, Size]) -> ports.State:
    graph: Graph = plan.graph
    taken, given = ends(graph, state)
    how = growth(graph, state)
    shape = [extents[d] for d in taken.axes]
    if how is not None:
        shape[how.axis] = how.capacity
    size = Index.of(product(shape)).value * taken.out.dtype.bytes
    grows = None if how is None else (how.axis, how.capacity)
    together = plan.places[taken.out.name] == plan.places[given.value]
    return ports.State(size, grows, together)
