"""`python -m rutc.driver.timing.bench_server`: times schedules in a model for who sends questions.

A message is the eight bytes of its length and a pickle. The first is what is planned (`Planned`);
then a list of `Try` is answered by their outcomes, and None by what subjects take with default
schedules. What cannot be done is answered by its error. It is a process without other threads, so
that it can be copied for what may crash.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from contextlib import suppress
from os import sched_getaffinity
from pathlib import Path
from struct import Struct
from typing import IO, Any

from rutc.base.blas import one_blas_thread
from rutc.errors import RutcError

LENGTH = Struct("<Q")


def send(pipe: IO[bytes], message: bytes) -> None:
    """Sends the pickle of a message."""
    pipe.write(LENGTH.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Returns the next message.

    Raises:
        EOFError: there is none.
    """
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    return pickle.loads(pipe.read(LENGTH.unpack(head)[0]))


class BenchServer:
    """A process that times schedules in a model; it ends with the one that began it."""

    def __init__(self, planned: bytes) -> None:
        """Begin it for the pickle of what is planned."""
        command = [sys.executable, "-m", "rutc.driver.timing.bench_server"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._send(planned)

    def ask(self, question: bytes) -> Any:
        """Returns the answer to the pickle of a question.

        Raises:
            EOFError: the process has ended.
            RutcError: what answering has raised.
        """
        self._send(question)
        assert self._process.stdout is not None
        answer = receive(self._process.stdout)
        if isinstance(answer, RutcError):
            raise answer
        return answer

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, message)
        except BrokenPipeError:
            raise EOFError from None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@one_blas_thread()
def main() -> None:
    """Answers until there is nobody who asks."""
    from rutc.driver.timing.model_bench import ModelBench

    # What prints must not come between the answers.
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        bench: ModelBench | None = None
        planned = receive(questions)
        with suppress(EOFError, BrokenPipeError):
            while True:
                question = receive(questions)
                answer: Any
                try:
                    bench = bench or ModelBench(planned, Path(folder), len(sched_getaffinity(0)))
                    answer = bench.usual() if question is None else bench.time(question)
                except RutcError as error:
                    answer = error
                send(answers, pickle.dumps(answer))
        if bench is not None:
            bench.close()


if __name__ == "__main__":
    main()
