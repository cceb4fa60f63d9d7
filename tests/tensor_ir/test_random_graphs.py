import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rutc.tensor_ir import Graph
from rutc.tensor_ir.graph import constants_of
from rutc.tensor_ir.interpreter import interpret as interpret_module
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.examples import examples
from tests.strategies import graphs, random_inputs
from tests.tensor_ir.naive import Naive

some = examples(60)


@some
@given(graphs())
def test_graphs_are_valid_and_parse_back(graph: Graph) -> None:
    verify(graph)
    assert parse(str(graph), constants_of(graph)) == graph


@some
@given(graphs(exact=True), st.integers(0, 9))
def test_exact_graphs_agree_with_a_point_by_point_evaluation(graph: Graph, seed: int) -> None:
    inputs = random_inputs(graph, seed)
    got = interpret(graph, inputs)
    naive = Naive(graph, inputs)
    for name, array in got.items():
        np.testing.assert_array_equal(array, naive.output(name), err_msg=f"{name} of\n{graph}")


@some
@given(graphs(exact=False), st.integers(0, 9))
def test_smooth_graphs_agree_with_a_point_by_point_evaluation(graph: Graph, seed: int) -> None:
    inputs = random_inputs(graph, seed)
    got = interpret(graph, inputs)
    naive = Naive(graph, inputs)
    for name, array in got.items():
        assert_close(array, naive.output(name), level=Level.MODEL, err_msg=f"{name} of\n{graph}")


@some
@given(graphs(exact=True, most=3))
def test_small_blocks_change_nothing(graph: Graph) -> None:
    inputs = random_inputs(graph, 0)
    whole = interpret(graph, inputs)
    points, interpret_module.POINTS = interpret_module.POINTS, 3
    try:
        pieces = interpret(graph, inputs)
    finally:
        interpret_module.POINTS = points
    for name, array in whole.items():
        np.testing.assert_array_equal(array, pieces[name], err_msg=f"{name} of\n{graph}")
