"""Layouts that values choose together, and lines that outer loops come to again."""

import pytest

from rutc.tensor_ir.machine import Machine
from tests.graph_opt.plans import innermost, plan_of
from tests.machines import V3, V4

# Attention within 64 windows of 49 pictures' parts each: 64 are whole vectors, 49 are not.
WINDOWS = """
graph "windows"
dims b = 64, h = 3, m = 49, n = 49, k = 32, c = 32
%q : f32{b,h,k,m} = input "q" [b, h, m, k]
%r : f32{b,h,k,n} = input "r" [b, h, n, k]
%v : f32{b,c,h,n} = input "v" [b, h, n, c]
%w : f32{h,m,n} = input "w" [h, m, n]
%s : f32{b,h,m,n} = sum{k} %q[b, h, k, m] * %r[b, h, k, n]
%t : f32{b,h,m,n} = %s[b, h, m, n] * 0.2 + %w[h, m, n]
%l : f32{b,h,m} = max{n} %t[b, h, m, n]
%e : f32{b,h,m,n} = exp(%t[b, h, m, n] - %l[b, h, m])
%z : f32{b,h,m} = sum{n} %e[b, h, m, n]
%y : f32{b,c,h,m} = sum{n} (%e[b, h, m, n] / %z[b, h, m]) * %v[b, c, h, n]
output "y" [b, h, m, c] = %y
"""


@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
def test_products_of_windows_have_no_vectors_along_the_windows(machine: Machine) -> None:
    # Each window of a product would come to all lines of its result again.
    plan = plan_of(WINDOWS, machine)
    found = {innermost(plan, name) for name in ("t", "l", "e", "z")}
    assert found == {"m"}


@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
def test_products_of_few_windows_may_have_vectors_along_them(machine: Machine) -> None:
    # The first cache holds the lines of the result until the next window.
    small = WINDOWS.replace("m = 49, n = 49", "m = 5, n = 5")
    assert innermost(plan_of(small, machine), "t") == "b"
