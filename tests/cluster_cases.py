"""Cases of `test_cluster`: schedules timed by the workers of a cluster, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import pytest
from distributed import LocalCluster
from onnx import helper

from rutc.driver.plans.planning import planned
from rutc.driver.timing import cluster as rutc_cluster
from rutc.driver.timing.bench_server import BenchServer
from rutc.driver.timing.cluster import Cluster, ClusterBench, Facts
from rutc.driver.timing.model_bench import ModelBench, Planned, Subject, Try
from rutc.driver.tuning.schedule_search import SearchLimits
from rutc.driver.tuning.search_terms import TimedRuns
from rutc.driver.tuning.tune_model import tune_model
from rutc.emit.targets import native_target
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.tensor_ir.textual.parse import parse
from rutc.tuner.database.database import Database
from tests.cli.conftest import build
from tests.driver.test_model_bench import PRODUCTS, others_of

MACHINE = native_target().machine


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The scheduler of a cluster of two workers."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
    ) as there:
        yield there.scheduler_address


@pytest.fixture
def workers(address: str) -> Iterator[Cluster]:
    """A connection to it, once both workers are there."""
    with Cluster(address) as found:
        found.client.wait_for_workers(2, timeout=60)
        yield found


@pytest.fixture(scope="module")
def model() -> Planned:
    """A model with two launches of a kernel, and one of another."""
    plan, others = planned(versions(parse(PRODUCTS), MACHINE), MACHINE)
    return Planned(plan, others, MACHINE)


@pytest.fixture
def bench(model: Planned, workers: Cluster, tmp_path: Path) -> Iterator[ClusterBench]:
    """A bench on the cluster."""
    with ModelBench(model, tmp_path, 2) as local:
        yield ClusterBench(local, model, workers)


@pytest.fixture
def tries(model: Planned) -> list[Try]:
    """Schedules for the kernel of the products."""
    product: Subject = next(s for s, launches in model.launches().items() if len(launches) == 2)
    return others_of(product, 6)


def test_both_workers_time_schedules(bench: ClusterBench, tries: list[Try]) -> None:
    usual = bench.usual()[tries[0].subject]
    assert usual.calls == 2
    assert bench.room(tries[0].subject, {}) == 4
    outcomes = bench.time(tries)
    assert [o.status for o in outcomes] == ["measured"] * 6
    for o in outcomes:
        assert o.cycles is not None
        assert usual.timing.cycles / 50 < o.cycles < usual.timing.cycles * 50
    assert len(bench._usual) == 2


def test_a_worker_that_is_killed_is_replaced_by_the_others(
    bench: ClusterBench, workers: Cluster, tries: list[Try]
) -> None:
    bench.usual()
    pids = workers.client.run(os.getpid)

    def kill() -> None:
        time.sleep(0.5)
        os.kill(next(iter(pids.values())), signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    outcomes = bench.time(tries)
    killer.join()
    assert [o.status for o in outcomes] == ["measured"] * 6
    workers.client.wait_for_workers(2, timeout=60)
    assert [o.status for o in bench.time(tries[:4])] == ["measured"] * 4


def test_workers_of_another_kind_do_not_count(
    workers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = rutc_cluster.facts()
    assert len(workers.require()) == 2
    monkeypatch.setattr(rutc_cluster, "facts", lambda: Facts(own.sources, "another", own.features))
    with pytest.raises(UserError, match=f"is a {own.processor}, not a another"):
        workers.require()
    monkeypatch.setattr(rutc_cluster, "facts", lambda: Facts("", own.processor, own.features))
    with pytest.raises(UserError, match="has another rutc"):
        workers.require()


def test_a_search_goes_to_the_cluster(workers: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "wide.onnx"
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 512)).astype(np.float32)}
    weights["v"] = rng.standard_normal((512, 256)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "v"], ["y"], name="second"),
    ]
    onnx.save(build(nodes, weights), path)
    with Database.open(str(tmp_path / "records.sqlite")) as database:
        runs = TimedRuns(cluster=workers)
        found = tune_model(path, database, SearchLimits(trials=12), runs=runs)
        assert found.trials >= 12
        # Default schedules are no trials, and are kept beside them.
        assert database.count() == found.trials + len(found.tuned)
        assert found.failed == 0


def test_no_scheduler_is_the_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rutc_cluster, "CONNECT_S", 0.5)
    with pytest.raises(UserError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"):
        Cluster("tcp://127.0.0.1:9")


def test_a_server_ends_with_who_began_it() -> None:
    code = (
        "import pickle\n"
        "from rutc.driver.timing.bench_server import BenchServer\n"
        "s = BenchServer(pickle.dumps(None))\n"
        "print(s._process.pid, flush=True)\n"
        "input()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as began:
        assert began.stdout is not None
        pid = int(began.stdout.readline())
        began.kill()
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("the server still runs")


def test_a_server_that_ends_is_told(model: Planned) -> None:
    import pickle

    server = BenchServer(pickle.dumps(model))
    try:
        assert server.ask(pickle.dumps(None))
        server._process.kill()
        with pytest.raises(EOFError):
            server.ask(pickle.dumps(None))
    finally:
        server.close()
