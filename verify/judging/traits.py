"""What the values behind each output of a graph are like, as far as comparisons ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rutc.base.record import record
from rutc.graph_opt.versions import RANDOM
from rutc.tensor_ir import Call, DType, Graph, Input, Node, Scan, While
from rutc.tensor_ir.graph import bodies, outs, used, used_deep, walk_nodes
from rutc.verify.truth.float64 import NARROW


@record
class Traits:
    """Of what an output is made.

    `varies`: of some input. `random`: of numbers drawn at random. `narrow`: of floats of these
    types of 16 bits.
    """

    varies: bool = False
    random: bool = False
    narrow: frozenset[DType] = frozenset()

    def __or__(self, other: Traits) -> Traits:
        return Traits(
            self.varies or other.varies,
            self.random or other.random,
            self.narrow | other.narrow,
        )


def output_traits(graph: Graph) -> dict[str, Traits]:
    """Returns the traits of every output by name."""
    known = value_traits(graph)
    return {o.name: known[o.value] for o in graph.outputs}


def value_traits(graph: Graph) -> dict[str, Traits]:
    """Returns the traits of every value by name."""
    known: dict[str, Traits] = {}
    _spread(graph.nodes, known)
    return known


def _spread(nodes: Sequence[Node], known: dict[str, Traits]) -> None:
    """Enters the traits of all values that the nodes define."""
    for n in nodes:
        if isinstance(n, Scan | While):
            # What one trip makes the next one reads: all of a loop has the traits of all of it.
            whole = _of(used_deep(n), known)
            for inner in walk_nodes((n,)):
                whole |= _own(inner)
            known.update(dict.fromkeys((c.param.name for c in n.carries), whole))
        for body in bodies(n):
            _spread(body, known)
        found = _own(n) | _of(used(n), known)
        if isinstance(n, Scan | While):
            found |= whole
        known.update({v.name: found for v in outs(n)})


def _own(n: Node) -> Traits:
    """What a node adds."""
    drawn = isinstance(n, Call) and n.routine in RANDOM
    narrow = NARROW.intersection(v.dtype for v in outs(n))
    return Traits(isinstance(n, Input), drawn, narrow)


def _of(names: Iterable[str], known: Mapping[str, Traits]) -> Traits:
    found = Traits()
    for name in names:
        found |= known.get(name, Traits())
    return found
