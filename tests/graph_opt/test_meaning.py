"""Every step of the pipeline keeps what a graph computes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.errors import UserError
from rutc.graph_opt.pipeline import optimize, pipeline_for
from rutc.graph_opt.rewrite import Sweep
from rutc.tensor_ir import Call, Graph
from rutc.tensor_ir.graph import walk_nodes
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.judging.tolerance import Level
from tests.close import assert_close
from tests.examples import examples
from tests.golden import before
from tests.graph_opt.rules import BY_NAME
from tests.machines import NATIVE, V3
from tests.strategies import graphs, random_inputs, random_sizes

FILES = sorted((Path(__file__).parent / "golden").glob("*/*.txt"))
some = examples(120)


def results(
    graph: Graph, inputs: dict[str, np.ndarray], sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """What a graph computes; nothing where it ends the run."""
    try:
        return interpret(graph, inputs, sizes)
    except UserError:
        assert ends(graph)
        return {}


def ends(graph: Graph) -> bool:
    """Whether some inputs may end a run of a graph."""
    return any(isinstance(n, Call) and n.routine == "fail" for n in walk_nodes(graph.nodes))


def check_every_step(graph: Graph, seed: int, *, exact: bool) -> None:
    # No input may tell a size that only constants are repeated over.
    sizes = random_sizes(graph, seed)
    inputs = random_inputs(graph, seed, sizes)
    wanted = results(graph, inputs, sizes)
    before = graph

    def compare(name: str, after: Graph, changed: bool) -> None:
        nonlocal before
        got = results(after, inputs, sizes) if changed else wanted
        assert got.keys() == wanted.keys()
        for output, array in wanted.items():
            text = f"{output} after {name!r} of\n{before}\nto\n{after}"
            if exact:
                np.testing.assert_array_equal(got[output], array, err_msg=text)
            else:
                assert_close(got[output], array, level=Level.MODEL, err_msg=text)
        before = after

    optimize(graph, on_step=compare)


@some
@given(graphs(exact=True), st.integers(0, 9))
def test_exact_graphs_keep_every_value(graph: Graph, seed: int) -> None:
    check_every_step(graph, seed, exact=True)


@some
@given(graphs(exact=False), st.integers(0, 9))
def test_smooth_graphs_keep_their_values_up_to_rounding(graph: Graph, seed: int) -> None:
    check_every_step(graph, seed, exact=False)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_rules_examples_keep_their_values(path: Path) -> None:
    graph = before(path)
    if any(isinstance(n, Call) for n in graph.nodes):
        pytest.skip("calls a routine that only the host runtime has")
    seeds = range(32) if ends(graph) else range(2)
    sizes = [random_sizes(graph, seed) for seed in seeds]
    inputs = [random_inputs(graph, seed, sizes[seed]) for seed in seeds]
    wanted = [results(graph, x, s) for x, s in zip(inputs, sizes, strict=True)]
    whole = [seed for seed in seeds if wanted[seed]]
    assert whole
    assert (len(whole) < len(seeds)) == ends(graph)
    check_every_step(graph, whole[0], exact=False)
    name = path.parent.name
    if name not in BY_NAME:
        return
    # Steps of the pipeline may get there first: here the rule alone.
    alone = optimize(graph, pipeline=(Sweep(name, (BY_NAME[name],)),))
    for seed in seeds[1:]:
        after = results(alone, inputs[seed], sizes[seed])
        assert after.keys() == wanted[seed].keys()
        for output, array in wanted[seed].items():
            assert_close(after[output], array, level=Level.MODEL)


def test_nan_is_the_largest_of_its_window_before_it_is_quantised() -> None:
    graph = before(Path(__file__).parent / "golden" / "quantise_before_windows" / "may_be_nan.txt")
    x = np.array([1, np.nan, 3, 4, 5, -np.inf, 7, np.inf, 9], np.float32)
    want = interpret(graph, {"x": x})
    for machine in (NATIVE, V3):
        pipeline = pipeline_for(machine)
        got = interpret(optimize(graph, pipeline=pipeline), {"x": x})
        np.testing.assert_array_equal(got["y"], want["y"])


def test_a_sign_behind_a_shift_is_no_step_to_save() -> None:
    graph = parse(
        """
        graph "sign"
        dims a = 2
        %x : f32{a} = input "x" [a]
        %y : f32{a} = (-1.0 + 0.0) * (%x[a] + 0.0)
        output "y" [a] = %y
        """
    )
    inputs = {"x": np.array([1.5, -2.0], np.float32)}
    np.testing.assert_array_equal(interpret(optimize(graph), inputs)["y"], [-1.5, 2.0])
