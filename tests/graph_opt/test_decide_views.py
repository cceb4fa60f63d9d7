"""What only views a scatter's or a call's result lies in its memory: when, and what plans compute.

A reshaped result that is an output is no work then.
"""

import numpy as np
import pytest

from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Joined, Plan
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.graph_opt.plan_runner import run_plan
from tests.machines import V3, V4
from tests.strategies import random_inputs

HEAD = """
graph "viewed"
dims i = 24, a = 2, b = 3, c = 4, k = 5, n = 30, e = 2, one = 1
%x : f32{k} = input "x" [k]
%w : f32{a,b,c} = input "w" [a, b, c]
%m : f32{n} = input "m" [n]
%z : f32{i} = -1.5
%v : f32{i} = scatter{k} %z[i=4*k + 2] set= %x[k]
"""
VIEW = "%y : f32{a,b,c,one} = %v[i=12*a + 4*b + c]\n"
OUTPUT = 'output "y" [one, a, b, c] = %y\n'
OTHER = 'output "u" [a, b, c] = %u\n'

VIEWED = {
    "an output": VIEW + OUTPUT,
    "an output that is read": (
        f"{VIEW}%u : f32{{a,b,c}} = %y[a, b, c, one=0] * %w[a, b, c]\n{OUTPUT}{OTHER}"
    ),
    "a result that is read before": (
        f"%u : f32{{a,b,c}} = %v[i=12*a + 4*b + c] * %w[a, b, c]\n{VIEW}{OUTPUT}{OTHER}"
    ),
    "a scatter into another one": (
        "%t : f32{i} = scatter{k} %v[i=k] sum= %x[k]\n" + VIEW.replace("%v", "%t") + OUTPUT
    ),
    "a view that is changed afterwards": (
        f"{VIEW}%q : f32{{a,c,e,one}}, %p : i64{{a,c,e,one}} = "
        "call topk(%y[one, a, b, c], axis=2, largest=1) -> [one, a, e, c], [one, a, e, c]\n"
        "%u : f32{a,b,c,one} = scatter{b} %y[a=1, b=b, c=0, one=0] set= %x[k=b]\n"
        'output "u" [one, a, b, c] = %u\noutput "q" [one, a, e, c] = %q\n'
    ),
    "a call's result": (
        "%t : f32{i}, %p : i64{i} = call topk(%m[n], axis=0, largest=1)\n"
        f"{VIEW.replace('%v', '%t')}{OUTPUT}"
    ),
}
COPIED = {
    "another order": VIEW.replace("12*a + 4*b + c", "a + 2*b + 6*c") + OUTPUT,
    "a part": "%y : f32{c} = %v[i=c + 8]\n" + 'output "y" [c] = %y\n',
    "a result that is an output itself": VIEW + OUTPUT + 'output "v" [i] = %v\n',
    "a result that is read afterwards": (
        f"{VIEW}%u : f32{{a,b,c}} = %v[i=12*a + 4*b + c] * %w[a, b, c]\n{OUTPUT}{OTHER}"
    ),
    "a result that is changed afterwards": (
        f'{VIEW}%t : f32{{i}} = scatter{{k}} %v[i=k] sum= %x[k]\n{OUTPUT}output "t" [i] = %t\n'
    ),
    "other elements": "%y : f32{a,b,c,one} = -%v[i=12*a + 4*b + c]\n" + OUTPUT,
}


def _graph(text: str) -> Graph:
    graph = parse(HEAD + text)
    verify(graph)
    return graph


def _agrees(plan: Plan, graph: Graph) -> None:
    inputs = random_inputs(graph, 0)
    got = run_plan(plan, inputs)
    for name, array in interpret(graph, inputs).items():
        np.testing.assert_array_equal(got[name], array, err_msg=f"{name} of\n{graph}\n{plan}")


def _views(plan: Plan) -> list[str]:
    return [s.node.out.name for s in plan.steps if isinstance(s, Joined)]


@pytest.mark.parametrize("machine", [V3, V4])
@pytest.mark.parametrize("text", VIEWED.values(), ids=VIEWED)
def test_a_view_is_no_work(text, machine) -> None:
    graph = _graph(text)
    plan = decide(graph, machine)
    assert _views(plan) == ["y"]
    (source,) = (s.node.body[0].value for s in plan.steps if isinstance(s, Joined))
    assert plan.places["y"] == plan.places[source]
    _agrees(plan, graph)


@pytest.mark.parametrize("text", COPIED.values(), ids=COPIED)
def test_what_has_to_lie_elsewhere_is_copied(text) -> None:
    graph = _graph(text)
    plan = decide(graph, V4)
    assert not _views(plan)
    _agrees(plan, graph)
