"""The code of a model's kernels, of equal ones made once, begun while others are being found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Self

from rutc.driver.parts.compile_job import (
    Chooser,
    CompileJob,
    Draft,
    Made,
    draft,
    key,
    made_of,
    make,
)
from rutc.driver.parts.launches import Pending
from rutc.driver.parts.worker_pool import Pool
from rutc.emit import cache
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.statements import walk_loops, walk_stmts

OnDraft = Callable[[Pending, Made, Draft], None]
OnMade = Callable[[Pending, Made], None]


class Compilation:
    """What becomes of the kernels of a model.

    with Compilation(machine, jobs) as kernels:
        for pending in ...:
            kernels.add(pending)    # its code is begun
        kernels.made()              # of every kernel in the order of adding, with its schedule
    """

    def __init__(
        self,
        machine: Machine,
        jobs: int,
        *,
        chooser: Chooser | None = None,
        code: bool = True,
        on_kernel: Callable[[int, int], None] = lambda done, total: None,
        on_draft: OnDraft | None = None,
    ) -> None:
        """At most `jobs` processes work at once; without `code` kernels are drafted only, here.

        `chooser` gives kernels other schedules than their default ones. `on_kernel` is told how
        many are done of how many different ones, `on_draft` what became of every kernel, in order.
        """
        self.machine = machine
        self.chooser = chooser
        self.code = code
        self.on_kernel = on_kernel
        self.on_draft = on_draft
        self._kernels: list[tuple[Pending, str]] = []
        self._jobs: dict[str, CompileJob] = {}
        self._found: dict[str, Made] = {}
        self._missing: list[str] = []
        """The keys of the pool's tasks."""
        self._pool = Pool(self._work, jobs)

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.__exit__(*error)

    def add(self, pending: Pending) -> None:
        """Adds a kernel, and begins its code if no equal one is known.

        Raises:
            Exception: see `Pool.add`.
        """
        job = pending.job
        if self.chooser is not None:
            job = job.chosen(self.chooser, self.machine)
            pending = replace(pending, job=job)
        name = key(job, self.machine)
        self._kernels.append((pending, name))
        if name in self._jobs:
            return
        self._jobs[name] = job
        if not self.code:
            return
        data = cache.lookup(name)
        known_already = None if data is None else Made.found(data)
        if known_already is not None:
            self._found[name] = known_already
            return
        self._missing.append(name)
        # The largest first, so that none ends long after the others.
        self._pool.add((name, job), _statements(job), _alike(job))

    def made(self, on_made: OnMade = lambda pending, made: None) -> Iterator[tuple[Pending, Made]]:
        """Yields the kernels in the order in which they were added, and what becomes of each.

        Of those that have code made for them `on_made` is told before, as soon as they have it.

        Raises:
            Exception: see `Pool.done`.
        """
        if not self.code:
            yield from self._drafted()
            return
        self._tell()
        done = self._pool.done(self._tell)
        equal: dict[str, list[Pending]] = {}
        for pending, name in self._kernels:
            equal.setdefault(name, []).append(pending)
        shown: set[str] = set()
        for pending, name in self._kernels:
            while name not in self._found:
                number, data = next(done)
                ended = self._missing[number]
                made = self._found[ended] = Made.decoded(data)
                self._tell()
                for other in equal[ended]:
                    on_made(other, made)
            made = self._found[name]
            if self.on_draft is not None and name not in shown:
                shown.add(name)
                self.on_draft(pending, made, draft(pending.job, self.machine))
            yield pending, made

    def _drafted(self) -> Iterator[tuple[Pending, Made]]:
        """Yields the kernels, and what is known of each without machine code."""
        drafts = {name: draft(job, self.machine) for name, job in self._jobs.items()}
        for pending, name in self._kernels:
            made = made_of(drafts[name], self.machine, code=False)
            if self.on_draft is not None:
                self.on_draft(pending, made, drafts[name])
            yield pending, made

    def _tell(self) -> None:
        self.on_kernel(len(self._found), len(self._jobs))

    def _work(self, task: tuple[str, CompileJob]) -> bytes:
        """Makes the code of a job, and keeps it under its key."""
        name, job = task
        data = make(job, self.machine).encoded()
        cache.store(name, data)
        return data


def _alike(job: CompileJob) -> Hashable:
    """What jobs have in common whose code may be equal: all but sizes that a run tells."""
    return tuple(
        (tuple(b.dtype for b in k.args), tuple(x.hi.const for x in walk_loops(k.body)))
        for k in job.kernels
    )


def _statements(job: CompileJob) -> int:
    """How much there is to emit, roughly."""
    return sum(1 for k in job.kernels for _ in walk_stmts(k.body))
