"""Products of bytes by constants that an algorithm takes apart: what tests of these share."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rutc.graph_opt.decide import decide
from rutc.graph_opt.rewrite import Pass, Rule, Sweep
from rutc.tensor_ir import Const, Data, Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from tests.compiled import build, run
from tests.machines import NATIVE, V3, V4, lacking
from tests.precision.test_narrow_products import extreme

VNNI = replace(V4, features=V4.features | {"avx512vnni"})
MACHINES = {"v3": V3, "v4": V4, "native": NATIVE}


def without_sums(name: str) -> Machine:
    """The machine of a name; skips the test where it adds up products, or cannot run here."""
    machine = MACHINES[name].without_matrices()
    if lacking(machine):
        pytest.skip(lacking(machine))
    if machine.adds_products:
        pytest.skip("an instruction adds up products of bytes in 32 bits")
    return machine


def with_weights(graph: Graph, w: np.ndarray) -> Graph:
    """The graph with its input `w` as a constant."""
    nodes = (
        Const(n.out, n.axes, Data(w)) if getattr(n, "name", None) == "w" else n for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def with_rule(pipeline: tuple[Pass, ...], rule: Rule) -> tuple[Pass, ...]:
    """The pipeline with this rule in the place of the sweep that has one of its kind."""
    return tuple(
        replace(s, rules=(rule,))
        if isinstance(s, Sweep) and any(isinstance(rule, type(r)) for r in s.rules)
        else s
        for s in pipeline
    )


def check(graph: Graph, w: np.ndarray, found: Graph, machine: Machine, folder: Path) -> None:
    """Compile the graph that was `found`, and run it with extreme inputs."""
    arrays = {
        n.name: extreme(tuple(graph.extents[d].value for d in n.axes), n.out.dtype.numpy, 3)
        for n in graph.inputs
    }
    wanted = interpret(graph, arrays | {"w": w})
    del arrays["w"]
    got = run(build(decide(found, machine), machine, folder), arrays, 1)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
