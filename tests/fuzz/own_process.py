"""A process that does cases, one after the other, and is started anew when one of them ends it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

PATIENCE = 20
"""What waits for something hangs after so many times the limit of processor time."""
Answer = TypeVar("Answer")


class Lost(Exception):
    """A case ended the process, a "crash", or took longer than it may, a "hang"."""

    def __init__(self, kind: str, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.stage, self.reason = kind, stage, reason


class Allowance:
    """The processor time that a process may take from now on, whatever else the machine does.

    What takes none, as it waits for what never comes, has `PATIENCE` times as long.
    """

    def __init__(self, pid: int, limit_s: float) -> None:
        self.pid, self.limit_s = pid, limit_s
        self.start, self.taken = monotonic(), _cpu_s(pid)

    def exceeded(self) -> str:
        """More than what the process took; "" where it may go on."""
        if _cpu_s(self.pid) - self.taken > self.limit_s:
            return f"{self.limit_s:g} s of processor time"
        if monotonic() - self.start > PATIENCE * self.limit_s:
            return f"{PATIENCE * self.limit_s:g} s"
        return ""


def _cpu_s(pid: int) -> float:
    """The processor time that a process has taken; 0 of one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class OwnProcess(Generic[Answer]):
    """Has a process of its own do cases: up to `most`, then another one, to give back memory.

    A case may take `limit_s` seconds of its processor time, see `Allowance`.
    """

    def __init__(self, limit_s: float, most: int) -> None:
        self.limit_s = limit_s
        self.most = most
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self.done = 0

    def work(self, case: Any, pipe: Connection) -> Answer:
        """What comes of a case, in the process; the pipe takes the stages that it comes to."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Done in the process before its first case."""

    def ask(self, case: Any) -> Answer:
        """What comes of a case. Raises Lost."""
        if self.process is None or self.done >= self.most:
            self.restart()
        assert self.pipe is not None
        assert self.process is not None
        self.done += 1
        assert self.process.pid is not None
        allowance = Allowance(self.process.pid, self.limit_s)
        self.pipe.send(case)
        stage = "start"
        while True:
            if not self.pipe.poll(1.0):
                if most := allowance.exceeded():
                    self.close()
                    raise Lost("hang", stage, f"more than {most} in {stage}")
                continue
            try:
                message = self.pipe.recv()
            except (EOFError, ConnectionResetError):
                self.process.join()
                code = self.process.exitcode or 0
                self.close()
                name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
                raise Lost("crash", stage, f"{name} in {stage}") from None
            if not isinstance(message, str):
                return message
            stage = message

    def restart(self) -> None:
        """Starts a fresh process."""
        self.close()
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self._serve, args=(theirs, self.pipe), daemon=True)
        self.process.start()
        theirs.close()
        self.done = 0

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
        if self.pipe is not None:
            self.pipe.close()
        self.process = self.pipe = None

    def _serve(self, pipe: Connection, other: Connection) -> None:
        other.close()
        faulthandler.disable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self.prepare()
        while True:
            try:
                case = pipe.recv()
            except EOFError:
                return
            pipe.send(self.work(case, pipe))
