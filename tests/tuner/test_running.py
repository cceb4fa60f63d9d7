"""Running reductions: how much of each row is taken together."""

import pytest

from rutc.emit.targets import x86
from rutc.tensor_ir.kernel import Kind
from rutc.tensor_ir.statements import walk_loops
from rutc.tensor_ir.steps import apply_schedule
from tests.tuner.test_across import default_of
from tests.tuner.test_schedules import lowered

PLANES = """
graph "planes"
dims p = 21, y = 64, x = 64, k = 21, q = 21
%x : f32{q,x,y} = input "x" [q, y, x]
%y : f32{p,x,y} = sum{k} %x[x, y, q=p - k else 0.0]
output "y" [p, y, x] = %y
"""


@pytest.mark.parametrize(
    ("dtype", "rows", "together"),
    [("f32", 64, 16 * 8), ("f64", 64, 8 * 8), ("f32", 1, 64), ("i32", 3, 16 * 8)],
)
def test_as_much_of_a_plane_goes_on_together_as_registers_hold(
    dtype: str, rows: int, together: int
) -> None:
    """Rows of a plane follow each other in memory; the next plane is far."""
    text = PLANES.replace("f32", dtype).replace("y = 64", f"y = {rows}")
    if dtype == "i32":
        text = text.replace("0.0", "0")
    kernel, constants = lowered(text)
    done = apply_schedule(kernel, default_of(kernel, x86.avx2(), constants).schedule)
    vectors = [s for s in walk_loops(done.body) if s.kind is Kind.VECTOR]
    assert {int(str(s.hi)) for s in vectors} <= {together, rows * 64 % together}
    assert max(int(str(s.hi)) for s in vectors) == together
