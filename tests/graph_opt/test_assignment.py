"""Assignments print and parse; legal ones compute the same, others say what is wrong."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rutc.graph_opt import optimize
from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import realise
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpret import interpret
from tests.examples import examples
from tests.graph_opt.plan_runner import run_plan
from tests.graph_opt.plans import planned
from tests.graph_opt.walks import walked
from tests.machines import V4
from tests.strategies import graphs, random_inputs


@examples(100)
@given(
    graphs(exact=True, symbolic=False, most=5),
    st.integers(0, 1 << 32),
    st.integers(0, 6),
    st.booleans(),
)
def test_legal_assignments_compute_the_same(
    graph: Graph, seed: int, steps: int, optimized: bool
) -> None:
    planned(graph)
    inputs = random_inputs(graph, seed % 10)
    prepared = prepare(optimize(graph) if optimized else graph)
    found = walked(greedy(prepared, V4).realisation, Random(seed), steps)
    assert parse_assignment(str(found.assignment)) == found.assignment
    plan = realise(prepared, found.assignment, V4)
    assert plan == found.plan
    got = run_plan(plan, inputs)
    for name, array in interpret(graph, inputs).items():
        np.testing.assert_array_equal(
            got[name], array, err_msg=f"{name} of\n{graph}\n{found.assignment}\n{plan}"
        )
