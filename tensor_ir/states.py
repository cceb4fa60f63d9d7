"""States: outputs that are an input of the next run, and how much memory they need.

A state either keeps its shape, or is longer along one axis after each run. It has room for as much
as the largest input that may be made longer by a run; the ranges of the sizes tell that.
"""

from __future__ import annotations

from rutc.base.record import record
from rutc.tensor_ir.graph import Graph, Input, Output, State, bound_symbols
from rutc.tensor_ir.indices.affine import Index

MOST_CAPACITY = 1 << 30
"""Elements along a dim; what has no smaller bound counts as unbounded."""


class NoState(ValueError):
    """An output cannot be an input of the next run; the message says why."""


@record
class Growth:
    """A state gains `added` along `axis`, where it had `before`; it has room for `capacity`."""

    axis: int
    before: Index
    added: Index
    capacity: int


def ends(graph: Graph, state: State) -> tuple[Input, Output]:
    """The input and the output of a state."""
    (taken,) = (n for n in graph.inputs if n.name == state.input)
    (given,) = (o for o in graph.outputs if o.name == state.output)
    return taken, given


def growth(graph: Graph, state: State) -> Growth | None:
    """How a state grows; None if it keeps its shape.

    Raises:
        NoState: its shapes do not fit together, or its size is not known or bounded.
    """
    taken, given = ends(graph, state)
    before = [graph.extents[d] for d in taken.axes]
    after = [graph.extents[d] for d in given.axes]
    shapes = f"{_shape(before)} becomes {_shape(after)}"
    if len(before) != len(after):
        raise NoState(f"{shapes}, which is no input of the next run")
    longer = [axis for axis, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]
    if len(longer) > 1:
        raise NoState(f"{shapes}, and a state grows along one axis only")
    for axis, x in enumerate(before):
        if axis not in longer and not x.is_const:
            raise NoState(f"{shapes}: only what grows may be left open, fix {x} with --dim {x}=N")
    if not longer:
        return None
    (axis,) = longer
    if not bound_symbols(graph.nodes).isdisjoint(after[axis].names()):
        raise NoState(f"{shapes}, which only a run tells")
    symbol, symbols = before[axis].as_var, dict(graph.symbols)
    if symbol is None or symbol not in symbols:
        raise NoState(
            f"{shapes}: leave what grows open, up to a largest size, like --dim past=0..1024"
        )
    added = (after[axis] - before[axis]).simplify(symbols)
    bounds = added.bounds(symbols)
    if symbol in added.names() or bounds is None or bounds[0] < 0:
        raise NoState(f"{shapes}: what is added must not depend on {symbol}")
    capacity = symbols[symbol][1] + bounds[0]
    if capacity >= MOST_CAPACITY:
        raise NoState(f"{shapes}: nothing bounds {symbol}: say how large it may be, like "
                      f"--dim {symbol}=0..1024")  # fmt: skip
    return Growth(axis, before[axis], added, capacity)


def _shape(extents: list[Index]) -> str:
    return f"[{', '.join(map(str, extents))}]"
