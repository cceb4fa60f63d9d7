"""What estimates make of usual plans for every model: of graphs of few nests, and of kernels."""

from dataclasses import replace

import pytest

from rutc.driver.plans import refine as refined_plans
from rutc.driver.plans.estimates import AtSizes
from rutc.driver.plans.plan_by_estimate import Prices
from rutc.driver.plans.refine import refined, without_kernels
from rutc.graph_opt import optimize
from rutc.graph_opt.assignment import parse_assignment
from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.fusion import MOST_OPERATIONS
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.decide.recompute import MOST_FOLLOWING, may_be_anew
from rutc.tensor_ir import Graph, Index
from rutc.tensor_ir.graph import Nest, outs
from rutc.tensor_ir.indices.ranges import SOME
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from tests.graph_opt.networks import Net
from tests.graph_opt.plan_runner import run_plan
from tests.kernels import assert_agree
from tests.machines import V3, V4, weighing
from tests.optimum import CLOSE, chosen, gaps, small_graph
from tests.strategies import random_inputs

FAR = (66, 81, 87)
"""Seeds of graphs whose choices one after the other take long by the estimates."""

READERS = """
graph "sums of columns, of what is made of a value"
dims m = 256, n = 256
%x : f32{m,n} = input "x" [m, n]
%a : f32{m,n} = max(%x[m, n], 0.0)
%b : f32{m,n} = %a[m, n] * 2.0 + 1.0
%c : f32{n} = sum{m} %b[m, n]
%d : f32{n} = sum{m} %b[m, n] * %b[m, n]
output "c" [n] = %c
output "d" [n] = %d
"""


def stored(found: Realisation) -> set[str]:
    return {v for g in found.plan.groups() for v in g.stored}


@pytest.mark.parametrize("seed", FAR)
def test_plans_of_few_nests_are_as_good_as_the_best(seed: int) -> None:
    found = gaps(small_graph(seed, 6), V3)
    assert found is not None
    assert found.usual <= CLOSE < found.chosen


def test_plans_of_few_nests_that_gain_as_good_as_nothing_stay() -> None:
    graph = small_graph(FAR[0], 6)
    first = chosen(graph, V3)
    assert refined(first, V3) is not first
    assert refined(first, weighing(V3, "plans", least_of_few=0.9)) is first


def test_a_kernel_goes_whose_value_is_sooner_computed_by_what_reads_it() -> None:
    graph = parse(READERS)
    first = chosen(graph, V3)
    assert stored(first) == {"b", "c", "d"}
    found = without_kernels(first, V3)
    assert stored(found) == {"c", "d"}
    assert set(found.assignment.recomputed) == {"a", "b"}
    prices = Prices(first, V3)
    least = V3.coefficients.plans.least_gain
    assert prices.legal(found).cycles < (1 - least) * prices.legal(first).cycles
    inputs = random_inputs(graph, 0)
    got = run_plan(found.plan, inputs)
    for name, array in interpret(graph, inputs).items():
        assert_agree(name, got[name], array, exact=False, reduction=256)


def test_a_kernel_stays_that_computes_functions_or_that_gains_little() -> None:
    slow = parse(READERS.replace("%a[m, n] * 2.0", "tanh(%a[m, n])"))
    first = chosen(slow, V3)
    assert without_kernels(first, V3) is first
    first = chosen(parse(READERS), V3)
    assert without_kernels(first, weighing(V3, "plans", least_gain=0.9)) is first


@pytest.mark.parametrize(
    "body", ["abs(%v{before}[m, n] - 1.0)", "abs(%v{before}[m, n]) - %v{before}[m, n]"]
)
def test_kernels_of_many_operations_in_a_row_stay(body: str) -> None:
    # Twice the most operations of a kernel, which all readers of the first could compute.
    lines = ['%v0 : f32{m,n} = input "x" [m, n]']
    lines += [
        f"%v{i} : f32{{m,n}} = {body.replace('{before}', str(i - 1))}"
        for i in range(1, 2 * MOST_OPERATIONS)
    ]
    last = f"v{len(lines) - 1}"
    head = 'graph "in a row"\ndims m = 256, n = 64\n'
    graph = parse(head + "\n".join(lines) + f'\noutput "y" [m, n] = %{last}\n')
    found = refined(chosen(graph, V3), V3)
    assert len(stored(found)) > 1
    assert not found.assignment.recomputed


