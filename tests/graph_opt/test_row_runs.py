"""Loops over rows at even distances, and how full they make registers for matrices."""

import pytest

from rutc.graph_opt.row_runs import matrix_factors, row_runs, rows_in_use, rows_of_sum
from rutc.tensor_ir import Index, Nest
from rutc.tensor_ir.textual.parse import parse

N, V, ROW, J = map(Index.of, "nvij")
EXTENTS = {"n": 8, "y": 16, "v": 7, "i": 4, "j": 3, "a": 5}


def term(value: str) -> str:
    """A product of a part, from a window over places in two phases."""
    return f"f32(%{value}[c, i, n, p=j % 2, q=v + j // 2]) * f32(%w[c, j, m])"


SUM = f"""
graph "a window over y, rows of n, of v and of (v, i)"
dims n = 8, p = 2, q = 8, v = 7, i = 4, j = 3, c = 32, m = 16
%x : bf16{{c,i,n,p,q}} = input "x" [p, n, q, i, c]
%z : bf16{{c,i,n,p,q}} = input "z" [p, n, q, i, c]
%w : bf16{{c,j,m}} = input "w" [j, c, m]
%y : f32{{i,m,n,v}} = sum{{c,j}} {term("x")} + {term("z")}
output "y" [n, m, v, i] = %y
"""


@pytest.mark.parametrize(
    ("order", "coords", "loops"),
    [
        ("nyi", {"n": N, "y": 2 * V + J, "i": ROW}, ["n", "vi", "i"]),
        ("nyi", {"n": N, "y": V + J, "i": ROW + 1}, ["n", "v", "i"]),
        ("yin", {"n": N, "y": V, "i": ROW}, ["vin", "in", "n"]),
        ("ynaj", {"n": N, "y": V, "a": J, "j": J}, ["vn", "n"]),
        ("yn", {"n": ROW, "y": V + ROW}, ["i"]),
        ("an", {"n": ROW, "a": V}, ["v", "i"]),
    ],
)
def test_runs_go_on_over_whole_dims(order: str, coords: dict[str, Index], loops: list[str]) -> None:
    runs = row_runs(order, coords, {"n", "v", "i"}, EXTENTS)
    assert ["".join(run.loops) for run in runs] == loops


def test_runs_know_the_steps_of_their_first_loop() -> None:
    (run,) = row_runs("y", {"y": 2 * V + J}, {"v"}, EXTENTS)
    assert (run.dim, run.step) == ("y", 2)
    assert row_runs("y", {"y": 4 - V}, {"v"}, EXTENTS) == []


@pytest.mark.parametrize(
    ("extent", "rows"), [(1, 1), (7, 7), (16, 16), (17, 9), (28, 14), (32, 16), (36, 9), (512, 16)]
)
def test_registers_share_rows_in_pairs(extent: int, rows: int) -> None:
    assert rows_in_use(extent) == rows


def test_slices_may_leave_fewer_rows() -> None:
    graph = parse(SUM)
    extents = {d: e.value for d, e in graph.dims}
    (n,) = [n for n in graph.nodes if isinstance(n, Nest)]
    x, z = matrix_factors(n, frozenset({"w"}))
    assert (x.value, z.value) == ("x", "z")
    assert matrix_factors(n, frozenset({"x", "z"}))[0].value == "w"

    def rows(**sizes: int) -> int:
        return rows_of_sum(n, x, "pnqic", {**extents, **sizes})

    assert rows() == rows(n=1) == 14
    assert rows(i=1) == 8
    assert rows(n=1, v=1) == 4
    # Between one place and the next but one lies another.
    (y,) = row_runs("yi", {"y": 2 * V, "i": ROW}, {"v", "i"}, EXTENTS)[:1]
    assert y.loops == ("v", "i")
