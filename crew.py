"""Work shared out to processes, which are forked for it: nothing has to be imported or sent."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait

from rutc.errors import InternalError

Work = Callable[[int], bytes]
"""Does the task of a number."""

YOUNG_OBJECTS = 100_000
"""Objects made before a process looks for cycles among them: modules are large and soon dropped."""


def done_by_crew(tasks: Sequence[int], work: Work, jobs: int) -> Generator[tuple[int, bytes]]:
    """Yields (task, what `work` returned for it) in the order in which tasks end.

    They begin in the order given, at most `jobs` at a time. A process that has other threads does
    all itself: a lock that one of them holds would stay locked in a copy of the process.

    Raises:
        InternalError: a process ended before its task did.
        Exception: what `work` raised.
    """
    count = min(jobs, len(tasks))
    if count < 2 or threading.active_count() > 1:
        for task in tasks:
            yield task, work(task)
        return
    waiting = list(reversed(tasks))
    crew: dict[Connection, int] = {}
    try:
        for _ in range(count):
            pipe, process = _hired(work, list(crew))
            crew[pipe] = process
            pipe.send(waiting.pop())
        for _ in tasks:
            pipe = next(p for p in wait(list(crew)) if isinstance(p, Connection))
            try:
                task, result = pipe.recv()
                if waiting:
                    pipe.send(waiting.pop())
            except (EOFError, ConnectionError):
                _, status = os.waitpid(crew.pop(pipe), 0)
                raise InternalError(f"a compiling process ended: {_death(status)}") from None
            if isinstance(result, BaseException):
                raise result
            yield task, result
    finally:
        for pipe, process in crew.items():
            pipe.close()
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(process, 0)


def _death(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _hired(work: Work, others: Sequence[Connection]) -> tuple[Connection, int]:
    """A new process that waits for tasks."""
    ours, theirs = Pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            for unused in (ours, *others):
                unused.close()
            _serve(work, theirs)
            status = 0
        finally:
            # Without the clean-up that is the parent's.
            os._exit(status)
    theirs.close()
    return ours, process


def _serve(work: Work, pipe: Connection) -> None:
    """Does tasks until there is nobody who sends any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # What the parent made is not looked through again: pages stay shared with it.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    with suppress(EOFError, ConnectionError):
        while True:
            task = pipe.recv()
            try:
                pipe.send((task, work(task)))
            except Exception as error:
                error.add_note(traceback.format_exc())
                pipe.send((task, error))
