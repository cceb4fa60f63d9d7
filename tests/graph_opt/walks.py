"""`python -m tests.graph_opt.walks`: random legal assignments compute what their graphs say.

Of each network, assignments are a few random changes away from the one that is chosen. Their plans
are interpreted, and a part of them is compiled and run as well.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from rutc.graph_opt import optimize
from rutc.graph_opt.alternatives import DIRECT, Assigned
from rutc.graph_opt.alternatives.choices import offers, with_algorithms
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.neighbours import legal, neighbours
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.decide.realise import Realisation
from rutc.graph_opt.pipeline import pipeline_for
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from rutc.verify.judging.tolerance import Level
from tests.compiled import build, run
from tests.graph_opt.networks import NETWORKS, graph_of
from tests.graph_opt.plan_runner import run_plan
from tests.kernels import assert_agree
from tests.lock.texts import TARGETS
from tests.machines import runnable
from tests.strategies import random_inputs

REDUCTION = 64
"""As long as the longest sums of the networks, about."""
FILTERED = 64 * REDUCTION
"""Sums that err as much as filtered ones."""
MOST_CHANGES = 8


def walked(found: Realisation, rng: Random, changes: int) -> Realisation:
    """A legal assignment so many random changes away, or fewer where there are no more."""
    for _ in range(changes):
        near = list(neighbours(found))
        rng.shuffle(near)
        found = next((x for n in near if (x := legal(found, n)) is not None), found)
    return found


@cache
def _imported(name: str) -> Graph:
    return graph_of(name)


def algorithms(graph: Graph, machine: Machine, rng: Random) -> Assigned:
    """Random algorithms of some of an imported graph's sums."""
    found: dict[str, str] = {}
    for o in offers(graph, machine, DIRECT):
        if rng.random() < 0.3:
            found[o.value] = o.algorithm
    return Assigned(tuple(found.items()))


def check(name: str, machine: Machine, seed: int, *, compiled: bool) -> Realisation:
    """An assignment of a network whose plan has computed what the graph says.

    Raises:
        AssertionError: It computes something else; the message has the assignment.
    """
    rng = Random(zlib.crc32(f"{name} {machine.name} {seed}".encode()))
    graph = _imported(name)
    direct = optimize(graph, pipeline=pipeline_for(machine, assigned=DIRECT))
    assigned = algorithms(graph, machine, rng) if rng.random() < 0.5 else DIRECT
    prepared = prepare(with_algorithms(graph, machine, assigned))
    before = greedy(prepared, machine).realisation
    before = before.but(replace(before.assignment, algorithms=assigned.algorithms))
    found = walked(before, rng, rng.randint(1, MOST_CHANGES))
    inputs = random_inputs(prepared.graph, rng.randint(0, 99))
    wanted = interpret(direct, inputs)
    results = {"interpreted": run_plan(found.plan, inputs)}
    if compiled and runnable(machine):
        with tempfile.TemporaryDirectory() as folder:
            library = build(found.plan, machine, Path(folder))
            results["compiled"] = run(library, inputs, rng.choice((1, 2)))
    for how, got in results.items():
        for output, array in wanted.items():
            where = f"{output} of {name} for {machine.name}, {how}:\n{found.assignment}"
            reduction = FILTERED if assigned.algorithms else REDUCTION
            level = Level.REDUCED if found.assignment.types else Level.KERNEL
            assert_agree(where, got[output], array, exact=False, reduction=reduction, level=level)
    return found


def main() -> None:
    """Check as many assignments as are asked for, and say what they have."""
    parser = argparse.ArgumentParser(prog="python -m tests.graph_opt.walks", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="assignments (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes (0)")
    parser.add_argument("--compile", type=int, default=10, help="compile one in so many (10)")
    parser.add_argument("--network", action="append", help="only this network")
    args = parser.parse_args()
    names = args.network or list(NETWORKS)
    machines = [TARGETS["x86-64-v3"], TARGETS["x86-64-v4"], TARGETS["amx"]]
    failed = 0
    counts: Counter[str] = Counter()
    for number in range(args.count):
        name = names[number % len(names)]
        machine = machines[number // len(names) % len(machines)]
        compiled = args.compile > 0 and number % args.compile == 0
        try:
            said = check(name, machine, args.seed + number, compiled=compiled).assignment
        except Exception as e:
            failed += 1
            print(f"{name} {machine.name} seed {args.seed + number}: {type(e).__name__}: {e}")
            continue
        counts["with algorithms"] += bool(said.algorithms)
        counts["that recompute"] += bool(said.recomputed)
        counts["with types"] += bool(said.types)
        counts["with copies"] += bool(said.copies)
        counts["with blocks"] += any(a.blocks for a in said.arrangements.values())
        counts["with slices"] += bool(said.slices)
        counts["with turns"] += bool(said.turns)
        counts["compiled"] += compiled and runnable(machine)
        counts["different"] += 1
    print(f"{args.count} assignments of {len(names)} networks: {failed} failed; {dict(counts)}")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
