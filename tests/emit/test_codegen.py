"""LLVM's passes see every function of a module, those that are called included."""

import contextlib
import os
import signal
import threading

import pytest

from rutc.emit.llvm import codegen
from rutc.emit.llvm.codegen import compile_assembly, compile_object
from rutc.emit.llvm.ir_module import REPEATS
from rutc.emit.llvm.stack_vectors import LOOP_BYTES, stack_vectors
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


ROWS, VECTORS, TAPS = 13, 2, 3


def _tile() -> str:
    """A module that sums up products of rows and of vectors, three of each in an iteration."""
    vector = "<16 x float>"
    lines = [
        'target triple = "x86_64-unknown-linux-gnu"',
        f"declare {vector} @llvm.fma.v16f32({vector}, {vector}, {vector})",
        "define void @entry(ptr noalias %a, ptr noalias %w, ptr noalias %sums) {",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %entry], [%next, %loop]",
    ]
    sums = [(r, v) for r in range(ROWS) for v in range(VECTORS)]
    for r, v in sums:
        last = f"%s.{r}.{v}.{TAPS - 1}"
        lines.append(f"  %p.{r}.{v} = phi {vector} [zeroinitializer, %entry], [{last}, %loop]")
    lines += ["  %at = mul nsw i64 %i, 96", "  %ww = getelementptr float, ptr %w, i64 %at"]
    lines += ["  %by = mul nsw i64 %i, 3", "  %aa = getelementptr float, ptr %a, i64 %by"]
    for t in range(TAPS):
        for v in range(VECTORS):
            lines.append(f"  %wp.{v}.{t} = getelementptr float, ptr %ww, i64 {32 * t + 16 * v}")
            lines.append(f"  %w.{v}.{t} = load {vector}, ptr %wp.{v}.{t}, align 4")
        for r in range(ROWS):
            lines.append(f"  %ap.{r}.{t} = getelementptr float, ptr %aa, i64 {6 * r + t}")
            lines.append(f"  %a.{r}.{t} = load float, ptr %ap.{r}.{t}, align 4")
            lines.append(f"  %o.{r}.{t} = insertelement {vector} undef, float %a.{r}.{t}, i32 0")
            lines.append(
                f"  %b.{r}.{t} = shufflevector {vector} %o.{r}.{t}, {vector} undef,"
                " <16 x i32> zeroinitializer"
            )
            for v in range(VECTORS):
                before = f"%s.{r}.{v}.{t - 1}" if t else f"%p.{r}.{v}"
                lines.append(
                    f"  %s.{r}.{v}.{t} = call {vector} @llvm.fma.v16f32({vector} %b.{r}.{t},"
                    f" {vector} %w.{v}.{t}, {vector} {before})"
                )
    lines += ["  %next = add nsw i64 %i, 1", "  %more = icmp slt i64 %next, 7"]
    lines += ["  br i1 %more, label %loop, label %done", "done:"]
    for n, (r, v) in enumerate(sums):
        lines.append(f"  %to.{n} = getelementptr {vector}, ptr %sums, i64 {n}")
        lines.append(f"  store {vector} %s.{r}.{v}.{TAPS - 1}, ptr %to.{n}, align 4")
    return "\n".join([*lines, "  ret void", "}"])


def _on_stack(assembly: str) -> int:
    return sum("mm" in line and "(%rsp)" in line for line in assembly.splitlines())


def test_the_order_is_taken_of_which_fewer_vectors_are_on_the_stack() -> None:
    machine = target_named("x86-64-v4").machine
    # LLVM loads all rows of an iteration at once; in the order of the module, registers suffice.
    assert _on_stack(compile_assembly(_tile(), machine)) > 0
    assert _on_stack(compile_assembly(_tile(), machine, reordered=False)) == 0
    assert stack_vectors(compile_object(_tile(), machine, symbol="tile", entry="entry")) == 0


def test_vectors_on_the_stack_are_told_from_bytes() -> None:
    on_stack = (
        "62f17c4811442401",  # vmovups %zmm0,0x40(%rsp)
        "62617c48109c2440020000",  # vmovups 0x240(%rsp),%zmm27
        "c5fc11442420",  # vmovups %ymm0,0x20(%rsp)
        "c4e27d184424e0",  # vbroadcastss -0x20(%rsp),%ymm0
        "62727d48b80c24",  # vfmadd231ps (%rsp),%zmm0,%zmm9
    )
    elsewhere = (
        "62d17c4811442401",  # vmovups %zmm0,0x40(%r12)
        "c4c17c11442420",  # vmovups %ymm0,0x20(%r12)
        "62f17c48110408",  # vmovups %zmm0,(%rax,%rcx)
        "c5fc58c1",  # vaddps %ymm1,%ymm0,%ymm0
        "4889442408",  # mov %rax,0x8(%rsp)
    )
    for code in on_stack:
        assert stack_vectors(_loop(code)) == 1, code
    assert stack_vectors(_loop("".join(on_stack))) == len(on_stack)
    for code in elsewhere:
        assert stack_vectors(_loop(code)) == 0, code
    # No jump leads back to before it, or one that leads there does not begin a line of the cache.
    for code in on_stack:
        assert stack_vectors(bytes.fromhex(code) + _loop("")) == 0, code
        assert stack_vectors(_loop("")[:LOOP_BYTES] + bytes.fromhex(code)) == 0, code
        assert stack_vectors(bytes(1) + _loop(code)) == 0, code


def _loop(code: str) -> bytes:
    """Machine code whose second line of the cache is a loop around the given bytes."""
    inner = bytes.fromhex(code)
    back = -len(inner) - 6
    jump = b"\x0f\x85" + back.to_bytes(4, "little", signed=True)  # jne
    return bytes(LOOP_BYTES) + inner + jump


def test_code_is_made_once_where_no_loop_keeps_vectors_on_the_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = target_named("x86-64-v4").machine
    made: list[bool] = []
    order = codegen._order

    def counted(reordered: bool) -> contextlib.AbstractContextManager[None]:
        made.append(reordered)
        return order(reordered)

    monkeypatch.setattr(codegen, "_order", counted)
    compile_object(_tile(), machine, symbol="tile", entry="entry")
    assert made == [True, False]
    assert _on_stack(compile_assembly(_reversed(), machine)) > 0
    made.clear()
    compile_object(_reversed(), machine, symbol="reversed", entry="entry")
    assert made == [True]


def _reversed() -> str:
    """A module that loads more vectors than there are registers, before it stores the first."""
    vector, count = "<16 x float>", 40
    lines = ["define void @entry(ptr %from, ptr %to) {"]
    for n in range(count):
        lines.append(f"  %a.{n} = getelementptr {vector}, ptr %from, i64 {n}")
        lines.append(f"  %v.{n} = load {vector}, ptr %a.{n}, align 4")
    for n in range(count):
        lines.append(f"  %b.{n} = getelementptr {vector}, ptr %to, i64 {count - n}")
        lines.append(f"  store {vector} %v.{n}, ptr %b.{n}, align 4")
    return "\n".join([*lines, "  ret void", "}"])
