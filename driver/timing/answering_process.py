"""A process that answers questions: what crashes or hangs there is an answer, too."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any, Self

from rutc.base.interrupts import uninterrupted
from rutc.driver.parts.worker_pool import death, forked
from rutc.errors import RutcError

Answer = Callable[[Any], Any]
"""Answers a question; both are sent between processes."""


class Unanswered(Exception):
    """There is no answer: the process ended, or takes too long."""


class Ended(Unanswered):
    """The process ended; the text says how."""


class TooLong(Unanswered):
    """The answer takes too long."""


class Served:
    """A process that answers questions one after the other, and is replaced when it ends."""

    def __init__(self, begin: Callable[[], Answer], cpu: int | None = None) -> None:
        """`begin` is called in each process and returns what answers there.

        The process begins with the first question, and runs on one CPU if that is given.
        """
        self._begin = begin
        self._cpu = cpu
        self._pipe: Connection | None = None
        self._process = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, question: Any, timeout_s: float) -> Any:
        """Returns the answer to a question.

        Raises:
            Ended: the process ended before it answered.
            TooLong: it took longer; the process was ended.
            RutcError: what answering raised; other errors end the process.
        """
        try:
            pipe = self._begun()
            pipe.send(question)
            answer = _received(pipe, timeout_s)
        except (EOFError, ConnectionError):
            raise Ended(self._ended()) from None
        except BaseException:
            # Nobody waits for the answer: the next one would be taken for it.
            self.close()
            raise
        if isinstance(answer, RutcError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process; the next question begins another."""
        if self._pipe is None:
            return
        with uninterrupted():
            self._pipe.close()
            self._pipe = None
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._process, 0)

    def _ended(self) -> str:
        """Why the process has ended."""
        with uninterrupted():
            assert self._pipe is not None
            self._pipe.close()
            self._pipe = None
            try:
                _, status = os.waitpid(self._process, 0)
            except ChildProcessError:
                return "its process has ended"
        return death(os.waitstatus_to_exitcode(status))

    def _begun(self) -> Connection:
        if self._pipe is not None:
            return self._pipe
        with uninterrupted():
            self._pipe, self._process = forked(self._serve)
        return self._pipe

    def _serve(self, pipe: Connection) -> None:
        """Answers until there is nobody who asks."""
        if self._cpu is not None:
            with suppress(OSError):
                os.sched_setaffinity(0, {self._cpu})
        gc.freeze()
        answer: Answer | None = None
        with suppress(EOFError, ConnectionError):
            while True:
                question = pipe.recv()
                try:
                    answer = answer or self._begin()
                    found = answer(question)
                except RutcError as error:
                    found = error
                pipe.send(found)


def _received(pipe: Connection, timeout_s: float) -> Any:
    """What comes through a pipe.

    Raises:
        TooLong: nothing does in time.
    """
    end = monotonic() + timeout_s
    while not pipe.poll(min(0.5, max(0.0, end - monotonic()))):
        if monotonic() >= end:
            raise TooLong(f"it took more than {timeout_s:g} s")
    return pipe.recv()
