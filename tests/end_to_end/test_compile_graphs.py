"""Whole graphs through every stage to a library that runs, against the graph's interpretation.

Random graphs take about a tenth of a second each; a long run is

    RUTC_EXAMPLES=50 pytest tests/end_to_end/test_compile_graphs.py
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rutc.driver.parts.build
from rutc.driver.parts.build import PlanVersion
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import Graph, Index
from rutc.tensor_ir.indices.affine import Size
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from rutc.tuner.sharing import Shared
from tests import machines
from tests.compiled import build, plan_or_reject, run
from tests.examples import examples
from tests.graph_opt.plan_runner import run_plan
from tests.kernels import assert_agree
from tests.machines import eager
from tests.strategies import graphs, random_inputs

NATIVE = eager(machines.NATIVE)
V3 = eager(machines.V3)

pytestmark = pytest.mark.usefixtures("module_cache")


def check(graph: Graph, seed: int = 0, *, exact: bool = True, machine: Machine = NATIVE) -> None:
    """Compile the graph, run it with one thread and with two, compare all outputs."""
    inputs = random_inputs(graph, seed)
    expected = interpret(graph, inputs)
    plan = plan_or_reject(graph)
    with TemporaryDirectory() as folder:
        library = build(plan, machine, Path(folder))
        for threads in (1, 2):
            got = run(library, inputs, threads)
            assert list(got) == list(expected)
            for name, array in expected.items():
                assert got[name].dtype == array.dtype
                assert got[name].shape == array.shape
                if exact:
                    np.testing.assert_array_equal(got[name], array, err_msg=name)
                else:
                    assert_agree(name, got[name], array, exact=False, reduction=SMOOTH)


def _most_turns(launches: Sequence[Shared], machine: Machine) -> list[Size]:
    """As many turns as there may be; what is alone where there is none."""
    return [[w.turns for w in x.ways if w.turns != 0][-1] for x in launches]


@examples(20)
@given(graphs(exact=True), st.integers(0, 2**16))
def test_graphs_whose_threads_share_every_turn(graph: Graph, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rutc.driver.parts.build, "share", _most_turns)
        check(graph, seed)


@examples(40)
@given(graphs(exact=True, symbolic=True, sizes=(1, 100)), st.sampled_from([NATIVE, V3]))
def test_one_library_serves_all_sizes(graph: Graph, machine: Machine) -> None:
    check_sizes(graph, machine)


@examples(20)
@given(graphs(exact=True, symbolic=True, sizes=(1, 100)))
def test_one_library_holds_two_plans(graph: Graph) -> None:
    """One of the graph as it is, for large sizes, and one of what it is rewritten to."""
    ((symbol, _),) = graph.symbols
    check_sizes(graph, V3, PlanVersion(plan_or_reject(graph, limit=0), Index.of(symbol) // 17))


def check_sizes(graph: Graph, machine: Machine, *earlier: PlanVersion) -> None:
    """Compile a graph of one symbol, run it at several sizes, compare all outputs."""
    ((symbol, _),) = graph.symbols
    plan = plan_or_reject(graph)
    with TemporaryDirectory() as folder:
        library = build(plan, machine, Path(folder), *earlier)
        for threads in (1, 2):
            with InferenceSession(library, threads=threads) as session:
                for size in (3, 1, 40, 17, 64, 2):
                    inputs = random_inputs(graph, size, {symbol: size})
                    expected = interpret(graph, inputs)
                    got = session.run(list(expected), inputs)
                    for (name, array), mine in zip(expected.items(), got, strict=True):
                        np.testing.assert_array_equal(mine, array, err_msg=f"{name} at {size}")


def test_columns_that_data_chooses_of_rows_of_any_number() -> None:
    text = """
        graph "one column of two for every row"
        symbols batch = 1..100
        dims b = 2, n = batch, m = 2*batch - 1
        %v : i64{b,m} = input "v" [m, b]
        %t : i64{n} = input "t" [n]
        %y : i64{b,m,n} = %v[b=%t[n], m] + %v[b, m]
        output "y" [b, n, m] = %y
    """
    check_sizes(parse(text), V3)


SMOOTH = 1 << 20
"""Roundings that count as one reduction in smooth graphs: values cancel between their nodes."""


@examples(60)
@given(graphs(exact=True, symbolic=False), st.integers(0, 9))
def test_exact_graphs(graph: Graph, seed: int) -> None:
    check(graph, seed)


@examples(30)
@given(graphs(exact=False, symbolic=False), st.integers(0, 9))
def test_smooth_graphs(graph: Graph, seed: int) -> None:
    check(graph, seed, exact=False)


@examples(30)
@given(graphs(exact=True, symbolic=False, most=10), st.integers(0, 9))
def test_larger_graphs_on_narrower_vectors(graph: Graph, seed: int) -> None:
    check(graph, seed, machine=V3)


# -- named cases --------------------------------------------------------------------------------
CASES = {
    "nothing but an input": """
        dims a = 3, b = 2
        %x : f32{a,b} = input "x" [b, a]
        output "y" [a, b] = %x
        output "z" [b, a] = %x
        output "y again" [a, b] = %x
    """,
    "constants": """
        dims a = 3
        %x : f32{} = input "unused" []
        %c : i64{a} = const [a] [1, -2, 3]
        %t : bool{} = const [] true
        output "c" [a] = %c
        output "c again" [a] = %c
        output "t" [] = %t
    """,
    "scalars": """
        %x : f32{} = input "x" []
        %y : f32{} = %x * %x + 1.0
        %b : bool{} = %y > 2.0
        output "y" [] = %y
        output "b" [] = %b
    """,
    "no elements": """
        dims a = 0, b = 4
        %x : f32{a,b} = input "x" [a, b]
        %w : f32{b} = input "w" [b]
        %s : f32{b} = sum{a} %x[a, b] * %w[b]
        %m : f32{a} = max{b} %x[a, b]
        %p : f32{b} = %x[a=b, b else -1.0]
        %n : f32{} = max{a,b} %x[a, b]
        %e : f32{a,b} = exp(%x[a, b])
        output "s" [b] = %s
        output "m" [a] = %m
        output "p" [b] = %p
        output "n" [] = %n
        output "e" [b, a] = %e
        output "x" [b, a] = %x
    """,
    "a scan without trips": """
        dims a = 3, t = 0
        %x : f32{a} = input "x" [a]
        %last : f32{a}, %all : f32{a,t} = scan t carry(%h : f32{a} = %x -> %n) collect(%n) {
          %n : f32{a} = %h[a] + 1.0
        }
        output "last" [a] = %last
        output "all" [a, t] = %all
    """,
    "a number that is carried and collected": """
        dims t = 5
        %z : f32{} = 1.0
        %last : f32{}, %all : f32{t} = scan t carry(%h : f32{} = %z -> %n) collect(%n) {
          %n : f32{} = 2.0
        }
        output "last" [] = %last
        output "all" [t] = %all
    """,
    "a recurrence": """
        dims b = 2, h = 5, k = 5, t = 4
        %x : f32{b,h,t} = input "x" [t, b, h]
        %w : f32{h,k} = input "w" [h, k]
        %i : f32{b,h} = input "i" [h, b]
        %last : f32{b,h}, %all : f32{b,h,t} = scan t carry(%s : f32{b,h} = %i -> %n) collect(%n) {
          %p : f32{b,h} = sum{k} %s[b, h=k] * %w[h, k]
          %n : f32{b,h} = max(min(%p[b, h] + %x[b, h, t], 4.0), -4.0)
        }
        output "all" [b, t, h] = %all
        output "last" [h, b] = %last
    """,
    "carried values that change places": """
        dims a = 3, t = 5
        %x : f32{a} = input "x" [a]
        %y : f32{a} = input "y" [a]
        %p : f32{a}, %q : f32{a}, %all : f32{a,t} = scan t \
