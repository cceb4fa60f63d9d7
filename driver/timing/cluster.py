"""Candidates timed in their model by the workers of a `dask.distributed` cluster.

Each worker times rounds of its own (`driver.timing.model_bench`), beside default schedules that it
runs itself, so what they tell are ratios. A worker counts that has the same rutc and the same
processor as this machine. What a worker that ends had to do is done by the others; workers may join
at any time.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Self

from rutc.base.record import record
from rutc.driver.timing.bench_server import BenchServer
from rutc.driver.timing.model_bench import ROUND, ModelBench, Planned, Subject, Try, Usual
from rutc.driver.timing.trials import Outcome
from rutc.errors import UserError

if TYPE_CHECKING:
    from distributed import Client, Future

ATTEMPTS = 3
"""So often a worker may end over a trial before the trial counts as what ended it."""
WAIT_S = 1.0
"""How often workers are looked for."""
POLL_S = 0.02
CONNECT_S = 10.0

_planned: dict[str, bytes] = {}
"""In a worker: what is planned, by a name."""
_servers: dict[str, BenchServer] = {}
"""In a worker: the processes that time it."""


@record
class Facts:
    """What has to be the same for times to tell something: rutc, and the processor."""

    sources: str
    processor: str
    features: tuple[str, ...]


def facts() -> Facts:
    """Returns those of this process."""
    from rutc.driver.reuse import sources_digest
    from rutc.emit.targets.select import host_features, host_processor

    return Facts(sources_digest(), host_processor(), tuple(sorted(host_features())))


def plan(name: str, planned: bytes) -> None:
    """Tells a worker what is planned, for questions about that name; it forgets all others."""
    for server in _servers.values():
        server.close()
    _servers.clear()
    _planned.clear()
    _planned[name] = planned


def answer(name: str, question: bytes) -> Any:
    """Returns a worker's answer to a question about what is planned, of that name."""
    if name not in _servers:
        _servers[name] = BenchServer(_planned[name])
    try:
        return _servers[name].ask(question)
    except EOFError:
        # The next question begins another one.
        _servers.pop(name).close()
        raise


