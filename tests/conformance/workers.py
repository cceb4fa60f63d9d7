"""Worker processes that survive crashes and hangs of the work given to them."""

import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic

from tests.conformance.adapter import OnStage, Result

Work = Callable[[int, OnStage], Result]
"""Does the task of a number, telling the stages it comes to."""

TASKS_PER_PROCESS = 150
"""A process ends after so many, to give back the libraries that it loaded."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: int = -1
    stage: str = ""
    deadline: float = 0.0
    done: int = 0


def run_all(
    tasks: Sequence[int],
    work: Work,
    lost: Callable[[int, str, str], Result],
    *,
    jobs: int,
    timeout: float,
) -> Iterator[Result]:
    """Results in the order they come. `lost(task, stage, reason)` gives that of a lost worker."""
    waiting = list(reversed(tasks))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_start(work))
                _give(workers[-1], waiting.pop(), timeout)
            next_deadline = min(w.deadline for w in workers)
            ready = set(wait([w.pipe for w in workers], max(0.0, next_deadline - monotonic())))
            for w in list(workers):
                reason = ""
                if w.pipe in ready:
                    try:
                        message = w.pipe.recv()
                    except EOFError:
                        w.process.join()
                        reason = _death(w.process.exitcode)
                    else:
                        if isinstance(message, str):
                            w.stage = message
                            continue
                        yield message
                        w.done += 1
                        if waiting and w.done < TASKS_PER_PROCESS:
                            _give(w, waiting.pop(), timeout)
                            continue
                elif monotonic() > w.deadline:
                    reason = f"Timeout: more than {timeout:g} s"
                else:
                    continue
                if reason:
                    yield lost(w.task, w.stage, reason)
                _stop(w)
                workers.remove(w)
    finally:
        for w in workers:
            _stop(w)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"Crash: {signal.Signals(-code).name}"
    return f"Crash: exit status {code}"


def _start(work: Work) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, theirs, ours), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _give(worker: _Worker, task: int, timeout: float) -> None:
    worker.task, worker.stage, worker.deadline = task, "", monotonic() + timeout
    worker.pipe.send(task)


def _stop(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _serve(work: Work, pipe: Connection, other: Connection) -> None:
    other.close()
    faulthandler.disable()
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    while True:
        task = pipe.recv()
        pipe.send(work(task, pipe.send))
