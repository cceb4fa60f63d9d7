"""Schedules timed in their model: as many at once as there are launches, crashes told apart."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from rutc.driver.parts.build import PlanVersion
from rutc.driver.parts.compile_job import draft, made_of
from rutc.driver.plans.planning import planned
from rutc.driver.timing import model_bench as in_model
from rutc.driver.timing.launch_times import Enough, Profiled, run_in_turns
from rutc.driver.timing.model_bench import HandedOut, ModelBench, Planned, Subject, Try
from rutc.emit.targets import native_target
from rutc.errors import InternalError, UserError
from rutc.graph_opt import versions
from rutc.tensor_ir.indices.affine import Index
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner import choose
from rutc.tuner.heuristic import spaces
from rutc.verify.judging.compare import Value
from tests.graph_opt.test_decide_slices import SOFTMAX
from tests.signals import crash

MACHINE = native_target().machine
PRODUCTS = """
graph "products"
dims i = 96, a = 128, b = 128, c = 128
%x : f32{i,a} = input "x" [i, a]
%v : f32{a,b} = input "v" [a, b]
%w : f32{b,c} = input "w" [b, c]
%h : f32{i,b} = sum{a} %x[i, a] * %v[a, b]
%s : f32{i} = sum{b} %h[i, b]
%y : f32{i,c} = sum{b} %h[i, b] * %w[b, c]
output "y" [i, c] = %y
output "s" [i] = %s
"""
"""The two products are one kernel but for its names."""


@pytest.fixture(scope="module")
def model() -> Planned:
    """A model with two launches of a kernel, and one of another."""
    plan, others = planned(versions(parse(PRODUCTS), MACHINE), MACHINE)
    return Planned(plan, others, MACHINE)


@pytest.fixture
def bench(model: Planned, tmp_path: Path) -> Iterator[ModelBench]:
    """A bench for it."""
    with ModelBench(model, tmp_path, 2) as found:
        yield found


@pytest.fixture(scope="module")
def product(model: Planned) -> Subject:
    """The kernel of the products."""
    return next(s for s, launches in model.launches().items() if len(launches) == 2)


def others_of(subject: Subject, count: int) -> list[Try]:
    """So many schedules that are not the default one."""
    rng, found = Random(1), {}
    usual = choose(subject.kernel, subject.machine, subject.constants)
    own = spaces(subject.kernel, subject.machine, subject.constants, fixed=("parallel",))
    while len(found) < count:
        drawn = own[0].draw(rng)
        if drawn is not None and drawn[1] != usual:
            found[str(drawn[1])] = Try(subject, drawn[1])
    return list(found.values())


def symbol_of(model: Planned, t: Try) -> str:
    """The function that a schedule becomes."""
    (first, _) = model.launches()[t.subject]
    job = first.job.chosen(HandedOut({t.subject: (t.choice,)}), model.seen())
    return made_of(draft(job, model.seen()), model.seen(), code=False).symbol


def test_default_schedules_are_timed_as_often_as_they_run(
    bench: ModelBench, product: Subject
) -> None:
    usual = bench.usual()
    assert usual[product].calls == 2
    assert usual[product].timing.ns > 1000
    assert usual[product].timing.low <= usual[product].timing.ns <= usual[product].timing.high


def test_each_launch_tries_a_schedule_of_its_own(bench: ModelBench, product: Subject) -> None:
    bench.usual()
    assert bench.room(product, {}) == 2
    assert bench.room(product, {product: in_model.ROUND}) == 0
    outcomes = bench.time(others_of(product, 3))
    assert [o.status for o in outcomes] == ["measured"] * 3
    for o in outcomes:
        assert o.model is not None
        assert o.near is o.far is None
        assert 0 < o.model.low <= o.model.ns <= o.model.high


def test_the_default_schedule_takes_what_it_takes(bench: ModelBench, product: Subject) -> None:
    usual = bench.usual()[product].timing.cycles
    same = Try(product, choose(product.kernel, product.machine, product.constants))
    (outcome,) = bench.time([same])
    assert outcome.cycles == pytest.approx(usual, rel=0.5)


@pytest.mark.parametrize("kept", [False, True])
def test_subnormal_numbers_are_kept_where_schedules_are_timed(kept: bool, tmp_path: Path) -> None:
    graph = parse(
        'graph "g"\ndims i = 64\n%x : f32{i} = input "x" [i]\n'
        '%y : f32{i} = %x[i] * 0.5\noutput "y" [i] = %y'
    )
    plan, others = planned(versions(graph, MACHINE), MACHINE)
    own = Planned(plan, others, MACHINE, keep_subnormals=kept)
    x = np.full(64, np.finfo(np.float32).smallest_subnormal * 8, np.float32)
    with ModelBench(own, tmp_path, 2) as bench:
        libraries = [bench.default, own.written(tmp_path / "other.so")]
    for artifact in libraries:
        with Profiled(artifact.library) as found:
            (y,) = found.session.run(None, {"x": x})
            assert isinstance(y, np.ndarray)
            assert np.all((y != 0) == kept)


def test_launches_of_plans_that_do_not_run_try_nothing(tmp_path: Path) -> None:
    """Of several plans with the same kernel, those that run have the schedules in turn."""
    graph = parse(PRODUCTS.replace("dims i = 96", "symbols n = 1..512\ndims i = n"))
    plan, _ = planned(versions(graph, MACHINE), MACHINE)
    few = PlanVersion(plan, 8 - Index.of("n"))
    model = Planned(plan, (few,), MACHINE, {"n": 96})
    subject = next(s for s, launches in model.launches().items() if len(launches) == 4)
    with ModelBench(model, tmp_path, 2) as bench:
        assert bench.usual()[subject].calls == 2
        assert bench.room(subject, {}) == 2
        outcomes = bench.time(others_of(subject, 3))
        assert [o.status for o in outcomes] == ["measured"] * 3
        for o in outcomes:
            assert o.model is not None
            assert o.model.ns > 1000


def test_what_crashes_is_told_from_the_others(
    model: Planned, bench: ModelBench, product: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = others_of(product, 2)
    bad = symbol_of(model, tries[1])

    def dying(
        profiled: Sequence[Profiled],
        given: Mapping[str, Value],
        seconds: float,
        enough: Enough = lambda us: False,
    ) -> list[np.ndarray]:
        found = run_in_turns(profiled, given, seconds, enough)
        if bad in profiled[-1].names:
            crash()
        return found

    monkeypatch.setattr(in_model, "run_in_turns", dying)
    outcomes = bench.time(tries)
    assert [o.status for o in outcomes] == ["measured", "crashed"]
    assert outcomes[1].error == "SIGSEGV"


@pytest.mark.parametrize(
    ("error", "status"), [(UserError("no code"), "failed"), (InternalError("dead"), "crashed")]
)
def test_what_does_not_compile_is_told_from_the_others(
    model: Planned,
    bench: ModelBench,
    product: Subject,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: str,
) -> None:
    tries = others_of(product, 2)
    bench.usual()
    (first, _) = model.launches()[product]
    bad = first.job.chosen(HandedOut({product: (tries[0].choice,)}), model.seen())
    make = in_model.make

    def made(job: object, machine: object) -> object:
        if job == bad:
            if isinstance(error, InternalError):
                os.kill(os.getpid(), signal.SIGKILL)
            raise error
        return make(job, machine)  # type: ignore[arg-type]

    monkeypatch.setattr(in_model, "make", made)
    monkeypatch.setattr(in_model.cache, "lookup", lambda name: None)
    outcomes = bench.time(tries)
    assert [o.status for o in outcomes] == [status, "measured"]
    assert outcomes[0].error


def test_kernels_of_a_chain_take_turns(tmp_path: Path) -> None:
    """What the function of a chain takes more is due to one of its kernels."""
    graph = parse(SOFTMAX.format(h=4, k=64, n=64, s=256, t=256))
    plan, others = planned(versions(graph, MACHINE), MACHINE)
    own = Planned(plan, others, MACHINE)
    parts = [s for s, (p, *_) in own.launches().items() if len(p.job.kernels) > 1]
    assert len(parts) > 1
    with ModelBench(own, tmp_path, 2) as bench:
        usual = bench.usual()
        first, second = parts[:2]
        assert bench.room(first, {}) == 1
        assert bench.room(second, {first: 1}) == 0
        whole = sum(usual[s].timing.ns * usual[s].calls for s in parts)
        assert whole > usual[first].timing.ns
        tries = [*others_of(first, 1), *others_of(second, 1)]
        assert all(o.status == "measured" for o in bench.time(tries))
