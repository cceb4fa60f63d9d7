"""Graphs of thousands of nodes: no step looks at all of the others, or far back, for each node."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rutc.graph_opt import optimize
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.living import Life
from rutc.graph_opt.decide.memory import place_fixed
from rutc.graph_opt.decide.own_lines import MOST_TOGETHER, OwnLines
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.editor import Editor, key_of
from rutc.graph_opt.leeway import USUAL_LEEWAY
from rutc.graph_opt.pipeline import filtering_for
from rutc.graph_opt.plan import Place
from rutc.graph_opt.rewrite import Reason, Result, Sweep
from rutc.graph_opt.rules import cse, scale
from rutc.graph_opt.rules.cse import MergeEqual
from rutc.graph_opt.versions import better_filtered
from rutc.tensor_ir import DType, Index, Nest, Node, Read
from rutc.tensor_ir.graph import Graph
from rutc.tensor_ir.layout import Layout
from rutc.tensor_ir.textual.parse import parse
from tests.machines import V3

NODES = 100
HERE = ((("i", Index.of("i")),), DType.F32)
"""The place at i, and the type, of a read."""


def counted(f: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    """`f`, which counts in a list how often it is called."""

    def call(*args: Any) -> Any:
        calls[0] += 1
        return f(*args)

    return call


def test_a_nest_is_taken_for_a_scale_or_shift_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['graph "chain"', "dims i = 4", '%v0 : f32{i} = input "x" [i]']
    for n in range(NODES):
        op, by = ("+", "1.5") if n % 2 else ("*", "0.75")
        lines.append(f"%v{n + 1} : f32{{i}} = %v{n}[i] {op} {by}")
    lines.append(f'output "y" [i] = %v{NODES}')
    calls = [0]
    monkeypatch.setattr(scale, "affine_of", counted(scale.affine_of, calls))
    optimize(parse("\n".join(lines)))
    # Two rules ask, and ask again once neighbours have changed.
    assert NODES <= calls[0] <= 6 * NODES


def never(n: Node, _editor: Editor) -> Result:
    """A rule that applies to nothing."""
    return Reason(f"not to {key_of(n)}")


def test_a_sweep_that_changes_nothing_goes_over_the_nodes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [0]
    editor = Editor(choices())
    monkeypatch.setattr(Editor, "names", counted(Editor.names, calls))
    Sweep("nothing", (never,)).run(editor)
    # The blocks of the branches are asked for as well.
    assert calls[0] == 1 + 2 * NODES


def test_names_are_in_order_while_nodes_come_and_go() -> None:
    editor = Editor(choices())
    expected = list(editor.names())
    for n in range(NODES):
        place = expected.index(f"v{n + 1}")
        old = editor.nodes[f"a{n}"]
        assert isinstance(old, Nest)
        first = replace(old, outs=(replace(old.out, name=f"first{n}"),))
        editor.replace(old, (first, replace(old, body=(Read(f"first{n}", *HERE),))))
        expected.insert(place + 1, f"first{n}")
        assert list(editor.names()) == expected
    assert [key_of(x) for x in editor.body(editor.nodes["v1"], 0)] == ["first0", "a0"]


def test_no_filter_is_sought_without_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        graph "elements"
        symbols n = 1..64@1
        dims b = n, i = 4
        %x : f32{b,i} = input "x" [b, i]
        %y : f32{b,i} = abs(%x[b, i])
        output "y" [b, i] = %y
        """
    calls = [0]
    monkeypatch.setattr(Editor, "__init__", counted(Editor.__init__, calls))
    assert better_filtered(filtering_for(V3, USUAL_LEEWAY, None), parse(text)) is None
    assert calls[0] == 0


def choices() -> Graph:
    """`NODES` ifs in a row, whose branches differ in the names of their values alone."""
    lines = ['graph "choices"', "dims i = 4", '%v0 : f32{i} = input "x" [i]']
    lines.append('%c : bool{} = input "c" []')
    for n in range(NODES):
        lines += [
            f"%v{n + 1} : f32{{i}} = if %c {{",
            f"  %a{n} : f32{{i}} = abs(%v{n}[i])",
            f"  yield %a{n}",
            "} else {",
            f"  %b{n} : f32{{i}} = tanh(%v{n}[i])",
            f"  yield %b{n}",
            "}",
        ]
    lines.append(f'output "y" [i] = %v{NODES}')
    return parse("\n".join(lines))


def test_alike_branches_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]
    monkeypatch.setattr(cse, "canonical", counted(cse.canonical, calls))
    editor = Editor(choices())
    MergeEqual().run(editor)
    assert len(list(editor.names())) == 3 * NODES + 2
    assert NODES <= calls[0] <= 4 * NODES


def test_equal_outputs_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['graph "outputs"', "dims i = 4", '%x : f32{i} = input "x" [i]']
    lines += [f"%v{n} : f32{{i}} = tanh(%x[i])" for n in range(NODES)]
    lines += [f'output "y{n}" [i] = %v{n}' for n in range(NODES)]
    calls = [0]
    monkeypatch.setattr(cse, "_merges", counted(cse._merges, calls))
    editor = Editor(parse("\n".join(lines)))
    MergeEqual().run(editor)
    assert len(list(editor.names())) == NODES + 1
    assert NODES - 1 <= calls[0] <= 2 * NODES


def test_steps_look_at_layouts_once_for_many_bodies() -> None:
    found = greedy(prepare(choices()), V3).realisation
    assert len(found.steps) == NODES
    looked = [0]

    class Layouts(dict[str, Layout]):
        def items(self) -> Any:
            looked[0] += 1
            return super().items()

    again = Realisation(found.known, found.assignment, V3)
    vars(again)["layouts"] = Layouts(found.layouts)
    assert again.steps == found.steps
    assert looked[0] == 1


@pytest.mark.parametrize("several", [False, True])
def test_values_that_live_with_many_stay_where_they_are(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = MOST_TOGETHER + 2 if several else 8
    # One value after the other begins, and ends once as many have begun.
    lives = {str(i): Life(i, i + number) for i in range(2 * number)}
    todo = [(64 * (1 + i % 7), str(i)) for i in range(2 * number)]
    calls = [0]
    monkeypatch.setattr(OwnLines, "_free", counted(OwnLines._free, calls))
    places: dict[str, Place] = {}
    arena = place_fixed(todo, lives, places, 2)
    assert (calls[0] > 0) != several
    assert arena >= max(int(p.offset) + int(p.bytes) for p in places.values())


def test_values_that_all_live_together_take_room_in_proportion() -> None:
    number = 3_000
    lives = {str(i): Life(i, 2 * number) for i in range(number)}
    places: dict[str, Place] = {}
    tracemalloc.start()
    arena = place_fixed([(64, v) for v in lives], lives, places, 2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert arena == 64 * number
    assert sorted(int(p.offset) for p in places.values()) == list(range(0, arena, 64))
    # Those that each value meets would take 9 million numbers.
    assert peak < 4_000 * number