def test_so_many_operations_in_a_row_are_computed_anew() -> None:
    def rows(count: int) -> list[Nest]:
        lines = ['%v0 : f32{m} = input "x" [m]']
        lines += [f"%v{i} : f32{{m}} = -%v{i - 1}[m] + 1.0" for i in range(1, count + 1)]
        text = "\n".join(lines) + f'\noutput "y" [m] = %v{count}\n'
        graph = parse('graph "in a row"\ndims m = 256\n' + text)
        return [n for n in graph.nodes if isinstance(n, Nest)]

    assert may_be_anew(rows(MOST_FOLLOWING // 2))
    assert not may_be_anew(rows(MOST_FOLLOWING // 2 + 1))


def test_what_products_read_again_and_again_is_not_computed_anew() -> None:
    text = READERS.replace("sum{m} %b[m, n] * %b[m, n]", "sum{m} %b[m, n] * %w[k, m]")
    text = text.replace("%d : f32{n}", "%d : f32{k,n}").replace('"d" [n]', '"d" [k, n]')
    text = text.replace("n = 256", "n = 256, k = 4").replace(
        "%a :", '%w : f32{k,m} = input "w" [k, m]\n%a :'
    )
    first = chosen(parse(text), V3)
    assert "b" in stored(first)
    assert without_kernels(first, V3) is first


def test_what_products_read_a_copy_of_is_not_computed_anew() -> None:
    """The copy goes with the value, so what it takes is weighed against all that read either."""
    graph = parse("""
        graph "a product of what lies otherwise"
        dims m = 256, n = 256, k = 256
        %x : f32{k,m} = input "x" [k, m]
        %w : f32{k,n} = input "w" [k, n]
        %a : f32{k,m} = max(%x[k, m], 0.0) * 2.0
        %y : f32{m,n} = sum{k} %a[k, m] * %w[k, n]
        output "y" [m, n] = %y
        """)
    usual = chosen(graph, V3)
    order = "%a [k, m]\n%near [m, k]\ncopy %near of %a for %y 0\n"
    first = usual.but(parse_assignment(f'assignment "{graph.name}"\n{order}'))
    assert stored(first) == {"a", "near", "y"}
    found = without_kernels(first, V3)
    prices = Prices(first, V3)
    assert prices.legal(found).cycles <= prices.legal(first).cycles


def test_an_output_is_stored_and_little_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    first = chosen(parse(READERS + 'output "b" [m, n] = %b\n'), V3)
    assert without_kernels(first, V3) is first
    monkeypatch.setattr(refined_plans, "LEAST_ROOM", 10.0)
    first = chosen(parse(READERS), V3)
    assert without_kernels(first, V3) is first


def test_nothing_is_told_of_a_value_that_is_gone() -> None:
    usual = decide(parse(READERS), V3)
    assert "b" in {r.value for r in usual.refusals}
    plan = decide(parse(READERS), V3, improve=lambda first: without_kernels(first, V3))
    known = {v.name for n in plan.graph.nodes for v in outs(n)}
    assert "b" not in known
    assert {v for r in plan.refusals for v in (r.reader, r.value)} <= known


def test_of_larger_graphs_kernels_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refined_plans, "FEW", 3)
    first = chosen(parse(READERS), V3)
    assert refined(first, V3).assignment == without_kernels(first, V3).assignment
    assert refined(first, V3).assignment != first.assignment


PARTS = """
graph "parts of what windows read"
dims c = 64, d = 32, e = 32, k = 3, o = 8, y = 4096, z = 4096
%a : f32{d,y} = input "a" [y, d]
%b : f32{e,y} = input "b" [y, e]
%v : f32{c,y} = select(index(c - 32) < 0, %a[d=c, y else 0.0], %b[e=c - 32, y else 0.0])
%w : f32{c,z} = max(%v[c, y=z - 1 else 0.0], max(%v[c, y=z], %v[c, y=z + 1 else 0.0]))
output "w" [z, c] = %w
"""


def test_parts_are_not_put_together_for_windows_that_read_beyond_them() -> None:
    """Each element is read by three windows, none of which is a sum."""
    graph = parse(PARTS)
    first = chosen(graph, V3)
    assert stored(first) == {"v", "w"}
    found = without_kernels(first, V3)
    assert stored(found) == {"w"}
    inputs = random_inputs(graph, 0)
    got = run_plan(found.plan, inputs)
    for name, array in interpret(graph, inputs).items():
        assert_agree(name, got[name], array, exact=True, reduction=1)


def test_kernels_go_whose_batch_is_commonly_one() -> None:
    """What they pass on is as much of each example, and too much for turns over examples."""
    source = PARTS.replace("dims", "symbols n = 1..64@1\ndims b = n,").replace("4096", "65536")
    for plain, of_batch in ((",y}", ",y,b}"), (",z}", ",z,b}"), ("[y", "[b, y"), ("[z", "[b, z")):
        source = source.replace(plain, of_batch)
    for v in "abv":
        source = source.replace(f"%{v}[", f"%{v}[b, ")
    first = chosen(parse(source), V3)
    assert stored(first) == {"v", "w"}
    found = refined(first, V3)
    assert stored(found) == {"w"}


def enlarged(channels: int = 32) -> Graph:
    """A picture of any batch made twice as large: rows first, then columns."""
    n = Net()
    scales = n.const([1, 1, 2, 2])
    y = n("Resize", n.input("batch", channels, 64, 64), "", scales, mode="linear")
    return optimize(n.graph(y, dims={}))


def test_orders_are_searched_of_dims_beside_a_batch_that_is_commonly_one() -> None:
    first = chosen(enlarged(16), V4)
    assert dict(first.graph.symbols)["batch"].common == 1
    found = refined(first, V4)
    estimates = AtSizes(V4)
    before, after = (estimates.plan(x.plan) for x in (first, found))
    for batch in (1, SOME):
        assert after.cycles({"batch": batch}) < 0.9 * before.cycles({"batch": batch})
    for a in found.assignment.arrangements.values():
        assert first.known.extents[a.order[0]] == 1


def test_orders_that_gain_only_of_one_example_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    first = chosen(enlarged(), V3)
    assert refined(first, V3).assignment == first.assignment
    monkeypatch.setattr(refined_plans, "_gains_of_several", lambda *plans: True)
    other = refined(first, V3)
    cycles = [Prices(first, V3).legal(x).cycles for x in (first, other)]
    assert cycles[1] < cycles[0]


def test_orders_are_searched_of_what_kernels_of_one_launch_pass_on() -> None:
    """Kernels of pictures take turns in one launch, which reads and writes no row of them."""
    graph = enlarged()
    first = chosen(
        replace(
            graph,
            symbols=(),
            dims=tuple((d, Index.of(2) if e == Index.of("batch") else e) for d, e in graph.dims),
        ),
        V4,
    )
    (launch,) = Prices(first, V4).legal(first).launches
    passed = {v for g in first.plan.groups() for v in g.stored} - launch.values
    assert passed
    assert Prices(first, V4).legal(refined(first, V4)).cycles < 0.9 * launch.cycles
