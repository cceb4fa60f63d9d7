"""What lies near has memory for one index of a dim: code for it reads nothing of the others."""

import numpy as np
import pytest

from rutc.tensor_ir.graph import Nest
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import apply_schedule, parse_schedule
from rutc.tensor_ir.textual.parse import parse
from tests.emit.run_kernel import run_near
from tests.kernels import Case
from tests.machines import on_machines

SIZES = {"n": 2, "y": 9, "ky": 3, "c": 16, "o": 32}
SUMS = {
    "one element for all lanes": "sum{c,ky} %x[n, c, y=y+4*ky-4 else 0.0] * %w[c, ky, o]",
    "a vector of neighbours": "sum{ky} %x[n, c=o//2, y=y+4*ky-4 else 0.0] * %w[c=0, ky, o]",
}


@on_machines
@pytest.mark.parametrize("rows_last", [False, True])
@pytest.mark.parametrize("element", SUMS.values(), ids=SUMS)
def test_an_image_alone_is_read(machine: Machine, element: str, rows_last: bool) -> None:
    graph = parse(f"""
        graph "images"
        dims {", ".join(f"{d} = {n}" for d, n in SIZES.items())}
        %x : f32{{c,n,y}} = input "x" [n, y, c]
        %w : f32{{c,ky,o}} = input "w" [ky, c, o]
        %r : f32{{n,o,y}} = {element}
        output "r" [n, y, o] = %r
        """)
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    layouts = {
        "x": dense(["n", "c", "y"] if rows_last else ["n", "y", "c"], SIZES),
        "w": dense(["ky", "c", "o"], SIZES),
        "r": dense(["n", "y", "o"], SIZES),
    }
    case = Case(graph, Group("g", nests, ("n", "y", "o"), ("r",)), layouts, True, 0)
    steps = "mark(n, parallel); split(o, 16); tile([o.i], [vector])"
    last = _last_image(case, machine, steps)
    np.testing.assert_array_equal(last, np.transpose(case.arrays()["r"], [0, 2, 1])[-1].ravel())


@on_machines
def test_an_image_alone_is_read_where_its_loop_is_one_with_others(machine: Machine) -> None:
    """Which image a task is of is computed in the loop that tells where its windows are, too."""
    sizes = {"n": 2, "c": 24, "w": 20, "x": 10, "k": 3}
    graph = parse(f"""
        graph "rows"
        dims {", ".join(f"{d} = {n}" for d, n in sizes.items())}
        %x : i8{{c,n,w}} = input "x" [n, c, w]
        %r : i8{{c,n,x}} = max{{k}} %x[n, c, w=2*x+k-1 else 0]
        output "r" [n, c, x] = %r
        """)
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    layouts = {"x": dense(["n", "c", "w"], sizes), "r": dense(["n", "c", "x"], sizes)}
    case = Case(graph, Group("g", nests, ("n", "c", "x"), ("r",)), layouts, True, 0)
    tasks = "split(x, 8); mark(n, parallel); mark(c, parallel); mark(x.o, parallel)"
    steps = f"{tasks}; overlap([x.o]); tile([x.i], [vector]); mark(k, unroll)"
    last = _last_image(case, machine, steps)
    np.testing.assert_array_equal(last, np.transpose(case.arrays()["r"], [1, 0, 2])[-1].ravel())


@on_machines
@pytest.mark.parametrize("element", ["i8", "i16", "f32"])
def test_vectors_of_an_image_go_on_for_a_vector_behind_it_at_most(
    machine: Machine, element: str
) -> None:
    """The host has as much memory behind the last image (`test_loads_may_go_on_behind_scratch`)."""
    sizes = {"n": 2, "c": 3, "w": 21}
    graph = parse(f"""
        graph "rows"
        dims {", ".join(f"{d} = {n}" for d, n in sizes.items())}
        %x : {element}{{c,n,w}} = input "x" [n, c, w]
        %r : {element}{{c,n,w}} = %x[n, c, w] + %x[n, c, w]
        output "r" [n, c, w] = %r
        """)
    nests = tuple(n for n in graph.nodes if isinstance(n, Nest))
    layouts = {name: dense(["n", "c", "w"], sizes) for name in "xr"}
    case = Case(graph, Group("g", nests, ("n", "c", "w"), ("r",)), layouts, True, 0)
    steps = "mark(n, parallel); mark(c, parallel); split(w, 16); tile([w.i], [vector])"
    kernel = apply_schedule(case.kernel(), parse_schedule(steps))
    memory = case.memory(case.arrays(), kernel)
    run_near(kernel, machine, memory, "x", sizes["n"], first=True)
    first = memory["r"][: memory["r"].size // sizes["n"]]
    np.testing.assert_array_equal(first, np.transpose(case.arrays()["r"], [1, 0, 2])[0].ravel())


def _last_image(case: Case, machine: Machine, steps: str) -> np.ndarray:
    """What a scheduled kernel gives of the last image, for which alone there is memory."""
    kernel = apply_schedule(case.kernel(), parse_schedule(steps))
    memory = case.memory(case.arrays(), kernel)
    images = case.extents["n"]
    run_near(kernel, machine, memory, "x", images)
    return memory["r"][-(memory["r"].size // images) :]
