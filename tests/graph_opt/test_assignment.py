"""Assignments print and parse; legal ones compute the same, others say what is wrong."""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from rutc.driver.compiler import Options, compile_model
from rutc.graph_opt import optimize, versions
from rutc.graph_opt.alternatives import DIRECT, Assigned
from rutc.graph_opt.alternatives.choices import offers, with_algorithms
from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import realise
from rutc.graph_opt.plan import Illegal
from rutc.importer import import_model
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.lexer import ParseError
from rutc.tensor_ir.textual.parse import parse
from tests.examples import examples
from tests.graph_opt.networks import NETWORKS, Net
from tests.graph_opt.plan_runner import run_plan
from tests.graph_opt.plans import planned
from tests.graph_opt.walks import check, walked
from tests.lock.texts import TARGETS
from tests.machines import V3, V4
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
    # Whole numbers that a type of 16 bits has not are rounded as the interpreter rounds them.
    meant = found.graph if found.assignment.types else graph
    for name, array in interpret(meant, inputs).items():
        np.testing.assert_array_equal(
            got[name], array, err_msg=f"{name} of\n{graph}\n{found.assignment}\n{plan}"
        )


@pytest.mark.sampled(12)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "amx"])
@pytest.mark.parametrize("name", NETWORKS)
def test_assignments_of_networks_compute_the_same(name: str, target: str) -> None:
    for seed in range(2):
        said = check(name, TARGETS[target], seed, compiled=seed == 0).assignment
        assert parse_assignment(str(said)) == said


def windows(n: Net) -> str:
    x = n.input(1, 64, 56, 56)
    y = n("Relu", n("Conv", x, n.weight(64, 64, 3, 3), pads=[1] * 4))
    return n("MaxPool", y, kernel_shape=[5, 5], pads=[2] * 4)


def products(n: Net) -> str:
    return n("Relu", n("MatMul", n.input(512, 256), n.weight(256, 256)))


def bytes_(n: Net) -> str:
    w = n.rng.standard_normal((256, 256))
    w = n.const(np.rint(w * (127 / np.abs(w).max())), np.int8)
    return n("MatMulInteger", n.input(512, 256, type_=TensorProto.UINT8), w)


@pytest.mark.parametrize(
    ("make", "target", "algorithms"),
    [
        (bytes_, "x86-64-v3", {"remainders"}),
        (bytes_, "amx", set()),
        (windows, "x86-64-v3", {"filter", "separate"}),
        (windows, "amx", {"filter", "separate"}),
        (products, "x86-64-v3", set()),
        (products, "amx", {"split"}),
    ],
)
def test_graphs_with_the_chosen_algorithms_are_those_that_are_chosen(
    make: Callable[[Net], str], target: str, algorithms: set[str]
) -> None:
    machine, n = TARGETS[target], Net()
    graph = n.graph(make(n), dims={})
    (version,) = versions(graph, machine)
    chosen = version.assigned
    assert {a.split()[0] for _, a in chosen.algorithms} == algorithms
    assert with_algorithms(graph, machine, chosen) == version.graph
    assert (with_algorithms(graph, machine, DIRECT) != version.graph) == bool(algorithms)
    offered = {(o.value, o.algorithm) for o in offers(graph, machine, chosen)}
    assert set(chosen.algorithms) <= offered


def test_a_dump_holds_the_assignment_of_the_plan_beside_it(tmp_path: Path) -> None:
    n = Net()
    x = n.input(1, 16, 14, 14)
    y = n("Relu", n("Conv", x, n.weight(16, 16, 3, 3), pads=[1] * 4))
    model = n.save(tmp_path / "net.onnx", n("MaxPool", y, kernel_shape=[5, 5], pads=[2] * 4))
    dump = tmp_path / "dump"
    compile_model(model, tmp_path / "net.so", Options(target="x86-64-v3", dump=dump), None)
    said = parse_assignment((dump / "assignment.txt").read_text(encoding="utf-8"))
    assert said.algorithms
    graph = with_algorithms(import_model(model), V3, Assigned(said.algorithms))
    plan = realise(prepare(graph), said, V3)
    text = (dump / "plan.txt").read_text(encoding="utf-8")
    assert text.startswith(str(plan).partition("not fused")[0].rstrip())


ATTENTION = """
graph "two products and a copy"
dims k = 8, m = 6, n = 16, o = 4
%x : f32{k,m} = input "x" [m, k]
%y : f32{k,n} = input "y" [k, n]
%z : f32{n,o} = input "z" [n, o]
%p : f32{m,n} = sum{k} %x[k, m] * %y[k, n]
%r : f32{m,n} = max(%p[m, n], 0.0)
%q : f32{m,o} = sum{n} %r[m, n] * %z[n, o]
output "q" [m, o] = %q
"""

CHOSEN = """
assignment "two products and a copy"
%p [m, n]
%r [m, n]
group {m, n}: %p, %r
"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("%r [m, n]\n", "", "nothing says how %r lies in memory"),
        ("%r [m, n]", "%r [m, k]", "its dims are m, n"),
        ("%r [m, n]", "%r [m(+1+0), n]", "a halo has a fill"),
        ("%r [m, n]", "%r [m(+1+0), n] fill 0:i32", "the fill is no f32"),
        ("%p [m, n]", "%p [m, n]\n%s [m]", "no value %s is there"),
        ("%p [m, n]", "%p [m, n]\n%x [k, m]", "%x lies in memory as the interface says"),
        ("%p, %r", "%p, %r, %q", "%q has no loop over n"),
        ("{m, n}: %p, %r", "{m}: %p, %r, %s", "%s is in a group and no nest"),
        ("%p, %r", "%p, %r\ngroup {m}: %r, %q", "a nest is of one group"),
        ("%p, %r", "%p, %r\ncopy %c of %x for %q 0", "read of that number is not of %x"),
        ("%p, %r", "%p, %r\ncopy %c of %x for %s 0", "no nest computes %s"),
        ("%p, %r", "%p, %r\nslices {n} by 4: %p, %q", "reads other slices than its own"),
        ("%p, %r", "%p, %r\nslices {m} by 9: %p, %q", "m has no slices of 9"),
        ("%p, %r", "%p, %r\nslices {m} by 2: %q, %p", "do not follow each other"),
        ("%p, %r", "%p, %r\nslices {m} by 2 within 64: %p, %q", "length of slices of known dims"),
        ("%p, %r", "%p, %r\nturns {m, n}: %p, %q", "is not the same for every index of n"),
    ],
)
def test_what_is_no_plan_says_why(old: str, new: str, reason: str) -> None:
    prepared = prepare(parse(ATTENTION))
    said = parse_assignment(CHOSEN)
    assert realise(prepared, said, V4).assignment == said
    assert old in CHOSEN
    with pytest.raises(Illegal, match=re.escape(reason)):
        realise(prepared, parse_assignment(CHOSEN.replace(old, new)), V4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("assignment", "expected a string"),
        ('assignment "a"\n%x [c % 4]', "c has no blocks of 4"),
        ('assignment "a"\n%x [c/4]', "blocks of a dim have no axis within them"),
        ('assignment "a"\nkernel', "expected a line of an assignment"),
    ],
)
def test_what_does_not_parse_shows_the_place(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        parse_assignment(text)
