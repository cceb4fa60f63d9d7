"""The driver: order, limits, dumps and what it says about faulty rules."""

from dataclasses import replace
from pathlib import Path

import pytest

from rutc.errors import InternalError
from rutc.graph_opt.alternatives.split_precision import MultiplyParts
from rutc.graph_opt.editor import Editor
from rutc.graph_opt.pipeline import PIPELINE, DumpFolder, optimize, pipeline_for
from rutc.graph_opt.rewrite import DropDims, Reason, Result, Sweep, why_not
from rutc.graph_opt.rules import split
from rutc.graph_opt.rules.fold import FoldConstants
from rutc.graph_opt.rules.split import split_free_dim
from rutc.graph_opt.rules.views import compose_views
from rutc.tensor_ir import Graph, Nest, Node, apply
from rutc.tensor_ir.textual.parse import parse
from tests.machines import TILES, weighing

TEXT = """
graph "g"
dims a = 4, b = 6, h = 2, i = 3, unused = 9
%x : f32{a,b} = input "x" [a, b]
%v : f32{a,h,i} = %x[a, b=3*h + i] @ "reshape"
%dead : f32{a} = exp(%x[a, b=0])
%y : f32{a,h,i} = exp(%v[a, h, i]) * 1.0 @ "exp"
output "y" [a, h, i] = %y
"""


def graph() -> Graph:
    return parse(TEXT)


def test_steps_are_reported_in_order() -> None:
    steps: list[tuple[str, bool]] = []
    optimize(graph(), on_step=lambda name, _, changed: steps.append((name, changed)))
    assert [name for name, _ in steps] == [p.name for p in PIPELINE]
    assert dict(steps)["remove what is unread"]
    assert dict(steps)["drop unused dims"]


def test_limit_stops_early_and_zero_changes_nothing() -> None:
    assert optimize(graph(), limit=0) == graph()
    once = optimize(graph(), limit=1)
    assert "%dead" not in str(once)
    assert "%v" in str(once)


def test_a_second_run_changes_nothing() -> None:
    once = optimize(graph())
    changes: list[str] = []
    optimize(once, on_step=lambda name, _, changed: changes.extend([name] * changed))
    assert changes == []


def test_dump_folder_numbers_the_steps_and_marks_unchanged_ones(tmp_path: Path) -> None:
    optimize(graph(), on_step=DumpFolder(tmp_path / "dump"))
    names = sorted(p.name for p in (tmp_path / "dump").iterdir())
    assert len(names) == len(PIPELINE)
    assert names[0] == "01-remove-what-is-unread.txt"
    assert names[2] == "03-choose-what-regions-hold (unchanged).txt"
    text = (tmp_path / "dump" / names[2]).read_text(encoding="utf-8")
    assert text == "(unchanged) see 02-clean-up.txt\n"
    parse((tmp_path / "dump" / names[0]).read_text(encoding="utf-8"))


def test_the_step_that_breaks_a_graph_is_named() -> None:
    def to_bool(n: Node, editor: Editor) -> Result:
        if not isinstance(n, Nest) or n.body[0].dtype.value == "bool":
            return Reason("done")
        return (replace(n, body=(apply("isnan", n.body[0]),)),)

    steps = (DropDims(), Sweep("break it", (to_bool,)))
    with pytest.raises(InternalError, match="after step 2, 'break it'"):
        optimize(graph(), pipeline=steps)


def test_two_nodes_of_one_name_are_refused() -> None:
    def twice(n: Node, editor: Editor) -> Result:
        if not isinstance(n, Nest):
            return Reason("no nest")
        other = replace(n, outs=(replace(n.out, name="other"),))
        return other, other, n

    with pytest.raises(InternalError, match="have one name"):
        optimize(graph(), pipeline=(Sweep("twice", (twice,)),))


def chain(last: int, end: str) -> Graph:
    """Dims that are joined, and so many nests after the one that joins them."""
    nests = "".join(f"%v{k + 1} : f32{{e}} = exp(%v{k}[e])\n" for k in range(last))
    return parse(f"""
    graph "deep"
    dims h = 2, d = 4, e = 8
    %x : f32{{d,h}} = input "x" [h, d]
    %v0 : f32{{e}} = exp(%x[d=e % 4, h=e // 4])
    {nests}
    {end}
    """)


def test_a_dim_is_followed_through_any_number_of_nests() -> None:
    last = 2000
    deep = chain(last, f'output "y" [e] = %v{last}')
    assert why_not(split_free_dim, deep, "v0") == f"%v{last} is an output of the graph"


def test_a_dim_is_not_followed_anew_from_each_nest_of_a_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    last = 200
    deep = chain(last, f'%y : f32{{}} = sum{{e}} %v{last}[e]\noutput "y" [] = %y')
    asked: list[str] = []
    reads_along = split._reads_along

    def counted(n: Nest, d: str, editor: Editor) -> object:
        asked.append(d)
        return reads_along(n, d, editor)

    monkeypatch.setattr(split, "_reads_along", counted)
    done = optimize(deep, pipeline=(Sweep("split", (compose_views, split_free_dim)),))
    assert f"%v{last}.split" in str(done)
    assert len(asked) < 3 * last


def test_rules_without_an_end_are_named() -> None:
    def swing(n: Node, editor: Editor) -> Result:
        if not isinstance(n, Nest):
            return Reason("no nest")
        return (replace(n, origin=() if n.origin else ("back",)),)

    with pytest.raises(InternalError, match="swing does not come to an end"):
        optimize(graph(), pipeline=(Sweep("swing forever", (swing,)),))
    swung = optimize(graph(), pipeline=(Sweep("swing once", (swing,), once=True),))
    assert [n.origin for n in swung.nodes if isinstance(n, Nest)] == [(), ()]


@pytest.mark.parametrize(("body", "left"), [("%a[i, k] * %b[k, j]", 0), ("%a[i, k] + %b[k, j]", 1)])
def test_products_of_matrices_may_have_more_points_than_other_nests(body: str, left: int) -> None:
    text = f"""
    graph "of constants"
    dims i = 2, j = 2, k = 3
    %a : f32{{i,k}} = const [i,k] [[1, 2, 3], [4, 5, 6]]
    %b : f32{{j,k}} = const [k,j] [[1, 0], [0, 1], [1, -1]]
    %y : f32{{i,j}} = sum{{k}} {body}
    output "y" [i,j] = %y
    """
    step = Sweep("fold", (FoldConstants(most_points=4),))
    folded = optimize(parse(text), pipeline=(step,))
    assert sum(isinstance(n, Nest) for n in folded.nodes) == left


def test_passes_print_themselves() -> None:
    texts = [str(p) for p in PIPELINE]
    assert "FoldConstants(small_bytes=65536" in texts[1]
    assert "compose_views" in texts[1]


def test_what_decides_has_the_coefficients_of_the_machine() -> None:
    machine = weighing(TILES, "fusion", widened=5)
    steps = pipeline_for(machine)
    rules = [rule for step in steps for rule in getattr(step, "rules", ())]
    found = {type(r).__name__: r.machine for r in rules if hasattr(r, "machine")}
    assert {"WidenOperands", "MinimalFiltering", "SeparateWindows"} <= found.keys()
    assert set(found.values()) == {machine}
    (parts,) = (step for step in steps if isinstance(step, MultiplyParts))
    assert parts.coefficients == machine.coefficients
