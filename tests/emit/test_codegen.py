"""LLVM's passes see every function of a module, those that are called included."""

from rutc.emit.codegen import compile_assembly
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


def test_all_functions_are_optimised() -> None:
    lines = compile_assembly(MODULE, target_named("x86-64-v3").machine).splitlines()
    operations = [line.split()[0] for line in lines if line.startswith("\t")]
    # Both variables of the loop are one, and what is loaded for nothing is not.
    assert operations.count("imulq") == 1
    assert sum(o.startswith(("inc", "add")) for o in operations) == 1
    assert sum(o.startswith("movq") for o in operations) == 2
