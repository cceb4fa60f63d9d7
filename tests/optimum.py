"""`python -m tests.optimum`: how far plans of small graphs are from the best by the estimates.

Of each random graph all plans are estimated that changes of layouts and kernels lead to, one after
the other, from the usual plan on. Copies, blocks of dims, and values that are computed anew are
left out: with them there are too many.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from random import Random
from statistics import mean, median

from rutc.driver.plan_by_estimate import EstimateSearch, Prices, said
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import Neighbour, neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.tensor_ir import Graph
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.verifier import verify
from tests.machines import V3

SIZES = (16, 64, 96, 256)
MOST_PLANS = 3000
CLOSE = 1.02
"""A plan that takes so many times as long as the best is as good."""


def small_graph(seed: int, most: int) -> Graph:
    """A random graph of up to `most` nests over two of three dims, or over one."""
    rng = Random(seed)
    dims = ", ".join(f"{d} = {rng.choice(SIZES)}" for d in "abc")
    lines = [f'graph "small"\ndims {dims}']
    values: list[tuple[str, list[str]]] = []
    for number in range(rng.randint(1, 2)):
        own = sorted(rng.sample("abc", 2))
        values.append((f"x{number}", own))
        lines.append(f"%x{number} : f32{_set(own)} = input {_port(f'x{number}', own, rng)}")
    inputs, used = len(values), set[str]()
    for number in range(rng.randint(2, most)):
        value = rng.choice(values[-3:])
        read, out, others = _nest(value, values, rng)
        used |= {value[0], *others}
        values.append((f"v{number}", out))
        lines.append(f"%v{number} : f32{_set(out)} = {read}")
    results = [v for v in values[inputs:] if v[0] not in used]
    lines += [f"output {_port(*v, rng)} = %{v[0]}" for v in results]
    graph = parse("\n".join(lines) + "\n")
    verify(graph)
    return graph


def _nest(
    value: tuple[str, list[str]], values: list[tuple[str, list[str]]], rng: Random
) -> tuple[str, list[str], list[str]]:
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


def _set(dims: list[str]) -> str:
    return f"{{{','.join(dims)}}}"


def _read(value: tuple[str, list[str]]) -> str:
    return f"%{value[0]}[{', '.join(value[1])}]"


def _port(name: str, dims: list[str], rng: Random) -> str:
    return f'"{name}" [{", ".join(rng.sample(dims, len(dims)))}]'


def counted(n: Neighbour) -> bool:
    """Whether a change leads to one of the plans that are all estimated."""
    if n.kind == "layout":
        return not any(a.blocks for a in n.assignment.arrangements.values())
    return n.kind == "kernel"


def every_plan(first: Realisation, prices: Prices, most: int = MOST_PLANS) -> Iterator[float]:
    """Yields the cycles of the plan, and of all others that changes lead to: of so many at most."""
    seen = {said(first.assignment)}
    waiting = [first]
    while waiting and len(seen) < most:
        found = waiting.pop()
        estimate = prices.of(found)
        if estimate is None:
            continue
        yield estimate.cycles
        for n in neighbours(found, types=False):
            if counted(n) and said(n.assignment) not in seen:
                seen.add(said(n.assignment))
                waiting.append(found.but(n.assignment))


def usual(graph: Graph, machine: Machine) -> Realisation:
    """The plan that is chosen without a search."""
    return greedy(prepare(graph), machine).realisation


def gaps(graph: Graph, machine: Machine) -> tuple[float, float] | None:
    """What the usual plan and the one searched for take, by the best; None: there are too many."""
    first = usual(graph, machine)
    every = list(every_plan(first, Prices(first, machine)))
    if len(every) >= MOST_PLANS:
        return None
    search = EstimateSearch(first, machine, least_gain=0.0, allowed=counted)
    found = search.run()
    return found.first_cycles / min(every), found.estimate.cycles / min(every)


def main() -> None:
    """Say how far plans of many graphs are from the best."""
    parser = argparse.ArgumentParser(prog="python -m tests.optimum", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="graphs (200)")
    parser.add_argument("--most", type=int, default=5, help="nests of a graph, at most (5)")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph (0)")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.count)
    found = [gaps(small_graph(seed, args.most), V3) for seed in seeds]
    known = [x for x in found if x is not None]
    print(f"{len(known)} graphs, and {len(found) - len(known)} that have too many plans")
    for name, each in zip(("greedy", "search"), zip(*known, strict=True), strict=True):
        close = sum(x <= CLOSE for x in each)
        print(
            f"{name}: within {CLOSE - 1:.0%} of the best {close}, median {median(each):.3f}, "
            f"mean {mean(each):.3f}, 95th percentile {sorted(each)[int(0.95 * len(each))]:.3f}, "
            f"worst {max(each):.3f}"
        )


if __name__ == "__main__":
    main()