class Cluster:
    """A connection to a cluster's scheduler."""

    def __init__(self, address: str) -> None:
        """Connect.

        Raises:
            UserError: there is no scheduler, or what connects to it is not installed.
        """
        try:
            from distributed import Client
        except ImportError:
            raise UserError(
                "--cluster needs the package distributed: pip install 'rutc[cluster]'"
            ) from None
        try:
            self.client: Client = Client(address, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise UserError(
                f"no scheduler answers at {address} ({error}); begin one with `dask scheduler`"
            ) from error
        self._known: dict[str, Facts] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def workers(self) -> list[str]:
        """Returns the addresses of the workers that are like this machine."""
        there = list(self.client.scheduler_info(n_workers=-1)["workers"])
        new = [w for w in there if w not in self._known]
        if new:
            told = self.client.run(facts, workers=new, on_error="ignore")
            self._known |= {w: f for w, f in told.items() if isinstance(f, Facts)}
        own = facts()
        return [w for w in there if self._known.get(w) == own]

    def require(self) -> list[str]:
        """Returns the same, of which there is one at least.

        Raises:
            UserError: there is none; the text says why the others do not count.
        """
        found = self.workers()
        if not found:
            own = facts()
            others = [self._unlike(w, f, own) for w, f in self._known.items()]
            why = "; ".join(others) or "it has none"
            raise UserError(f"the cluster has no worker like this machine: {why}")
        return found

    @staticmethod
    def _unlike(worker: str, other: Facts, own: Facts) -> str:
        if other.sources != own.sources:
            return f"{worker} has another rutc"
        return f"{worker} is a {other.processor}, not a {own.processor} with the same features"


class ClusterBench:
    """Times schedules as `ModelBench` does, as many rounds at once as there are workers."""

    def __init__(self, local: ModelBench, planned: Planned, cluster: Cluster) -> None:
        """For what is planned; `local` tells what fits into a round.

        Raises:
            UserError: no worker is like this machine.
        """
        self._local, self._cluster = local, cluster
        self._planned = pickle.dumps(planned)
        self._name = f"{id(self)} {cluster.client.id}"
        self._told: set[str] = set()
        self._usual: dict[str, Mapping[Subject, Usual]] = {}
        self._first: Mapping[Subject, Usual] | None = None
        cluster.require()

    def usual(self) -> Mapping[Subject, Usual]:
        """Returns what subjects take with default schedules on one of the workers.

        Raises:
            UserError: the model does not run, or no worker is left.
        """
        while self._first is None:
            asked = {w: self._ask(w, None) for w in self._cluster.require()}
            for worker, future in asked.items():
                while not _ended(future) and worker in self._cluster.workers():
                    _pause([future])
                self._take_usual(worker, future)
        return self._first

    def _take_usual(self, worker: str, future: Future) -> None:
        found = _result(future)
        if found is not None:
            self._usual[worker] = found
            self._first = self._first or found

    def room(self, subject: Subject, taken: Mapping[Subject, int]) -> int:
        """Returns how many schedules of a subject fit into a round of each worker."""
        return self._local.room(subject, taken, max(len(self._usual), 1))

    def time(self, tries: Sequence[Try]) -> list[Outcome]:
        """Returns what becomes of each.

        Raises:
            UserError: no worker is left.
        """
        found: dict[int, Outcome] = {}
        waiting = deque(range(len(tries)))
        ended: Counter[int] = Counter()
        busy: dict[str, tuple[Future, list[int]]] = {}
        while waiting or busy:
            workers = self._cluster.workers() if busy else self._cluster.require()
            for worker in workers:
                if worker in busy or not waiting:
                    continue
                if worker not in self._usual:
                    busy[worker] = self._ask(worker, None), []
                    continue
                idle = max(1, sum(w not in busy for w in workers))
                share = min(ROUND, -(-len(waiting) // idle))
                own = [waiting.popleft() for _ in range(share)]
                busy[worker] = self._ask(worker, [tries[n] for n in own]), own
            _pause([future for future, _ in busy.values()])
            left = self._cluster.workers()
            for worker, (future, own) in list(busy.items()):
                if not _ended(future) and worker in left:
                    continue
                del busy[worker]
                if not own:
                    self._take_usual(worker, future)
                    continue
                outcomes = _result(future)
                if outcomes is not None:
                    for n, outcome in zip(own, outcomes, strict=True):
                        found[n] = self._as_on_the_first(worker, tries[n].subject, outcome)
                    continue
                future.cancel()
                self._usual.pop(worker, None)
                for n in own:
                    ended[n] += 1
                    if ended[n] < ATTEMPTS:
                        waiting.append(n)
                    else:
                        found[n] = Outcome("crashed", error="its worker ended")
        return [found[n] for n in range(len(tries))]

    def _ask(self, worker: str, question: list[Try] | None) -> Future:
        """The answer of a worker, which may still be waited for."""
        if worker not in self._told:
            self._told.add(worker)
            told = self._name, self._planned
            self._cluster.client.run(plan, *told, workers=[worker], on_error="ignore")
        return self._cluster.client.submit(
            answer,
            self._name,
            pickle.dumps(question),
            workers=[worker],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def _as_on_the_first(self, worker: str, subject: Subject, outcome: Outcome) -> Outcome:
        """An outcome by the default schedule of the first worker instead of that of its own."""
        t = outcome.model
        if t is None or self._first is None:
            return outcome
        own = self._usual[worker][subject].timing.cycles
        factor = own / self._first[subject].timing.cycles
        return replace(outcome, model=replace(t, cycle_ns=t.cycle_ns * factor))


def _pause(futures: Sequence[Future]) -> None:
    """Waits until one of some answers is there, for a moment at most."""
    end = monotonic() + WAIT_S
    while monotonic() < end and not any(map(_ended, futures)):
        sleep(POLL_S)


def _ended(future: Future) -> bool:
    return bool(future.status != "pending")


def _result(future: Future) -> Any:
    """What a worker answers; None if it has ended.

    Raises:
        UserError: the model does not run there.
    """
    if not _ended(future):
        return None
    try:
        return future.result(timeout=WAIT_S)
    except UserError:
        raise
    except Exception:
        # A worker, or the process that times for it, has ended: others go on.
        return None
