"""Libraries whose kernels have other schedules than their default ones."""

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rutc.driver.parts.build import Builder
from rutc.driver.parts.compile_job import Chooser
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import parse_schedule
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner.choice import Choice
from rutc.tuner.heuristic import spaces
from tests.compiled import build, plan_or_reject, run
from tests.examples import examples
from tests.kernels import assert_agree
from tests.machines import RUNNABLE, V4, eager, on_machines
from tests.strategies import graphs, random_inputs
from tests.tuner.subjects import TEXTS, inputs_of

PRODUCT = """
graph "product"
dims i = 7, j = 40, k = 30
%x : f32{i,k} = input "x" [i, k]
%w : f32{j,k} = input "w" [k, j]
%y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
"""


def at_random(seed: int) -> Chooser:
    """Gives every kernel a random schedule of one of its spaces."""
    rng = Random(seed)

    def choose(kernel: Kernel, constants: frozenset[str], machine: Machine) -> Choice | None:
        own = spaces(kernel, machine, constants)
        found = rng.choice(own).draw(rng) if own else None
        return None if found is None else found[1]

    return choose


@pytest.mark.parametrize("name", RUNNABLE)
@examples(60)
@given(graphs(exact=True), st.integers(0, 2**16))
def test_random_schedules_compute_the_same(name: str, graph: Graph, seed: int) -> None:
    machine = eager(RUNNABLE[name])
    inputs = random_inputs(graph, seed)
    expected = interpret(graph, inputs)
    plan = plan_or_reject(graph)
    with TemporaryDirectory() as folder:
        library = build(plan, machine, Path(folder), chooser=at_random(seed))
        for threads in (1, 2):
            for output, got in run(library, inputs, threads).items():
                np.testing.assert_array_equal(got, expected[output], err_msg=output)


@pytest.mark.parametrize("kind", TEXTS)
@on_machines
def test_random_schedules_of_a_kind_compute_the_same(
    machine: Machine, kind: str, tmp_path: Path
) -> None:
    """Of windows, products, transposes, choices and scatters."""
    make, _ = TEXTS[kind]
    rng = Random(kind)
    for seed in range(3):
        text = make(rng)
        graph = parse(text)
        inputs = inputs_of(graph, seed)
        expected = interpret(graph, inputs)
        library = build(plan_or_reject(graph), eager(machine), tmp_path, chooser=at_random(seed))
        for threads in (1, 2):
            for output, got in run(library, inputs, threads).items():
                assert_agree(output, got, expected[output], "exp(" not in text)


def _schedules(chooser: Chooser | None) -> list[str]:
    plan = decide(optimize(parse(PRODUCT)), V4)
    built = Builder(plan, V4, "m", 1, chooser=chooser, code=False).build()
    return [fact.schedule for fact in built.facts]


def test_a_schedule_that_is_given_is_the_one_that_is_compiled() -> None:
    """However it was found: here it is a text."""
    text = "split(d1, 16); reorder([d1.o, d0, d1.i]); tile([d0, d1.i], [unroll, vector])"
    choice = Choice(parse_schedule(text))
    (usual,), (found,) = _schedules(None), _schedules(lambda kernel, constants, machine: choice)
    assert found == text.replace("d0", "i").replace("d1", "j")
    assert found != usual
    assert _schedules(lambda kernel, constants, machine: None) == [usual]
