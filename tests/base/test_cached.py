"""Properties that are computed once: whatever other threads, and forks, are at."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import rutc
from rutc.base.cached import cached_property


class Waiting:
    """Two properties of which each is computed while the other one is."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=5)
        self.computed = 0

    @cached_property
    def one(self) -> object:
        """The first."""
        self.barrier.wait()
        return self.end()

    @cached_property
    def other(self) -> object:
        """The second."""
        self.barrier.wait()
        return self.end()

    def end(self) -> object:
        self.computed += 1
        return object()


def test_it_is_computed_once_and_kept() -> None:
    waiting = Waiting()
    waiting.barrier = threading.Barrier(1)
    assert waiting.one is waiting.one
    assert waiting.computed == 1
    assert waiting.one is not waiting.other
    assert Waiting.one.__doc__ == "The first."
    del waiting.__dict__["one"]
    assert waiting.one is not None
    assert waiting.computed == 3


def test_all_threads_see_one_object() -> None:
    waiting, found = Waiting(), []
    threads = [threading.Thread(target=lambda: found.append(waiting.one)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert waiting.computed == 2
    assert found[0] is found[1] is waiting.one


def test_a_child_computes_what_another_thread_was_at() -> None:
    class Held:
        @cached_property
        def value(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                began.set()
                done.wait()
            return 5

    began, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: Held().value, daemon=True)
    thread.start()
    began.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(Held().value)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    done.set()
    thread.join()


def test_the_compiler_has_no_others() -> None:
    root = Path(rutc.__file__).parent
    folders = [p for p in root.iterdir() if p.is_dir() and p.name != "tests" and p.name[0] != "."]
    sources = [p for folder in folders for p in folder.rglob("*.py")]
    wanted = re.compile(r"from functools import .*\bcached_property\b|functools\.cached_property")
    assert len(sources) > 100
    assert [p.name for p in sources if wanted.search(p.read_text(encoding="utf-8"))] == []
