"""Calls into the onnx package that a process of their own makes.

Its C++ code checks itself and ends the process where a model breaks what it takes for granted: its
conversion infers a negative extent from a window that is larger than the image, and a `Slice` of
that ends it. No rule on what it is given says where; so it may end a process that nobody needs.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, cast

from rutc.base.processes import end_with_parent
from rutc.errors import UserError

T = TypeVar("T")

_FRESH = "from rutc.importer.opsets.isolated import serve; serve()"


class EndedError(RuntimeError):
    """The process that made a call was ended by what it called."""


def isolated(call: Callable[..., T], *args: object) -> T:
    """What `call(*args)` returns, which another process does; both can be pickled.

    It is a copy of this one, or, if this one has other threads, whose locks would stay locked in a
    copy, a fresh one.

    Raises:
        EndedError: The call ended the process.
        UserError: The system killed it.
        Exception: What the call raised.
    """
    answer, code = (_forked if threading.active_count() == 1 else _fresh)(call, *args)
    if not answer or code:
        if code == -signal.SIGKILL:
            raise UserError(
                "the process that converts the model was killed, as the system does where memory "
                "is short: import it with more memory"
            )
        raise EndedError(signal.Signals(-code).name if code < 0 else f"exit status {code}")
    result = pickle.loads(answer)
    if isinstance(result, BaseException):
        raise result
    return cast(T, result)


def serve() -> None:
    """Makes the call that the standard input says, in a fresh process."""
    with os.fdopen(os.dup(1), "wb") as pipe:
        _settle()
        call, args = pickle.load(sys.stdin.buffer)
        pipe.write(_answer(call, *args))


def _fresh(call: Callable[..., object], *args: object) -> tuple[bytes, int]:
    """The pickled answer of a fresh process, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", _FRESH],
        input=pickle.dumps((call, args)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    return done.stdout, done.returncode


def _forked(call: Callable[..., object], *args: object) -> tuple[bytes, int]:
    """The pickled answer of a copy of this process, and its exit code."""
    inlet, outlet = os.pipe()
    parent = os.getpid()
    try:
        process = os.fork()
    except OSError:
        # Where the system allows no more processes, this one does it.
        os.close(inlet)
        os.close(outlet)
        return _answer(call, *args), 0
    if process == 0:
        status = 1
        try:
            _settle()
            if os.getppid() == parent:
                with os.fdopen(outlet, "wb") as pipe:
                    pipe.write(_answer(call, *args))
                status = 0
        finally:
            # Without the clean-up that is the parent's.
            os._exit(status)
    os.close(outlet)
    ended = False
    try:
        with os.fdopen(inlet, "rb") as pipe:
            answer = pipe.read()
        ended = True
    finally:
        if not ended:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    return answer, os.waitstatus_to_exitcode(status)


def _settle() -> None:
    """Lets the process end with its parent, without a word and without a core file."""
    end_with_parent()
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def _answer(call: Callable[..., object], *args: object) -> bytes:
    """What a call returns or raises, pickled."""
    result: object
    try:
        result = call(*args)
    except Exception as error:
        result = error
    return pickle.dumps(result)
