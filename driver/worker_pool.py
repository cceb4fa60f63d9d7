"""Work shared out to processes, which are forked for it: nothing has to be imported or sent."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait

from rutc.base.processes import end_with_parent
from rutc.emit.interrupts import ignore, uninterrupted
from rutc.errors import InternalError, RutcError, UserError

Work = Callable[[int], bytes]
"""Does the task of a number."""

TICK_S = 0.25
"""How often whoever waits for a task looks at something else."""
YOUNG_OBJECTS = 100_000
"""Objects made before a process looks for cycles among them: modules are large and soon dropped."""


def done_in_pool(
    tasks: Sequence[int],
    work: Work,
    jobs: int,
    meanwhile: Callable[[], None] = lambda: None,
    *,
    apart: bool = False,
) -> Generator[tuple[int, bytes]]:
    """Yields (task, what `work` returned for it) in the order in which tasks end.

    They begin in the order given, at most `jobs` at a time. A process that has other threads does
    all itself: a lock that one of them holds would stay locked in a copy of the process. So does
    one that has a single task. But with `apart` none is done here: tasks may end their process.
    `meanwhile` is called now and then as long as none has ended.

    Raises:
        UserError: the system ended a process.
        InternalError: a process ended before its task did.
        Exception: what `work` raised.
    """
    count = min(jobs, len(tasks))
    waiting = list(reversed(tasks))
    workers: dict[Connection, int] = {}
    try:
        if apart or (count > 1 and threading.active_count() == 1):
            # Where the system allows fewer processes, fewer do it.
            with suppress(OSError):
                for _ in range(count):
                    with uninterrupted():
                        pipe, process = forked(partial(_serve, work), list(workers))
                        workers[pipe] = process
        if not workers:
            for task in tasks:
                yield task, work(task)
            return
        for pipe in workers:
            # Whether it still lives is found when its answer is awaited.
            with suppress(ConnectionError):
                pipe.send(waiting.pop())
        for _ in tasks:
            while not (ready := wait(list(workers), TICK_S)):
                meanwhile()
            pipe = next(p for p in ready if isinstance(p, Connection))
            try:
                task, result = pipe.recv()
                if waiting:
                    pipe.send(waiting.pop())
            except (EOFError, ConnectionError):
                with uninterrupted():
                    _, status = os.waitpid(workers.pop(pipe), 0)
                raise _death(os.waitstatus_to_exitcode(status)) from None
            if isinstance(result, BaseException):
                raise result
            yield task, result
    finally:
        with uninterrupted():
            for pipe, process in workers.items():
                pipe.close()
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(process, 0)


def _death(code: int) -> RutcError:
    """The error that a process has ended; Linux ends those that take the last of the memory."""
    if code == -signal.SIGKILL:
        return UserError(
            "a compiling process was killed, as the system does where memory is short: "
            "compile fewer kernels at once (--jobs 1), or with more memory"
        )
    return InternalError(f"a compiling process ended: {death(code)}")


def death(code: int) -> str:
    """How a process ended, by its exit code: the name of a signal, or its status."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def forked(
    serve: Callable[[Connection], None], others: Sequence[Connection] = ()
) -> tuple[Connection, int]:
    """A new process that serves at the other end of a pipe, and ends with this one.

    It closes the `others`, which are pipes to other processes.

    Raises:
        OSError: the system allows no more.
    """
    ours, theirs = Pipe()
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            for unused in (ours, *others):
                unused.close()
            _end_with(parent)
            serve(theirs)
            status = 0
        finally:
            # Without the clean-up that is the parent's.
            os._exit(status)
    theirs.close()
    return ours, process


def _end_with(parent: int) -> None:
    """Ends this process when that one ends, in whatever way."""
    ignore()
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _serve(work: Work, pipe: Connection) -> None:
    """Does tasks until there is nobody who sends any."""
    # What the parent made is not looked through again: pages stay shared with it.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()
    with suppress(EOFError, ConnectionError):
        while True:
            task = pipe.recv()
            try:
                pipe.send((task, work(task)))
            except Exception as error:
                error.add_note(traceback.format_exc())
                pipe.send((task, error))
