"""A process that does cases, one after the other, and is started anew when one of them ends it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class Lost(Exception):
    """A case ended the process, a "crash", or took longer than it may, a "hang"."""

    def __init__(self, kind: str, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.stage, self.reason = kind, stage, reason


class OwnProcess(Generic[Answer]):
    """Has a process of its own do cases: up to `most`, then another one, to give back memory."""

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

    def begin(self) -> None:
        """Done where a case is handed out."""

    def left_s(self) -> float:
        """For how long to wait for a case before this is asked again; 0 where it takes too long."""
        raise NotImplementedError

    def ask(self, case: Any) -> Answer:
        """What comes of a case. Raises Lost."""
        if self.process is None or self.done >= self.most:
            self.restart()
        assert self.pipe is not None
        assert self.process is not None
        self.done += 1
        self.pipe.send(case)
        self.begin()
        stage = "start"
        while True:
            if not self.pipe.poll(left := max(0.0, self.left_s())):
                if not left:
                    self.close()
                    raise Lost("hang", stage, f"more than {self.limit_s:g} s in {stage}")
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
