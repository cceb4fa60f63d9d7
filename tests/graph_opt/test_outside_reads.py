"""Values that are read outside of their extents, computed anew by what reads them."""

import numpy as np
import pytest

from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import computed_anew
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.plan import Illegal
from rutc.tensor_ir.expr import Apply, Expr, IndexValue, reads, walk
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from tests.graph_opt.plan_runner import run_plan
from tests.machines import V4
from tests.strategies import random_inputs


def graph(value: str, fill: str = "0.0", dtype: str = "f32") -> str:
    return f"""
graph "windows"
dims c = 4, e = 8, h = 4, m = 4, t = 3, y = 8
%a : {dtype}{{e,y}} = input "a" [e, y]
%b : {dtype}{{h}} = input "b" [h]
%s : {dtype}{{e}} = input "s" [e]
%i : i64{{y}} = input "i" [y]
%v : {dtype}{{e,y}} = {value}
%w : {dtype}{{e,t}} = max(%v[e, y=4*t - 1 else {fill}], %v[e, y=4*t + 1 else {fill}])
output "w" [e, t] = %w
"""


def computed(text: str) -> tuple[Realisation, Expr]:
    """The plan in which %v is computed by what reads it, and the expression of that."""
    prepared = prepare(parse(text))
    found = greedy(prepared, V4).realisation
    (n,) = computed_anew(found, ("v",))
    other = found.but(n.assignment)
    (nest,) = (x for x in other.computed.nodes if getattr(x, "body", ()) and x.out.name == "w")
    return other, nest.body[0]


def agrees(found: Realisation) -> None:
    inputs = random_inputs(found.prepared.graph, 0)
    got = run_plan(found.plan, inputs)
    for name, array in interpret(found.prepared.graph, inputs).items():
        np.testing.assert_array_equal(np.signbit(got[name]), np.signbit(array))
        np.testing.assert_array_equal(got[name], array)


def places_asked(e: Expr) -> int:
    """How often an expression asks where it is."""
    asked = {x for x in walk(e) if isinstance(x, Apply) and x.op == "lt"}
    return sum(isinstance(x.args[0], IndexValue) for x in asked)


SPARED = {
    "a sum": ("%a[e, y] + %a[e, y]", "0.0"),
    "the largest": ("max(%a[e, y], 0.0)", "0.0"),
    "what is made longer": ("%a[e, y] + %b[h=y//2]", "0.0"),
    "any fill": ("%a[e, y] + %a[e, y]", "-inf"),
    "the other way round": ("%a[e, y=7 - y]", "0.0"),
    "side by side": (
        "select(index(e - 4) < 0, %a[e, y], %a[e=e - 4, y else 0.0])",
        "0.0",
    ),
}
"""What is the fill itself wherever all that it is made of is read outside."""

TESTED = {
    "a constant more": ("%a[e, y] + 1.0", "0.0"),
    "a factor of its own": ("%a[e, y] * %s[e]", "0.0"),
    "places that are left": ("%a[e, y=y // 2]", "0.0"),
    "another fill": ("max(%a[e, y], 0.0)", "-1.0"),
    "the other zero": ("neg(%a[e, y])", "0.0"),
    "a quotient": ("%a[e, y] / %a[e, y]", "0.0"),
    "the place itself": ("%a[e, y] + f32(index(y))", "0.0"),
}
"""What is something else there, or may be."""


@pytest.mark.parametrize("name", SPARED)
def test_what_is_the_fill_outside_asks_for_no_place(name: str) -> None:
    found, body = computed(graph(*SPARED[name]))
    of_parts = 1 if name == "side by side" else 0
    assert places_asked(body) == of_parts
    assert all(r.value != "v" for r in reads(body))
    agrees(found)


@pytest.mark.parametrize("name", TESTED)
def test_what_is_no_fill_outside_asks_where_it_is(name: str) -> None:
    found, body = computed(graph(*TESTED[name]))
    # Before the first index and behind the last one, for each of two places.
    assert places_asked(body) == 4
    agrees(found)


def test_reads_inside_have_no_fill() -> None:
    """Only what may lie outside along a dim that is read so gets one."""
    _, body = computed(graph("%a[e, y] + %s[e]"))
    assert {r.value: r.fill is None for r in reads(body)} == {"a": False, "s": True}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("%a[e, y] / (%a[e, y] + 1)", "where it would divide by 0"),
        ("%a[e, y=%i[y]]", "computed where data tell"),
    ],
)
def test_what_cannot_be_read_outside_is_stored(value: str, why: str) -> None:
    with pytest.raises(Illegal, match=why):
        computed(graph(value, fill="0", dtype="i32"))
