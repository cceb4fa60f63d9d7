"""Concatenations that are no work: where their parts lie, and that plans compute the same."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from rutc.graph_opt.assignment import Join, parse_assignment
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.join_choice import further, joined
from rutc.graph_opt.decide.memory import Lifetimes, live_bytes
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation, realise
from rutc.graph_opt.plan import Illegal, Joined, Plan
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.graph_opt.plan_runner import run_plan
from tests.machines import V3, V4
from tests.strategies import random_inputs

GROWING = """
graph "growing"
dims n = 4, a = 16, b = 32, c = 48, d = 64
%x : f32{a,n} = input "x" [n, a]
%p : f32{a,n} = max(%x[a, n], 0.0)
%s : f32{n} = sum{a} %p[a, n]
%q : f32{a,n} = %x[a, n] * %s[n]
%y : f32{b,n} = select(index(b - 16) < 0, %p[a=b, n else 0.0], %q[a=b - 16, n else 0.0])
%t : f32{n} = sum{b} %y[b, n] * %y[b, n]
%r : f32{a,n} = %x[a, n] - %t[n]
%z : f32{c,n} = select(index(c - 32) < 0, %y[b=c, n else 0.0], %r[a=c - 32, n else 0.0])
%u : f32{c} = sum{n} %z[c, n] * %z[c, n]
%v : f32{c,n} = %z[c, n] * %u[c]
output "u" [c] = %u
output "v" [n, c] = %v
"""


def _graph(text: str) -> Graph:
    graph = parse(text)
    verify(graph)
    return graph


def _agrees(plan: Plan, graph: Graph, seed: int = 0) -> None:
    inputs = random_inputs(graph, seed)
    got = run_plan(plan, inputs)
    for name, array in interpret(graph, inputs).items():
        np.testing.assert_array_equal(got[name], array, err_msg=f"{name} of\n{graph}\n{plan}")


def _joins(plan: Plan) -> list[str]:
    return [s.node.out.name for s in plan.steps if isinstance(s, Joined)]


def test_prefixes_lie_in_what_is_appended_to_them() -> None:
    graph = _graph(GROWING)
    plan = decide(graph, V4)
    assert plan.assignment is not None
    assert plan.assignment.joins == (Join("y", ("p", "q")), Join("z", ("y", "r")))
    assert parse_assignment(str(plan.assignment)) == plan.assignment
    assert _joins(plan) == ["y", "z"]
    assert {"y", "z"}.isdisjoint(v for g in plan.groups() for v in g.stored)
    begins = {v: plan.places[v].offset for v in "pqryz"}
    start = begins["z"]
    assert begins == {
        "p": start,
        "q": plan.places["z"].offset + 64,
        "r": plan.places["z"].offset + 128,
        "y": start,
        "z": start,
    }
    assert {plan.layouts[v].stride("n") for v in "pqryz"} == {48}
    _agrees(plan, graph)
    assert realise(prepare(graph), plan.assignment, V4) == replace(plan, refusals=())


def test_the_text_of_a_plan_says_what_lies_where() -> None:
    text = str(decide(_graph(GROWING), V4))
    assert "joined: %z [n, c] @arena+0 of %y @arena+0, %r @arena+128" in text
    assert "joined: %y [n, b] @arena+0 of %p @arena+0, %q @arena+64" in text


def test_a_part_is_read_with_the_halo_of_the_whole() -> None:
    graph = _graph("""
        graph "windows"
        dims y = 5, x = 6, a = 16, c = 32, o = 16, ky = 3, kx = 3
        %i : f32{a,x,y} = input "i" [y, x, a]
        %w : f32{a,kx,ky,o} = input "w" [ky, kx, a, o]
        %v : f32{c,kx,ky,o} = input "v" [ky, kx, c, o]
        %p : f32{a,x,y} = max(%i[a, x, y], 0.0)
        %q : f32{o,x,y} = sum{a,ky,kx} %p[a, x=x+kx-1, y=y+ky-1 else 0.0] * %w[a, kx, ky, o]
        %z : f32{c,x,y} = select(index(c - 16) < 0, %p[a=c, x, y else 0.0], \
            %q[o=c - 16, x, y else 0.0])
        %r : f32{o,x,y} = sum{c,ky,kx} %z[c, x=x+kx-1, y=y+ky-1 else 0.0] * %v[c, kx, ky, o]
        output "r" [y, x, o] = %r
    """)
    found = joined(greedy(prepare(graph), V4).realisation)
    assert found.assignment.joins == (Join("z", ("p", "q")),)
    assert found.layouts["p"].halo
    assert found.layouts["p"].halo == found.layouts["q"].halo == found.layouts["z"].halo
    _agrees(found.plan, graph)


def test_what_cannot_lie_there_is_written_there() -> None:
    """An input, and what is computed while it is joined, are values of their own."""
    graph = _graph("""
        graph "mixed"
        symbols m = 1..9
        dims n = m, a = 16, c = 64, o = 1
        %x : f32{a,n} = input "x" [n, a]
        %w : f32{a,n} = input "w" [n, a]
        %p : f32{a,n} = max(%x[a, n], 0.0)
        %s : f32{n} = sum{a} %p[a, n]
        %z : f32{c,n} = select(index(c - 16) < 0, %x[a=c, n else 0.0], select(index(c - 32) < 0, \
            %p[a=c - 16, n else 0.0], select(index(c - 48) < 0, %w[a=c - 32, n else 0.0] * 2.0, \
            %s[n])))
        %u : f32{c} = sum{n} %z[c, n] * %z[c, n]
        %v : f32{c,n} = %z[c, n] * %u[c]
        output "v" [n, c] = %v
    """)
    plan = decide(graph, V4)
    assert plan.assignment is not None
    assert plan.assignment.joins == (Join("z", ("p",)),)
    assert {"z.part", "z.part1", "z.part2"} <= {v for g in plan.groups() for v in g.stored}
    for seed in range(3):
        _agrees(plan, graph, seed)


def test_ranges_of_one_value_side_by_side_are_a_part() -> None:
    """Halves that are split, and joined again with what is computed of one of them."""
    graph = _graph("""
        graph "halves"
        dims n = 4, a = 32, h = 16, i = 16, c = 48
        %x : f32{a,n} = input "x" [n, a]
        %s : f32{a} = sum{n} %x[a, n]
        %p : f32{a,n} = max(%x[a, n] - %s[a], 0.0)
        %l : f32{h,n} = %p[a=h, n]
        %r : f32{i,n} = %p[a=i + 16, n]
        %t : f32{i} = sum{n} %r[i, n] * %r[i, n]
        %q : f32{i,n} = %r[i, n] * %t[i]
        %z : f32{c,n} = select(index(c - 16) < 0, %l[h=c, n else 0.0], select(index(c - 32) < 0, \
            %r[i=c - 16, n else 0.0], %q[i=c - 32, n else 0.0]))
        %u : f32{c} = sum{n} %z[c, n] * %z[c, n]
        %v : f32{c,n} = %z[c, n] * %u[c]
        output "v" [n, c] = %v
    """)
    plan = decide(graph, V4)
    assert plan.assignment is not None
    assert plan.assignment.joins == (Join("z", ("p", "q")),)
    assert "l" not in {v for g in plan.groups() for v in g.stored}
    _agrees(plan, graph)


def test_what_the_second_cache_does_not_hold_is_copied() -> None:
    graph = _graph(GROWING.replace("n = 4", f"n = {V4.l2 // (40 * 4)}"))
    first = greedy(prepare(graph), V4).realisation
    assert [j.value for j in joined(first).assignment.joins] == ["y"]
    assert "z" in {j.value for j in _with_all(first, Random(0)).assignment.joins}


def _random(rng: Random) -> str:
    """A graph of concatenations, elementwise nests, sums and ranges, some sizes of them open."""
    outer = rng.choice(["= m", f"= {rng.randint(1, 5)}"])
    lines, dims = [], [f"n {outer}", "k = 3"]
    sizes = {"a": rng.choice([16, 32, 48]), "b": rng.choice([5, 16, 32])}
    # Some are put side by side along the innermost dim, some along the outermost.
    values = {}
    for i, d in enumerate(sizes):
        order = rng.choice([f"n, {d}", f"{d}, n"])
        lines.append(f'%i{i} : f32{{{", ".join(sorted((d, "n")))}}} = input "i{i}" [{order}]')
        values[f"i{i}"] = d
    for number in range(rng.randint(4, 9)):
        v = rng.choice(list(values))
        d = values[v]
        name, kind = f"v{number}", rng.randint(0, 4)
        if kind <= 1:
            lines.append(f"%{name}s : f32{{{d}}} = sum{{n}} %{v}[{d}, n]")
            lines.append(f"%{name} : f32{{{d},n}} = max(%{v}[{d}, n] - %{name}s[{d}], 0.0)")
            values[name] = d
            continue
        left = sorted(values.keys() - {v})
        others = [v, *rng.sample(left, min(len(left), rng.randint(1, 3)))]
        e = f"c{number}"
        if kind == 2 and sizes[d] > 2:
            start = rng.choice([1, sizes[d] // 2, 16 % sizes[d]])
            sizes[e] = sizes[d] - start
            lines.append(f"%{name} : f32{{{e},n}} = %{v}[{d}={e} + {start}, n]")
        else:
            sizes[e] = sum(sizes[values[x]] for x in others)
            text, end = "", sizes[e]
            for x in reversed(others):
                begin = end - sizes[values[x]]
                read = f"%{x}[{values[x]}={e} - {begin}, n else 0.0]".replace(" - 0,", ",")
                text = f"select(index({e} - {end}) < 0, {read}, {text})" if text else read
                end = begin
            lines.append(f"%{name} : f32{{{e},n}} = {text}")
        values[name] = e
    dims += [f"{d} = {size}" for d, size in sizes.items()]
    for number, (v, d) in enumerate(rng.sample(list(values.items()), 3)):
        lines.append(f"%o{number} : f32{{{d},n}} = %{v}[{d}, n] * 2.0")
        lines.append(f'output "o{number}" [n, {d}] = %o{number}')
    names = ", ".join(dims)
    order = {"output": 1}
    lines.sort(key=lambda x: order.get(x.split()[0], 0))
    return f'graph "random"\nsymbols m = 1..6\ndims {names}\n' + "\n".join(lines)


def _with_all(found: Realisation, rng: Random) -> Realisation:
    """What joins whatever it may, in random order."""
    while near := list(further(found)):
        found = found.but(rng.choice(near)[1])
    return found


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_compute_the_same(seed: int) -> None:
    graph = _graph(_random(Random(seed)))
    for machine in (V3, V4):
        first = greedy(prepare(graph), machine).realisation
        for found in (joined(first), _with_all(first, Random(seed))):
            assert parse_assignment(str(found.assignment)) == found.assignment
            _agrees(found.plan, graph, seed)
            plan = found.plan
            times = Lifetimes(found.known.homes)
            times.visit(plan.steps)
            own = [v for v in times.lives if plan.places[v].space == "arena"]
            sizes = [plan.places[v].bytes for v in own]
            if all(isinstance(s, int) for s in sizes):
                fewest = live_bytes([int(str(s)) for s in sizes], [times.lives[v] for v in own])
                assert fewest <= int(str(plan.arena_bytes)) <= 2 * fewest


def test_random_graphs_have_joins() -> None:
    counts = []
    for seed in range(60):
        first = greedy(prepare(_graph(_random(Random(seed)))), V4).realisation
        counts.append(len(_with_all(first, Random(seed)).assignment.joins))
    assert sum(n > 0 for n in counts) > len(counts) // 4
    assert max(counts) > 1


def test_the_base_of_a_scatter_lies_in_memory_of_its_own() -> None:
    """A scatter changes what it gets in place: another value's part may still be read."""
    graph = _graph("""
        graph "scattered"
        dims n = 4, a = 16, c = 32, one = 1
        %x : f32{a,n} = input "x" [n, a]
        %p : f32{a,n} = max(%x[a, n], 0.0)
        %q : f32{a,n} = %x[a, n] * 2.0
        %z : f32{c,n} = select(index(c - 16) < 0, %p[a=c, n else 0.0], %q[a=c - 16, n else 0.0])
        %t : f32{a,n} = scatter{a,one} %p[a=a, n=one] set= %x[a, n=one] * 5.0
        %u : f32{c} = sum{n} %z[c, n] * %z[c, n]
        %v : f32{c,n} = %z[c, n] * %u[c]
        output "t" [n, a] = %t
        output "v" [n, c] = %v
    """)
    plan = decide(graph, V4)
    _agrees(plan, graph)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("join %u of %p", "%u is no concatenation that can be joined"),
        ("join %w of %p", "no nest computes %w, which is joined"),
        ("join %y of %r", "%r is no part of %y"),
        ("join %z of %x", "%x is no part of %z"),
    ],
)
def test_what_is_no_join_says_why(line: str, why: str) -> None:
    prepared = prepare(_graph(GROWING))
    found = greedy(prepared, V4).realisation
    other = parse_assignment(f"{found.assignment}{line}\n")
    with pytest.raises(Illegal, match=why):
        realise(prepared, other, V4)


def test_a_part_begins_at_a_cache_line() -> None:
    text = GROWING.replace("a = 16, b = 32, c = 48", "a = 12, b = 24, c = 36")
    text = text.replace("b - 16", "b - 12").replace("c - 32", "c - 24")
    prepared = prepare(_graph(text))
    found = greedy(prepared, V4).realisation
    assert all("q" not in j.parts for j in joined(found).assignment.joins)
    arrangements = {v: a for v, a in found.assignment.arrangements.items() if v not in {"p", "q"}}
    said = replace(found.assignment, joins=(Join("y", ("p", "q")),), arrangements=arrangements)
    with pytest.raises(Illegal, match="%q does not begin at a cache line"):
        realise(prepared, replace(said, groups=()), V4)
