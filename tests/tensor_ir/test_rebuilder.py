"""Nodes of every kind, made anew part by part."""

from dataclasses import replace
from typing import get_args

from rutc.tensor_ir import Value
from rutc.tensor_ir.graph import Node, defined, used_deep, walk_nodes
from rutc.tensor_ir.rebuilder import Rebuilder
from rutc.tensor_ir.textual.parse import parse
from tests.tensor_ir.test_text import EXAMPLE

GRAPH = parse(EXAMPLE)


class _Primed(Rebuilder):
    """Values have a stroke behind their names."""

    def name(self, name: str) -> str:
        return f"{name}'"

    def value(self, v: Value) -> Value:
        return replace(v, name=f"{v.name}'")


def test_the_example_has_nodes_of_all_kinds() -> None:
    assert {type(n) for n in walk_nodes(GRAPH.nodes)} == set(get_args(Node))


def test_what_nothing_is_said_of_stays() -> None:
    assert Rebuilder().nodes(GRAPH.nodes) == GRAPH.nodes


def test_all_values_get_their_names() -> None:
    made = _Primed().nodes(GRAPH.nodes)
    names = [v.name for n in walk_nodes(made) for v in defined(n)]
    assert names == [f"{v.name}'" for n in walk_nodes(GRAPH.nodes) for v in defined(n)]
    # What expressions read is said by `expr`, which leaves them as they are here.
    read = {name for n in made for name in used_deep(n)}
    before = {name for n in GRAPH.nodes for name in used_deep(n)}
    assert {name.removesuffix("'") for name in read} == before
    assert {"cond'", "z'", "q'", "h'", "r'", "no'", "count'", "m'", "y'"} <= read
