"""`python -m tests.optimum`: how far plans of small graphs are from the best by the estimates.

Of each random graph all plans are estimated that changes of layouts and kernels lead to, one after
the other, from the usual plan on. Copies, blocks of dims, and values that are computed anew are
left out: with them there are too many.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from random import Random
from statistics import mean, median

from rutc.base.record import record
from rutc.driver.plans.plan_by_estimate import EstimateSearch, Prices, unordered
from rutc.driver.plans.refine import of_order_or_kernel, refined
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.join_choice import joined
from rutc.graph_opt.decide.neighbours import neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.machines import V3

Operand = tuple[str, list[str]]
"""A value and its dims."""
Written = tuple[str, list[str], list[str]]
"""The text of a nest that reads a value, its dims, and the other values that it reads."""

SIZES = (16, 64, 96, 256)
MOST_PLANS = 3000
CLOSE = 1.02
"""A plan that takes so many times as long as the best is as good."""


def small_graph(seed: int, most: int) -> Graph:
    """A random graph of up to `most` nests over two of three dims, or over one."""
    rng = Random(seed)
    dims = ", ".join(f"{d} = {rng.choice(SIZES)}" for d in "abc")
    lines = [f'graph "small"\ndims {dims}']
    values: list[Operand] = []
    for number in range(rng.randint(1, 2)):
        own = sorted(rng.sample("abc", 2))
        values.append((f"x{number}", own))
        lines.append(f"%x{number} : f32{_set(own)} = input {_port(f'x{number}', own, rng)}")
    return _graph(lines, values, most, rng, lambda value: _nest(value, values, rng))


def _graph(
    lines: list[str],
    values: list[Operand],
    most: int,
    rng: Random,
    nest: Callable[[Operand], Written],
) -> Graph:
    """A graph that begins so: up to `most` nests more, and outputs of what none of them reads."""
    inputs, used = len(values), set[str]()
    for number in range(rng.randint(2, most)):
        value = rng.choice(values[-3:])
        read, out, others = nest(value)
        used |= {value[0], *others}
        values.append((f"v{number}", out))
        lines.append(f"%v{number} : f32{_set(out)} = {read}")
    results = [v for v in values[inputs:] if v[0] not in used]
    lines += [f"output {_port(*v, rng)} = %{v[0]}" for v in results]
    graph = parse("\n".join(lines) + "\n")
    verify(graph)
    return graph


def _nest(value: Operand, values: list[Operand], rng: Random) -> Written:
    """(text, dims, other operands) of a nest that reads a value."""
    dims = value[1]
    within = [v for v in values if set(v[1]) <= set(dims)]
    factors = [v for v in values if len(v[1]) == 2 and len({*v[1]} & {*dims}) == 1]
    kind = rng.choice(("map", "map", "function", "two", "sum", "product"))
    if kind == "sum" and len(dims) > 1:
        d = rng.choice(dims)
        return f"sum{{{d}}} {_read(value)}", [x for x in dims if x != d], []
    if kind == "product" and len(dims) > 1 and factors:
        other = rng.choice(factors)
        d = next(x for x in dims if x in other[1])
        out = sorted({*dims, *other[1]} - {d})
        return f"sum{{{d}}} {_read(value)} * {_read(other)}", out, [other[0]]
    if kind == "two":
        other = rng.choice(within)
        return f"{_read(value)} + {_read(other)}", dims, [other[0]]
    if kind == "function":
        return f"tanh({_read(value)})", dims, []
    return f"{_read(value)} * 2.0 + 1.0", dims, []


def mixed_graph(seed: int, most: int) -> Graph:
    """A random graph of up to `most` nests over two or three dims, of which one may be symbolic.

    Values are turned, and concatenated along the first dim, too.
    """
    rng = Random(f"mixed {seed}")
    sizes = {d: rng.choice(SIZES) for d in "abc"}
    if rng.random() < 0.4:
        sizes["b"] = sizes["a"]
    is_open = rng.random() < 0.25
    said = {**sizes, "b": "rows"} if is_open else sizes
    dims = ", ".join(f"{d} = {said[d]}" for d in "abc")
    lines = ['graph "mixed"', *(["symbols rows = 1..4096"] if is_open else [])]
    lines.append(f"dims {dims}, d = {2 * sizes['a']}")
    values: list[Operand] = []
    for number in range(rng.randint(1, 2)):
        own = sorted(rng.sample("abc", rng.choice((2, 2, 3))))
        values.append((f"x{number}", own))
        lines.append(f"%x{number} : f32{_set(own)} = input {_port(f'x{number}', own, rng)}")
    square = not is_open and sizes["a"] == sizes["b"]

    def nest(value: Operand) -> Written:
        kind, turns = rng.choice(("nest", "nest", "parts", "turned")), {"a", "b"} <= {*value[1]}
        if kind == "parts" and "a" in value[1] and "d" not in value[1]:
            return _parts(value, values, sizes["a"], rng)
        if kind == "turned" and turns and square:
            coords = ["a=b", "b=a", *(d for d in value[1] if d not in "ab")]
            return f"%{value[0]}[{', '.join(coords)}] * 0.5", value[1], []
        return _nest(value, values, rng)

    return _graph(lines, values, most, rng, nest)


def _parts(value: Operand, values: list[Operand], size: int, rng: Random) -> Written:
    """(text, dims, other operands) of a value and another one, one after the other along d."""
    rest = [d for d in value[1] if d != "a"]
    alike = [v for v in values if v[1] == value[1]]
    other = rng.choice([v for v in alike if v != value] or alike)
    first = f"%{value[0]}[{', '.join(['a=d', *rest])} else 0.0]"
    second = f"%{other[0]}[{', '.join([f'a=d - {size}', *rest])} else 0.0]"
    text = f"select(index(d - {size}) < 0, {first}, {second})"
    return text, sorted([*rest, "d"]), [other[0]]


def _set(dims: list[str]) -> str:
    return f"{{{','.join(dims)}}}"


def _read(value: Operand) -> str:
    return f"%{value[0]}[{', '.join(value[1])}]"


def _port(name: str, dims: list[str], rng: Random) -> str:
    return f'"{name}" [{", ".join(rng.sample(dims, len(dims)))}]'


def every_plan(first: Realisation, prices: Prices) -> Iterator[float]:
    """Yields the cycles of the plan, and of all others that changes lead to, up to `MOST_PLANS`."""
    seen = {unordered(first.assignment)}
    waiting = [first]
    while waiting and len(seen) < MOST_PLANS:
        found = waiting.pop()
        estimate = prices.of(found)
        if estimate is None:
            continue
        yield estimate.cycles
        for n in neighbours(found, types=False):
            if of_order_or_kernel(found, n) and unordered(n.assignment) not in seen:
                seen.add(unordered(n.assignment))
                waiting.append(found.but(n.assignment))


def chosen(graph: Graph, machine: Machine) -> Realisation:
    """The plan of the choices one after the other."""
    return joined(greedy(prepare(graph), machine).realisation)


@record
class Gaps:
    """What plans take by the best one: that of the choices, the usual one, what a search finds."""

    chosen: float
    usual: float
    searched: float


def gaps(graph: Graph, machine: Machine) -> Gaps | None:
    """How far plans are from the best; None where there are too many to know it."""
    first = chosen(graph, machine)
    prices = Prices(first, machine)
    every = list(every_plan(first, prices))
    if len(every) >= MOST_PLANS:
        return None
    search = EstimateSearch(first, machine, least_gain=0.0, allowed=of_order_or_kernel)
    best, found = min(every), search.run()
    own = prices.legal(refined(first, machine)).cycles
    return Gaps(found.first_cycles / best, own / best, found.estimate.cycles / best)


def main() -> None:
    """Say how far plans of many graphs are from the best."""
    parser = argparse.ArgumentParser(prog="python -m tests.optimum", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="graphs (200)")
    parser.add_argument("--most", type=int, default=5, help="nests of a graph, at most (5)")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph (0)")
    parser.add_argument("--mixed", action="store_true", help="turned and joined values, too")
    args = parser.parse_args()
    make = mixed_graph if args.mixed else small_graph
    seeds = range(args.seed, args.seed + args.count)
    found = {seed: gaps(make(seed, args.most), V3) for seed in seeds}
    known = {seed: x for seed, x in found.items() if x is not None}
    print(f"{len(known)} graphs, and {len(found) - len(known)} that have too many plans")
    for name in ("chosen", "usual", "searched"):
        each = {seed: getattr(x, name) for seed, x in known.items()}
        far = {seed: round(x, 3) for seed, x in each.items() if x > CLOSE}
        ordered = sorted(each.values())
        print(
            f"{name}: within {CLOSE - 1:.0%} of the best {len(each) - len(far)}, "
            f"median {median(ordered):.3f}, mean {mean(ordered):.3f}, "
            f"95th percentile {ordered[int(0.95 * len(ordered))]:.3f}, worst {ordered[-1]:.3f}; "
            f"farther: {far}"
        )


if __name__ == "__main__":
    main()
