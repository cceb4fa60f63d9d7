"""Kernels as code of this process: runs without Python between, on sets of arguments in turns."""

from random import Random

import numpy as np

from benchmarks.in_process import KernelCode
from benchmarks.timer import first_line
from rutc.driver.tuning.schedule_search import kernel_after
from rutc.emit.targets import native_target
from rutc.tuner import choose
from tests.tuner.subjects import of_text

MACHINE = native_target().machine.alone()
TEXT = """
graph "twice"
dims i = 17
%a : f32{i} = input "a" [i]
%b : f32{i} = %a[i] + %a[i]
output "b" [i] = %b
"""


def test_runs_have_the_sets_of_arguments_in_turns() -> None:
    subject = of_text(TEXT, frozenset(), Random(0))
    kernel = kernel_after(subject.kernel, choose(subject.kernel, MACHINE, subject.free))
    sets = [[np.ones(64, np.float32) for _ in kernel.args] for _ in range(3)]
    addresses = [[first_line(m) for m in own] for own in sets]
    place = [b.name for b in kernel.args].index("b")
    run = KernelCode(kernel, MACHINE).repeated(addresses, {})

    def written() -> list[bool]:
        found = []
        for own in sets:
            found.append(bool((own[place] == 2).sum() == 17))
            own[place].fill(1)
        return found

    run(2)
    assert written() == [True, True, False]
    run(1)
    assert written() == [False, False, True]
    run(1)
    assert written() == [True, False, False]
    run(7)
    assert written() == [True, True, True]
    # Eleven runs before: the last set is the next one.
    run(1)
    assert written() == [False, False, True]
