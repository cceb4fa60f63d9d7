"""Kernels over slices, composed into one kernel."""

from dataclasses import replace

import numpy as np
import pytest

from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Repeat, Run
from rutc.tensor_ir.canonical import renamed
from rutc.tensor_ir.chain import chain
from rutc.tensor_ir.graph import Graph
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.interpreter.interpret_kernel import interpret_kernel
from rutc.tensor_ir.kernel import Kernel, Kind, Loop, Prefetch, Space
from rutc.tensor_ir.lower import Slice, lower
from rutc.tensor_ir.statements import accesses, walk_stmts
from rutc.tensor_ir.steps import Inside, apply_schedule
from rutc.tensor_ir.steps.inside import without_fills
from rutc.tensor_ir.textual.parse import parse
from tests.close import assert_close
from tests.emit.run_kernel import run_kernel
from tests.graph_opt.plans import assigned
from tests.machines import NATIVE, V4
from tests.strategies import random_inputs

TEXT = """
graph "chain"
dims h = 6, k = 5, n = 4, s = 8, t = 7
%q : f32{h,k,s} = input "q" [h, s, k]
%r : f32{h,k,t} = input "r" [h, t, k]
%v : f32{h,n,t} = input "v" [h, t, n]
%scores : f32{h,s,t} = sum{k} %q[h, k, s] * %r[h, k, t]
%y : f32{h,n,s} = sum{t} %scores[h, s, t] * %v[h, n, t]
output "y" [h, s, n] = %y
"""


def composed() -> tuple[Graph, Kernel]:
    """The graph, and one kernel of all that it computes."""
    graph = parse(TEXT)
    (repeat,) = (plan := assigned(TEXT, "slices {h} by 1: %q.packed .. %y")).steps
    assert isinstance(repeat, Repeat)
    trips = Index.of(repeat.trips).value
    groups = [s.group for s in repeat.steps if isinstance(s, Run)]
    extents = {d: e.value for d, e in plan.graph.dims}
    symbols = {repeat.dim: (0, trips - 1)}
    parts = [lower(g, plan.values, plan.layouts, extents, symbols) for g in groups]
    private = frozenset(v for g in groups for v in g.stored) - set(repeat.parts)
    return graph, chain("chain", parts, [(repeat.dim, trips)], private)


def test_the_parts_run_in_turn_for_every_slice() -> None:
    graph, kernel = composed()
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    assert loop.kind is Kind.PARALLEL
    assert {b.name for b in kernel.args} == {"q", "r", "v", "y"}
    assert "scores" in {b.name for b in kernel.locals if b.space is Space.STACK}
    inputs = random_inputs(graph, 0)
    memory = {n: a.reshape(-1).copy() for n, a in inputs.items()}
    memory["y"] = np.zeros(6 * 8 * 4, np.float32)
    interpret_kernel(kernel, memory)
    wanted = interpret(graph, inputs)["y"]
    assert_close(memory["y"].reshape(wanted.shape), wanted, reduction=1024)


def test_several_counters_are_nested_loops() -> None:
    _, kernel = composed()
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    part = Kernel("part", kernel.args, kernel.locals, loop.body, (), ((loop.var, (0, 5)),))
    twice = chain("twice", [part], [("n", 2), (loop.var, 6)], frozenset())
    (outer,) = twice.body
    assert isinstance(outer, Loop)
    assert (outer.var, outer.hi, outer.kind) == ("n", Index.of(2), Kind.PARALLEL)
    assert [x.var for x in outer.body if isinstance(x, Loop)] == [loop.var]


def test_rooms_for_a_slice_are_used_from_their_beginning() -> None:
    _, kernel = composed()
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    scores = kernel.buffer("scores")
    assert scores.layout.plain
    used = [a for s in walk_stmts(kernel.body) for a in accesses(s) if a.buffer == "scores"]
    assert used
    assert not any(loop.var in str(c) for a in used for _, c in a.coords)


@pytest.mark.parametrize("most", [0, 1 << 20], ids=["scratch", "stack"])
def test_what_passes_between_the_parts_lies_on_the_stack_or_in_scratch(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("rutc.emit.frame.MOST_STACK_BYTES", most)
    graph, kernel = composed()
    inputs = random_inputs(graph, 0)
    memory = {n: a.reshape(-1).copy() for n, a in inputs.items()}
    memory["y"] = np.zeros(6 * 8 * 4, np.float32)
    run_kernel(kernel, NATIVE, memory, parts=2)
    wanted = interpret(graph, inputs)["y"]
    assert_close(memory["y"].reshape(wanted.shape), wanted, reduction=1024)


def test_renaming_reaches_prefetches() -> None:
    _, kernel = composed()
    hinted = Kernel("k", kernel.args, kernel.locals, (Prefetch("q", Index.of("i")),))
    (hint,) = renamed(hinted, {"i": "j"}, {"q": "p"}).body
    assert hint == Prefetch("p", Index.of("j"))


def test_loops_around_a_part_tell_that_it_reads_nothing_outside() -> None:
    """A counter is any number where a part is scheduled alone, and within the images in a chain."""
    graph = parse("""
graph "the largest of windows that mostly lie outside"
symbols batch = 0..64
dims n = batch, x = 4, k = 3
%a : f32{n,x} = input "a" [n, x]
%y : f32{n,x} = max{k} %a[n, x=x + 3*k - 3 else -inf]
output "y" [n, x] = %y
""")
    plan = decide(graph, V4)
    (step,) = plan.steps
    assert isinstance(step, Run)
    group = replace(step.group, slices=(Slice("n", "t", 1, loop=False),))
    extents = dict(plan.graph.dims)
    symbols = {**dict(graph.symbols), "t": (0, 1 << 31)}
    part = lower(group, plan.values, plan.layouts, extents, symbols)
    narrow = apply_schedule(part, (Inside(("k",)),))
    assert "else" in str(narrow)
    whole = chain("chain", [narrow], [("t", extents["n"])], frozenset())
    found = without_fills(whole)
    assert "else" in str(whole)
    assert "else" not in str(found)
    given = {"a": np.arange(12, dtype=np.float32).reshape(3, 4)}
    buffers = {"a": given["a"].ravel(), "y": np.zeros(12, np.float32)}
    interpret_kernel(found, buffers, {"batch": 3})
    assert np.array_equal(buffers["y"].reshape(3, 4), interpret(graph, given)["y"])
