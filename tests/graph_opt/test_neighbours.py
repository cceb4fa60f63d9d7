"""Changes of one decision: what is computed anew, and what else is said of it."""

from random import Random

import numpy as np
import pytest

from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import Neighbour, legal, neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from tests.graph_opt.plan_runner import run_plan
from tests.machines import V4
from tests.strategies import random_inputs

CHAIN = """
graph "two far readers of a chain"
dims m = 24, n = 40
%x : f32{m,n} = input "x" [m, n]
%a : f32{m,n} = max(%x[m, n], 0.0)
%b : f32{m,n} = %a[m, n] * 2.0
%c : f32{m} = sum{n} %b[m, n]
%y : f32{n} = sum{m} %b[m, n]
output "c" [m] = %c
output "y" [n] = %y
"""
"""With %a and %b in one kernel, and a kernel for each sum."""

STEPS = """
graph "steps over rows"
dims k = 8, m = 24, n = 40
%x : f32{k,m} = input "x" [m, k]
%w : f32{k,n} = input "w" [k, n]
%p : f32{m,n} = sum{k} %x[k, m] * %w[k, n]
%r : f32{m,n} = max(%p[m, n], 0.0)
%q : f32{k,m} = sum{n} %r[m, n] * %w[k, n]
output "q" [m, k] = %q
"""


def of(text: str, said: str) -> Realisation:
    prepared = prepare(parse(text))
    found = greedy(prepared, V4).realisation
    return found.but(parse_assignment(f'assignment "{prepared.graph.name}"\n{said}'))


def computing(found: Realisation, value: str) -> dict[str, Neighbour]:
    near = neighbours(found, types=False)
    return {n.change: n for n in near if n.kind == "computing" and n.subject == value}


def agrees(found: Realisation) -> None:
    graph = found.prepared.graph
    inputs = random_inputs(graph, 0)
    got = run_plan(found.plan, inputs)
    for name, array in interpret(graph, inputs).items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(
    ("change", "stored"),
    [("by its readers", {"a"}), ("by its readers, with %a", set())],
)
def test_a_value_is_computed_anew_alone_or_with_what_its_kernel_makes_it_of(
    change: str, stored: set[str]
) -> None:
    found = of(CHAIN, "%a [m, n]\n%b [m, n]\ngroup {m, n}: %a, %b")
    other = legal(found, computing(found, "b")[change])
    assert other is not None
    kept = {v for g in other.plan.groups() for v in g.stored}
    assert kept - {"c", "y"} == stored
    agrees(other)


def test_what_other_kernels_read_is_not_computed_anew_with_it() -> None:
    text = CHAIN.replace("%c : f32{m} = sum{n} %b", "%c : f32{m} = sum{n} %a")
    found = of(text, "%a [m, n]\n%b [m, n]\ngroup {m, n}: %a, %b")
    assert set(computing(found, "b")) == {"by its readers"}


def test_slices_and_turns_are_of_the_kernels_that_are_left() -> None:
    """That of %r is none any more; what %r began without %p does not begin with it either."""
    lines = "%p [m, n]\n%r [m, n]\n"
    found = of(STEPS, lines + "slices {m} by 8: %p, %r, %q")
    (n,) = computing(found, "r").values()
    assert [s.kernels for s in n.assignment.slices] == [("p", "q")]
    other = legal(found, n)
    assert other is not None
    agrees(other)
    found = of(STEPS, lines + "group {m, n}: %p, %r\nturns {m, m}: %p, %q")
    (n,) = computing(found, "r").values()
    assert [t.kernels for t in n.assignment.turns] == [("p", "q")]
    found = of(STEPS, lines + "turns {m, m, m}: %p, %r, %q")
    (n,) = computing(found, "r").values()
    assert [(t.kernels, t.dims) for t in n.assignment.turns] == [(("p", "q"), ("m", "m"))]


def test_a_kernel_is_called_by_what_is_first_once_a_nest_is_gone() -> None:
    text = CHAIN.replace(
        "%y : f32{n} = sum{m} %b[m, n]", "%y : f32{m,n} = %b[m, n] + %a[m, n] * %x[m, n]"
    ).replace('"y" [n]', '"y" [m, n]')
    text = "\n".join(line for line in text.splitlines() if "%c" not in line) + "\n"
    said = "%a [m, n]\n%b [m, n]\ngroup {m, n}: %a, %b\nslices {m} by 8: %a, %y"
    found = of(text, said)
    (n,) = computing(found, "a").values()
    assert [s.kernels for s in n.assignment.slices] == [("b", "y")]


def test_random_changes_of_what_is_computed_anew_compute_the_same() -> None:
    found = of(CHAIN, "%a [m, n]\n%b [m, n]\ngroup {m, n}: %a, %b")
    rng = Random(0)
    for _ in range(6):
        near = [n for n in neighbours(found, types=False) if n.kind in ("computing", "kernel")]
        rng.shuffle(near)
        found = next(x for n in near if (x := legal(found, n)) is not None)
        agrees(found)
