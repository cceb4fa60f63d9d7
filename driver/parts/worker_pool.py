"""Work shared out to processes, which are forked for it: nothing has to be imported."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from multiprocessing.connection import Connection, Pipe, wait
from typing import Generic, Self, TypeVar

from rutc.base.interrupts import ignore, uninterrupted
from rutc.base.processes import end_with_parent
from rutc.errors import InternalError, RutcError, UserError

T = TypeVar("T")

TICK_S = 0.25
"""How often whoever waits for a task looks at something else."""
YOUNG_OBJECTS = 1_000_000
"""Objects made before a process looks for cycles among them: modules are large and soon dropped."""


class Pool(Generic[T]):
    """Tasks that are done by processes while others are being found; each has a number from 0 on.

        with Pool(work, jobs) as pool:
            for task in ...:
                pool.add(task)                  # begins, if a process is free
            for number, result in pool.done():  # in the order in which tasks end
                ...

    At most `jobs` processes work at once, and until `done` is called this one is one of them. It
    does all itself if it has other threads: a lock that one of them holds would stay locked in a
    copy of the process. So it does if there is a single task. But with `apart` none is done here:
    tasks may end their process.
    """

    def __init__(self, work: Callable[[T], bytes], jobs: int, *, apart: bool = False) -> None:
        """No process yet. `work` does a task, which is sent to whoever does it."""
        self._work = work
        self._jobs = jobs
        self._apart = apart
        self._tasks = 0
        self._waiting: list[tuple[int, int, T, Hashable]] = []
        self._alike: dict[Connection, Hashable] = {}
        """What the tasks are like that processes have."""
        self._processes: dict[Connection, int] = {}
        self._free: list[Connection] = []
        self._ended: deque[tuple[int, bytes]] = deque()
        self._refused = False
        """Whether the system allowed no more processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with uninterrupted():
            for pipe, process in self._processes.items():
                pipe.close()
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(process, 0)
            self._processes.clear()

    def add(self, task: T, size: int = 0, alike: Hashable = None) -> None:
        """Adds a task; of those that wait the largest begins first, then the one added first.

        Tasks that are `alike`, if that is told, are not done at once where there are others: what
        one has made another may find.

        Raises:
            Exception: see `done`; of a task that was added before.
        """
        heappush(self._waiting, (-size, self._tasks, task, alike))
        self._tasks += 1
        if self._apart or self._tasks > 1:
            self._receive(0)
            self._send(self._jobs - 1)

    def done(self, meanwhile: Callable[[], None] = lambda: None) -> Iterator[tuple[int, bytes]]:
        """Yields (number, what `work` returned) of all tasks in the order in which they end.

        `meanwhile` is called now and then as long as none has ended.

        Raises:
            UserError: the system ended a process.
            InternalError: a process ended before its task did.
            Exception: what `work` raised.
        """
        while True:
            if self._apart or self._tasks > 1:
                self._send(self._jobs)
            if self._ended:
                yield self._ended.popleft()
            elif len(self._free) < len(self._processes):
                if not self._receive(TICK_S):
                    meanwhile()
            elif self._waiting:
                number, task, _ = self._next()
                yield number, self._work(task)
            else:
                return

    def _send(self, most: int) -> None:
        """Gives tasks to processes that have none, and to new ones while there are fewer."""
        while self._waiting and (self._free or self._forked(most)):
            number, task, alike = self._next()
            pipe = self._free.pop()
            self._alike[pipe] = alike
            # Whether it still lives is found when its answer is awaited.
            with suppress(ConnectionError):
                pipe.send((number, task))

    def _next(self) -> tuple[int, T, Hashable]:
        """(number, task, what it is like) of the task that begins next."""
        done_now = {x for x in self._alike.values() if x is not None}
        first = [heappop(self._waiting)]
        while first[-1][3] in done_now and self._waiting:
            first.append(heappop(self._waiting))
        # Of tasks that are all like those being done, the first is as good as any.
        _, number, task, alike = first.pop(-1 if first[-1][3] not in done_now else 0)
        for other in first:
            heappush(self._waiting, other)
        return number, task, alike

    def _forked(self, most: int) -> bool:
        """Whether there is a new process."""
        enough = self._refused or len(self._processes) >= most
        if enough or not (self._apart or (self._jobs > 1 and threading.active_count() == 1)):
            return False
        try:
            with uninterrupted():
                pipe, process = forked(partial(_serve, self._work), list(self._processes))
                self._processes[pipe] = process
        except OSError:
            # Where the system allows fewer processes, fewer do it.
            self._refused = True
            return False
        self._free.append(pipe)
        return True

    def _receive(self, seconds: float) -> bool:
        """Whether a task has ended, or does within that time."""
        ready = wait([pipe for pipe in self._processes if pipe not in self._free], seconds)
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                number, result = pipe.recv()
            except (EOFError, ConnectionError):
                with uninterrupted():
                    _, status = os.waitpid(self._processes.pop(pipe), 0)
                raise _death(os.waitstatus_to_exitcode(status)) from None
            if isinstance(result, BaseException):
                raise result
            self._free.append(pipe)
            self._alike.pop(pipe, None)
            self._ended.append((number, result))
        return bool(ready)


def done_in_pool(
    tasks: Sequence[int], work: Callable[[int], bytes], jobs: int, *, apart: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yields (task, what `work` returned for it) in the order in which tasks end.

    They begin in the order given, and are done as those of a `Pool` are.

    Raises:
        Exception: see `Pool.done`.
    """
    with Pool(work, jobs, apart=apart) as pool:
        for task in tasks:
            pool.add(task)
        for number, result in pool.done():
            yield tasks[number], result


def _death(code: int) -> RutcError:
    """The error that a process has ended; Linux ends those that take the last of the memory."""
    if code == -signal.SIGKILL:
        return UserError(
            "a compiling process was killed, as the system does where memory is short: "
            "compile fewer kernels at once (rutc compile --jobs 1), or with more memory"
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


def _serve(work: Callable[[T], bytes], pipe: Connection) -> None:
    """Does tasks until there is nobody who sends any."""
    # What the parent made is not looked through again: pages stay shared with it.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()
    with suppress(EOFError, ConnectionError):
        while True:
            number, task = pipe.recv()
            try:
                pipe.send((number, work(task)))
            except Exception as error:
                error.add_note(traceback.format_exc())
                pipe.send((number, error))
