"""Which runs are small: so that no thread is woken for them, whatever is common."""

from collections.abc import Mapping

import pytest

from rutc.driver.parts.build import Builder, least_shared
from rutc.driver.parts.plan_cost import cycles_of, no_more
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.graph_opt.plan import Plan
from rutc.tensor_ir.indices.affine import Index, Range, Size, Var
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner.sharing import MOST_CYCLES
from tests.machines import V3, V4

SCORES = """
graph "scores"
symbols b = {b}, n = {n}
dims i = b, h = 12, j = n, l = n, k = 64
%q : f32{{i,j,h,k}} = input "q" [i, j, h, k]
%p : f32{{i,l,h,k}} = input "p" [i, l, h, k]
%s : f32{{i,j,h,l}} = sum{{k}} %q[i, j, h, k] * %p[i, l, h, k]
output "s" [i, j, h, l] = %s
"""
ANY = "0..2147483648"


def plan_of(b: str, n: str, machine: Machine = V3) -> Plan:
    return decide(optimize(parse(SCORES.format(b=b, n=n))), machine)


def small(plan: Plan, machine: Machine = V3) -> Size:
    return Builder(plan, machine, "model", 1, code=False).build().program.small


@pytest.mark.parametrize("machine", [V3, V4])
@pytest.mark.parametrize("common", [(1, 4), (1, 512)])
def test_a_run_tells_whether_it_is_small(machine: Machine, common: tuple[int, int]) -> None:
    """Also where nothing bounds its sizes, so that none can count all products of them."""
    plan = plan_of(*(f"{ANY}@{k}" for k in common), machine)
    found, cycles = Index.of(small(plan, machine)), cycles_of(plan, machine)
    sizes = dict(plan.graph.symbols)
    assert most(cycles, sizes) > MOST_CYCLES
    assert all(most(x, sizes) <= MOST_CYCLES for x in inside(found))
    for b in (0, 1, 2, 40, 1 << 31):
        for n in (0, 1, 3, 16, 40, 128, 300, 1 << 31):
            own = {"b": b, "n": n}
            wanted = cycles.evaluate(own) < least_shared(machine)
            assert found.evaluate(own) == int(wanted), own


def test_what_is_large_at_its_least_sizes_is_never_small() -> None:
    assert small(plan_of("8..4096@8", "512..4096@512")) == 0


@pytest.mark.parametrize(("n", "wanted"), [(8, 1), (1024, 0)])
def test_a_run_of_one_size_is_small_or_is_not(n: int, wanted: int) -> None:
    text = SCORES.format(b=1, n=1).replace("symbols b = 1, n = 1\n", "")
    text = text.replace("i = b", "i = 1").replace("j = n, l = n", f"j = {n}, l = {n}")
    assert small(decide(optimize(parse(text)), V3)) == wanted


def most(x: Index, sizes: Mapping[str, Range]) -> int:
    """The most that an expression may be."""
    bounds = x.bounds(sizes)
    assert bounds is not None
    return bounds[1]


def inside(x: Index) -> list[Index]:
    """All that is computed for an expression."""
    atoms = [a for factors, _ in x.terms for a in factors if not isinstance(a, Var)]
    return [x, *(y for a in atoms for operand in a.operands for y in inside(operand))]


@pytest.mark.parametrize("counted", ["indices", "slices", "windows"])
def test_counts_that_no_run_could_make_stop_at_a_limit(counted: str) -> None:
    b, n, limit = Index.of("b"), Index.of("n"), 100_000
    sizes = {"b": (0, 1 << 31), "n": (0, 1 << 31)}
    x = {
        "indices": 30 * b * n * n + 7 * n + 5,
        "slices": 100 * (3 * b * n * n // 7),
        "windows": 30 * b * ((n - 1) // 2 + 1) * ((n - 1) // 2 + 1),
    }[counted]
    assert most(x, sizes) > MOST_CYCLES
    found = no_more(x, limit, sizes)
    assert found is not None
    assert all(most(y, sizes) <= MOST_CYCLES for y in inside(found))
    for k in (0, 1, 2, 3, 7, 40, 1 << 31):
        for m in (0, 1, 2, 5, 9, 20, 33, 1 << 31):
            own = {"b": k, "n": m}
            wanted, stopped = x.evaluate(own), found.evaluate(own)
            assert stopped == wanted if wanted < limit else stopped >= limit, own


def test_what_cannot_be_counted_up_to_a_limit() -> None:
    b, n, sizes = Index.of("b"), Index.of("n"), {"b": (0, 1 << 40), "n": (0, 1 << 62)}
    assert no_more(n * n, 1 << 20, sizes) is None
    assert no_more(b * b - b, 1 << 20, sizes) is None
    assert no_more(b, 1 << 20, sizes) == b
