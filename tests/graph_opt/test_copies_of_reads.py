"""Copies of values from which nests take single ones of their reads."""

from itertools import permutations

import pytest

from rutc.graph_opt.assignment import Copy
from rutc.graph_opt.decide.copies import with_copies
from rutc.tensor_ir import Nest
from rutc.tensor_ir.expr import reads
from rutc.tensor_ir.textual.parse import parse

# A place that data tell, by places that data tell.
PLACES = """
graph "places"
dims n = 7, m = 5, k = 3
%x : f32{n} = input "x" [n]
%far : i64{m} = input "far" [m]
%near : i64{k} = input "near" [k]
%y : f32{k} = f32(%far[m=%near[k]]) + %x[n=%far[m=%near[k]]]
output "y" [k] = %y
"""


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_read_and_those_that_tell_its_place_have_copies_in_any_order(
    order: tuple[int, ...],
) -> None:
    graph = parse(PLACES)
    (nest,) = [n for n in graph.nodes if isinstance(n, Nest)]
    found = list(dict.fromkeys(r.value for e in nest.body for r in reads(e)))
    assert found == ["far", "near", "x"]
    copies = [Copy(f"{found[i]}.own", found[i], "y", i) for i in order]
    *_, reader = with_copies(graph.nodes, copies, graph.values)
    assert isinstance(reader, Nest)
    assert {r.value for e in reader.body for r in reads(e)} == {"far.own", "near.own", "x.own"}
