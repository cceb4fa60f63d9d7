"""Work shared out to processes: results, errors and deaths."""

import functools
import multiprocessing
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import ParamSpec

import pytest

from rutc.driver.parts.worker_pool import Pool, done_in_pool
from rutc.errors import InternalError, UserError

P = ParamSpec("P")


def alone(test: Callable[P, None]) -> Callable[P, None]:
    """The test in a process of its own, which has one thread whatever runs the tests has."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        def body(ending: Connection) -> None:
            try:
                test(*args, **kwargs)
            except BaseException:
                ending.send(traceback.format_exc())
            else:
                ending.send("")

        context = multiprocessing.get_context("fork")
        mine, others = context.Pipe(duplex=False)
        process = context.Process(target=body, args=(others,))
        process.start()
        others.close()
        try:
            failed = mine.recv()
        except EOFError:
            failed = "the process of the test ended"
        process.join()
        assert not failed, failed

    return run


@pytest.mark.parametrize("jobs", [1, 2, 7])
@alone
def test_every_task_is_done_once(jobs: int) -> None:
    done = list(done_in_pool(range(5), lambda n: f"{n}".encode(), jobs))
    assert sorted(done) == [(n, f"{n}".encode()) for n in range(5)]


@pytest.mark.parametrize("jobs", [1, 3])
@alone
def test_no_tasks_are_done_at_once(jobs: int) -> None:
    assert list(done_in_pool([], lambda n: b"", jobs)) == []


@alone
def test_tasks_run_in_processes_of_their_own() -> None:
    processes = {data for _, data in done_in_pool([1, 2], lambda n: f"{os.getpid()}".encode(), 2)}
    assert len(processes) == 2
    assert f"{os.getpid()}".encode() not in processes


@alone
def test_a_process_with_threads_is_not_forked() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        own = f"{os.getpid()}".encode()
        assert [data for _, data in done_in_pool([1, 2], lambda n: own, 2)] == [own, own]
        found = {data for _, data in done_in_pool([1, 2], lambda n: f"{os.getpid()}".encode(), 2)}
        assert found == {own}
    finally:
        end.set()
        thread.join()


@alone
def test_an_error_of_a_task_is_raised_with_its_traceback() -> None:
    def work(number: int) -> bytes:
        if number == 2:
            raise UserError("the second one")
        return b""

    with pytest.raises(UserError, match="the second one") as raised:
        list(done_in_pool([1, 2, 3], work, 2))
    assert "in work" in raised.value.__notes__[0]


@alone
def test_a_death_is_told_and_ends_the_others() -> None:
    def work(number: int) -> bytes:
        if number == 1:
            os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(60)
        return b""

    start = time.monotonic()
    with pytest.raises(InternalError, match="a compiling process ended: SIGALRM"):
        list(done_in_pool([1, 2], work, 2))
    assert time.monotonic() - start < 30


@alone
def test_a_kill_is_the_want_of_memory() -> None:
    def work(number: int) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    with pytest.raises(UserError, match=r"was killed, .* memory is short: .*--jobs 1"):
        list(done_in_pool([1, 2], work, 2))


@alone
def test_signals_to_a_group_are_answered_by_one() -> None:
    """What a terminal sends comes to all processes; the first alone ends the others."""

    def work(number: int) -> bytes:
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            os.kill(os.getpid(), ending)
        return b"done"

    assert sorted(done_in_pool([1, 2], work, 2)) == [(1, b"done"), (2, b"done")]


@alone
def test_fewer_processes_do_it_where_no_more_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, allowed = os.fork, [1]

    def refusing() -> int:
        if not allowed:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        allowed.pop()
        return fork()

    monkeypatch.setattr(os, "fork", refusing)
    for _ in range(2):
        done = list(done_in_pool([1, 2, 3], lambda n: f"{n}".encode(), 3))
        assert sorted(done) == [(n, f"{n}".encode()) for n in (1, 2, 3)]


@alone
def test_tasks_begin_while_others_are_being_found() -> None:
    begun, begin = os.pipe()

    def work(task: str) -> bytes:
        os.write(begin, task.encode())
        return f"{task} of {os.getpid()}".encode()

    with Pool(work, 2) as pool:
        for task in ("a", "b", "c"):
            pool.add(task)
        assert select.select([begun], [], [], 30)[0]
        done = dict(pool.done())
    assert [done[n].split()[0] for n in range(3)] == [b"a", b"b", b"c"]
    assert str(os.getpid()).encode() not in {data.split()[-1] for data in done.values()}


@alone
def test_the_largest_task_begins_first() -> None:
    with Pool(str.encode, 1) as pool:
        for task, size in (("small", 1), ("large", 3), ("as large", 3)):
            pool.add(task, size)
        assert list(pool.done()) == [(1, b"large"), (2, b"as large"), (0, b"small")]


@alone
def test_an_error_of_a_task_may_come_while_others_are_being_added() -> None:
    def work(task: int) -> bytes:
        raise UserError("at once")

    def add_all() -> None:
        with Pool(work, 2) as pool:
            for task in range(1000):
                pool.add(task)
                time.sleep(0.01)

    with pytest.raises(UserError, match="at once"):
        add_all()


@alone
def test_tasks_that_are_alike_are_not_done_at_once_where_there_are_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A task of another kind begins although it is smaller; the like one begins after that."""
    folder = tmp_path_factory.mktemp("begun")

    def work(task: str) -> bytes:
        # Looked at before it says that it has begun: from then on the first may end.
        early = not (folder / "second").exists()
        (folder / task).touch()
        until = time.monotonic() + 60
        while task == "first" and not (folder / "third").exists() and time.monotonic() < until:
            time.sleep(0.001)
        return b"early" if early else b"late"

    with Pool(work, 2) as pool:
        pool.add("first", 9, "kind")
        pool.add("second", 8, "kind")
        pool.add("third", 1, "other")
        found = dict(pool.done())
    assert found[2] == b"early"
    assert len(found) == 3
