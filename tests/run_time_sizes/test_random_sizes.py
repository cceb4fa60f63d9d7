"""Random graphs whose symbolic size the program reads from an input, against their meaning.

A long run: `RUTC_EXAMPLES=50 pytest tests/run_time_sizes/test_random_sizes.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given

from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.runtime import InferenceSession
from rutc.tensor_ir import Bind, DType, Graph, Index, IndexValue, Input, Nest, Node, Value
from rutc.tensor_ir.expr import apply, cast
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.verifier import verify
from tests import machines
from tests.compiled import build
from tests.examples import examples
from tests.graph_opt.plan_runner import run_plan
from tests.machines import eager
from tests.strategies import graphs, random_inputs

NATIVE = eager(machines.NATIVE)

pytestmark = pytest.mark.usefixtures("module_cache")


def bound(graph: Graph) -> Graph:
    """The graph with its symbols read from inputs, and inputs of symbolic size made of indices."""
    first: list[Node] = []
    for name, _ in graph.symbols:
        size = Value(f"{name}.given", DType.I64, ())
        first.append(Input(size, f"{name}.given", ()))
        first.append(Bind(Value(f"{name}.bound", DType.I64, ()), name, size.name, (f"of {name}",)))
    nodes: list[Node] = []
    for n in graph.nodes:
        if isinstance(n, Input) and any(not graph.extents[d].is_const for d in n.axes):
            position = Index.of(1)
            for k, d in enumerate(n.axes):
                position = position * 3 + Index.of(d) * (k + 1)
            number = apply("mod", IndexValue(position), literal_of(7))
            n = Nest((n.out,), (), None, (cast(number, n.out.dtype),), n.origin)
        nodes.append(n)
    made = replace(graph, nodes=(*first, *nodes))
    verify(made)
    return made


def literal_of(value: int) -> IndexValue:
    """A number as an element of type i64."""
    return IndexValue(Index.of(value))


@examples(15)
@given(graphs(exact=True, symbolic=True))
def test_graphs_of_computed_sizes(graph: Graph) -> None:
    made = bound(graph)
    plan = decide(optimize(made), NATIVE)
    with (
        TemporaryDirectory() as folder,
        InferenceSession(build(plan, NATIVE, Path(folder)), threads=2) as session,
    ):
        for size in (3, 40, 1, 7):
            inputs = random_inputs(made, size)
            for name, (low, high) in graph.symbols:
                inputs[f"{name}.given"] = np.array(min(max(size, low), high))
            expected = interpret(made, inputs)
            names = [o.name for o in session.get_outputs()]
            got = dict(zip(names, session.run(None, inputs), strict=True))
            planned = run_plan(plan, inputs)
            for name, array in expected.items():
                np.testing.assert_array_equal(planned[name], array, err_msg=f"{name} {size}")
                np.testing.assert_array_equal(got[name], array, err_msg=f"{name} {size}")