carry(%u : f32{a} = %x -> %v, %v : f32{a} = %y -> %u) collect(%u) {
        }
        output "p" [a] = %p
        output "q" [a] = %q
        output "all" [t, a] = %all
    """,
    "scans in scans": """
        dims a = 3, t = 2, u = 4
        %x : f32{a,t,u} = input "x" [t, u, a]
        %z : f32{a} = 0.0
        %last : f32{a}, %rows : f32{a,t} = scan t carry(%h : f32{a} = %z -> %m) collect(%m) {
          %m : f32{a}, %inner : f32{a,u} = scan u carry(%g : f32{a} = %h -> %n) collect(%n) {
            %n : f32{a} = %g[a] + %x[a, t, u]
          }
        }
        output "last" [a] = %last
        output "rows" [a, t] = %rows
    """,
    "branches": """
        dims a = 3, b = 2
        %x : f32{a,b} = input "x" [b, a]
        %c : bool{} = input "c" []
        %r : f32{a,b}, %s : f32{a} = if %c {
          %m : f32{a} = sum{b} %x[a, b]
          yield %x, %m
        } else {
          %d : f32{a,b} = %x[a, b] * 2.0
          %e : f32{a} = 1.0
          yield %d, %e
        }
        output "r" [a, b] = %r
        output "s" [a] = %s
    """,
    "a branch in a scan that yields what is outside": """
        dims a = 3, t = 4
        %x : f32{a} = input "x" [a]
        %y : f32{a} = %x[a] + 1.0
        %last : f32{a} = scan t carry(%h : f32{a} = %x -> %r) collect() {
          %even : bool{} = mod(index(t), 2) == 0
          %r : f32{a} = if %even {
            yield %y
          } else {
            %d : f32{a} = %h[a] - %y[a]
            yield %d
          }
        }
        output "last" [a] = %last
        output "y" [a] = %y
    """,
    "a while, and one that never runs": """
        dims a = 3
        %x : f32{a} = input "x" [a]
        %zero : i64{} = const [] 0
        %go : bool{} = %x[a=0] < 100.0
        %no : bool{} = %x[a=0] > 100.0
        %last : bool{}, %n : i64{}, %y : f32{a} = while carry(%g : bool{} = %go -> %g2, \
%i : i64{} = %zero -> %i2, %s : f32{a} = %x -> %s2) if %g {
          %i2 : i64{} = %i + 1
          %s2 : f32{a} = %s[a] * 2.0 + 1.0
          %m : f32{} = sum{a} %s2[a]
          %g2 : bool{} = %i2 < 7 and %m < 60.0
        }
        %last2 : bool{}, %same : f32{a} = while carry(%h : bool{} = %no -> %h, \
%t : f32{a} = %x -> %t2) if %h {
          %t2 : f32{a} = %t[a] + 1.0
        }
        output "n" [] = %n
        output "y" [a] = %y
        output "same" [a] = %same
    """,
    "carried values that change places in a while": """
        dims a = 2, b = 3
        %x : f32{a,b} = input "x" [b, a]
        %y : f32{a,b} = input "y" [a, b]
        %zero : i64{} = const [] 0
        %true : bool{} = const [] true
        %end : bool{}, %n : i64{}, %p : f32{a,b}, %q : f32{a,b} = while carry(\
%g : bool{} = %true -> %g2, %i : i64{} = %zero -> %i2, %u : f32{a,b} = %x -> %v, \
%v : f32{a,b} = %y -> %u) if %g {
          %i2 : i64{} = %i + 1
          %g2 : bool{} = %i2 < 3
        }
        output "p" [b, a] = %p
        output "q" [a, b] = %q
    """,
    "calls, their operands in other orders": """
        dims a = 3, k = 2, n = 9, u = 5
        %x : f32{a,n} = input "x" [n, a]
        %c : f32{n} = const [n] [3, 1, 2, 9, 4, 4, 0, -1, 4]
        %v : f32{a,k}, %i : i64{a,k} = call topk(%x[a, n], axis=1, largest=1) -> [a, k], [a, k]
        %w : f32{a,k}, %j : i64{a,k} = call topk(%x[n, a], axis=0, largest=0) -> [k, a], [k, a]
        %d : f32{k}, %e : i64{k} = call topk(%c[n], axis=0, largest=1)
        %r : f64{u} = call uniform(seed=7)
        %s : f64{} = max{u} %r[u]
        %z : f32{a,k} = %v[a, k] + %w[a, k] * 2.0 + %d[k]
        output "v" [k, a] = %v
        output "i" [a, k] = %i
        output "j" [a, k] = %j
        output "e" [k] = %e
        output "z" [a, k] = %z
        output "s" [] = %s
    """,
    "calls in loops": """
        dims a = 6, k = 6, t = 3, u = 2
        %x : f32{a} = input "x" [a]
        %y : f32{a}, %all : f64{t,u} = scan t carry(%h : f32{a} = %x -> %n) collect(%r) {
          %r : f64{u} = call uniform(seed=1)
          %v : f32{k}, %i : i64{k} = call topk(%h[a], axis=0, largest=1)
          %n : f32{a} = %v[k=a] * 2.0 - %h[a]
        }
        output "y" [a] = %y
        output "all" [u, t] = %all
    """,
    "a size that the program counts": """
        symbols s = 0..12
        dims a = 3, b = 4, r = 2, f = s
        %x : f32{a,b} = input "x" [b, a]
        %mask : bool{a,b} = %x[a, b] > 0.0
        %one : i64{a,b} = i64(%mask[a, b])
        %count : i64{} = sum{a,b} %one[a, b]
        %size : i64{} = bind s = %count @ "count"
        %at : i64{f,r} = call nonzero(%mask[b, a]) -> [r, f] @ "find"
        %found : f32{f} = %x[a=%at[f, r=1], b=%at[f, r=0]]
        %more : f32{f} = %found[f] * 2.0 + 1.0
        %total : f32{} = sum{f} %more[f]
        %y : f32{a,b} = %x[a, b] + %total
        output "at" [f, r] = %at
        output "more" [f] = %more
        output "y" [a, b] = %y
        output "size" [] = %size
    """,
    "sizes of sizes, halos, and values that outlive others": """
        symbols n = 1..9, s = 0..40, u = 2..30
        dims a = n, f = s, g = 2*s + u, h = u, k = 3
        %x : f32{a} = input "x" [a]
        %w : f32{k} = input "w" [k]
        %c : i64{} = index(3*n)
        %b1 : i64{} = bind s = %c
        %p : f32{f} = %x[a=f // 3]
        %d : i64{} = index(s) / 2 + 2
        %b2 : i64{} = bind u = %d
        %q : f32{h} = f32(index(h))
        %z : f32{g} = %p[f=g // 3 else 0.5] + %q[h=g % u]
        %v : f32{f} = sum{k} %p[f=f + k - 1 else 0.0] * %w[k]
        %m : f32{f} = sum{k} %v[f=f + k - 1 else 0.0] * %w[k]
        output "z" [g] = %z
        output "m" [f] = %m
        output "p" [f] = %p
    """,
    "sizes in loops and branches": """
        symbols s = 0..30, u = 0..40
        dims a = 6, f = s, t = 4, g = u
        %x : f32{a} = input "x" [a]
        %go : bool{} = input "go" []
        %zero : f32{a} = 0.0
        %last : f32{a}, %all : i64{t} = scan t carry(%h : f32{a} = %zero -> %n) collect(%b) {
          %k : i64{} = index(3*t) + 1
          %b : i64{} = bind s = %k
          %p : f32{f} = f32(index(f)) * %x[a=0]
          %q : f32{f} = %p[f] + 1.0
          %m : f32{} = sum{f} %q[f]
          %n : f32{a} = %h[a] + %m
        }
        %k1 : i64{} = select(%go, 5, 38)
        %b1 : i64{} = bind u = %k1
        %r : f32{g} = if %go {
          %r1 : f32{g} = f32(index(g))
          yield %r1
        } else {
          %r2 : f32{g} = %x[a=g % 6]
          yield %r2
        }
        %again : f32{g} = scan t carry(%o : f32{g} = %r -> %o2) collect() {
          %o2 : f32{g} = %o[g] * 2.0 - %r[g]
        }
        output "last" [a] = %last
        output "all" [t] = %all
        output "r" [g] = %r
        output "again" [g] = %again
    """,
    "rows and their normalisation": """
        dims b = 6, k = 50
        %x : f32{b,k} = input "x" [b, k]
        %m : f32{b} = max{k} %x[b, k]
        %e : f32{b,k} = %x[b, k] - %m[b]
        %s : f32{b} = sum{k} %e[b, k]
        %p : f32{b,k} = %e[b, k] * %s[b]
        %v : f32{b}, %at : i64{b} = argmax{k} %p[b, k], index(k)
        output "p" [b, k] = %p
        output "v" [b] = %v
        output "at" [b] = %at
    """,
    "windows over windows": """
        dims c = 3, d = 20, r = 3, s = 3, x = 9, y = 8
        %i : f32{c,x,y} = input "i" [c, y, x]
        %w : f32{c,d,r,s} = input "w" [d, c, r, s]
        %f : f32{d,x,y} = sum{c,r,s} %i[c, x=x + r - 1, y=y + s - 1 else 0.0] * %w[c, d, r, s]
        %g : f32{d,x,y} = max(%f[d, x, y], 0.0)
        %m : f32{d,x,y} = max{r,s} %g[d, x=x + r - 1, y=y + s - 1 else -inf]
        %n : f32{d,x,y} = sum{r,s} %g[d, x=x + 2*r - 2, y=y + s else 0.0]
        output "m" [d, x, y] = %m
        output "n" [d, x, y] = %n
    """,
}


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    graph = parse(f'graph "case"\n{CASES[name]}')
    verify(graph)
    for seed in range(2):
        check(graph, seed)


@pytest.mark.parametrize("name", [n for n in CASES if "bind" in CASES[n]])
def test_plans_of_computed_sizes(name: str) -> None:
    graph = parse(f'graph "case"\n{CASES[name]}')
    inputs = random_inputs(graph, 0)
    expected = interpret(graph, inputs)
    got = run_plan(decide(optimize(graph), NATIVE), inputs)
    for output, array in expected.items():
        np.testing.assert_array_equal(got[output], array, err_msg=output)


OVER = """
graph "over"
symbols s = 1..4
dims f = s
%n : i64{} = input "n" []
%b : i64{} = bind s = %n @ "the node"
%y : i64{f} = index(f)
output "y" [f] = %y
"""


def test_sizes_outside_of_their_range_end_the_run(tmp_path: Path) -> None:
    library = build(decide(optimize(parse(OVER)), NATIVE), NATIVE, tmp_path)
    with InferenceSession(library) as session:
        for size in (4, 1, 3):
            np.testing.assert_array_equal(session.run(None, {"n": np.array(size)})[0], range(size))
            for bad in (0, 5, -(2**63), 2**63 - 1):
                with pytest.raises(ModelError, match=rf"the node: the size s is {bad}, outside of"):
                    session.run(None, {"n": np.array(bad)})


def test_outputs_of_computed_shapes_go_to_the_caller_too(tmp_path: Path) -> None:
    library = build(decide(optimize(parse(OVER)), NATIVE), NATIVE, tmp_path)
    with InferenceSession(library) as session:
        wide = np.full((3, 2), 9)
        session.run_into({"n": np.array(3)}, {"y": wide[:, 1]})
        assert wide.tolist() == [[9, 0], [9, 1], [9, 2]]
        with pytest.raises(ModelError, match=r"\"y\" must have shape"):
            session.run_into({"n": np.array(2)}, {"y": wide[:, 1]})
        assert session.run(["y"], {"n": np.array(2)})[0].tolist() == [0, 1]
