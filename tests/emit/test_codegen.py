"""LLVM's passes see every function of a module, those that are called included."""

import os
import signal
import threading

from rutc.emit.llvm.codegen import compile_assembly
from rutc.emit.llvm.ir_module import REPEATS
from rutc.emit.targets import target_named

MODULE = """
target triple = "x86_64-unknown-linux-gnu"
define internal void @work(ptr %a, i64 %n) noinline {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %same = phi i64 [0, %entry], [%other, %loop]
  %place = getelementptr i64, ptr %a, i64 %i
  %again = getelementptr i64, ptr %a, i64 %same
  %x = load i64, ptr %place
  %y = load i64, ptr %again
  %square = mul i64 %x, %y
  store i64 %square, ptr %place
  %next = add nsw i64 %i, 1
  %other = add nsw i64 %same, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @entry(ptr %a, i64 %n) {
  %unused = load i64, ptr %a
  call void @work(ptr %a, i64 %n)
  ret void
}
"""


def _operations(text: str) -> list[list[str]]:
    """The instructions that a module becomes, each in words."""
    lines = compile_assembly(text, target_named("x86-64-v3").machine).splitlines()
    return [line.split() for line in lines if line.startswith("\t")]


def test_all_functions_are_optimised() -> None:
    operations = [words[0] for words in _operations(MODULE)]
    # What is loaded for nothing is not.
    assert operations.count("imulq") == 1
    assert sum(o.startswith("movq") for o in operations) == 2


def test_variables_of_loops_are_joined_where_loops_repeat_what_they_do() -> None:
    def additions(text: str) -> int:
        return sum(words[0].startswith(("inc", "add")) for words in _operations(text))

    assert additions(MODULE) == 2
    assert additions(MODULE.replace("noinline", f"noinline {REPEATS}")) == 1


def test_slots_become_values() -> None:
    sums = MODULE.replace("  %y = load i64, ptr %again\n", "  %y = load i64, ptr %slot\n")
    sums = sums.replace("entry:\n", "entry:\n  %slot = alloca i64\n  store i64 1, ptr %slot\n", 1)
    sums = sums.replace("  store i64 %square, ptr %place\n", "  store i64 %square, ptr %slot\n")
    sums = sums.replace("done:\n", "done:\n  store i64 %square, ptr %a\n")
    assert sums.count("%slot") == 4
    assert not any("%rsp" in word for words in _operations(sums) for word in words)


def test_a_child_compiles_whatever_other_threads_did() -> None:
    """As where one thread compiles and another starts processes."""
    wanted = _operations(MODULE)
    done = threading.Event()

    def compile_on() -> None:
        while not done.is_set():
            _operations(MODULE)

    compiling = threading.Thread(target=compile_on, daemon=True)
    compiling.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                # Nothing that hangs stays.
                signal.alarm(20)
                os._exit(0 if _operations(MODULE) == wanted else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        compiling.join()
    assert _operations(MODULE) == wanted
