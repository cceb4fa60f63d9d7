"""Products of bytes that are scaled part by part, signs of rows apart."""

from pathlib import Path

import numpy as np
import pytest

from rutc.graph_opt import optimize, pipeline_for
from rutc.graph_opt.decide import decide
from rutc.graph_opt.rules.scaled_signs import LARGEST_HALVES
from rutc.tensor_ir import DType, Graph, Nest
from rutc.tensor_ir.facts.products import magnitudes, small_factors
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.kernel import Small
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from tests.byte_products import MACHINES, VNNI, with_weights, without_sums
from tests.close import assert_close
from tests.compiled import build, run
from tests.machines import TILES_V3, V3, V4
from tests.precision.test_narrow_products import extreme

SCALED = """
graph "parts that share a scale"
dims m = {m}, n = {n}, b = {b}, k = {k}
%q : i8{{b,k,m}} = input "q" [m, b, k]
%w : {w}{{b,k,n}} = input "w" [n, b, k]
%z : f32{{b,m}} = input "z" [m, b]
%s : f32{{b,n}} = input "s" [n, b]
%y : f32{{m,n}} = sum{{b,k}} (f32(i32(%q[m, b, k]) * i32(%w[n, b, k])) + %z[m, b]) * %s[n, b]
output "y" [m, n] = %y
"""


def signed(graph: Graph) -> bool:
    """Whether signs are apart in a graph."""
    return any(v.endswith(".signs") for v in graph.values)


def made(
    machine: Machine,
    *,
    m: int = 3,
    n: int = 40,
    b: int = 3,
    k: int = 32,
    w: str,
    most: int = 255,
    old: str = "",
    new: str = "",
) -> Graph:
    """The graph as it is optimized, of the least and greatest weights, u8 up to `most`."""
    text = SCALED.format(m=m, n=n, b=b, k=k, w=w)
    graph = parse(text.replace(old, new) if old else text)
    weights = extreme((n, b, k), DType(w).numpy, m)
    if w == "u8":
        weights = np.minimum(weights, np.uint8(most))
    return optimize(with_weights(graph, weights), pipeline=pipeline_for(machine))


@pytest.fixture(params=list(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    return without_sums(request.param)


@pytest.mark.parametrize("w", ["u8", "i8"])
@pytest.mark.parametrize(
    ("m", "n", "b", "k"), [(2, 5, 2, 8), (1, 77, 3, 32), (3, 48, 2, 16), (7, 33, 3, 32)]
)
def test_products(w: str, m: int, n: int, b: int, k: int, machine: Machine, tmp_path: Path) -> None:
    """Nothing is rounded but what sums add up to."""
    draw = np.random.default_rng(m)
    graph = parse(SCALED.format(m=m, n=n, b=b, k=k, w=w))
    weights = extreme((n, b, k), DType(w).numpy, m)
    arrays = {
        "q": extreme((m, b, k), np.dtype(np.int8), 3),
        "z": draw.integers(-128, 128, (m, b)).astype(np.float32),
        "s": draw.choice(np.array([-1, 0.5, 1, 2], np.float32), (n, b)),
    }
    wanted = interpret(graph, arrays | {"w": weights})["y"]
    found = optimize(with_weights(graph, weights), pipeline=pipeline_for(machine))
    assert signed(found)
    assert_close(interpret(found, arrays)["y"], wanted, reduction=b * k)
    for threads in (1, 2):
        got = run(build(decide(found, machine), machine, tmp_path), arrays, threads)
        assert_close(got["y"], wanted, reduction=b * k)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays(value: float) -> None:
    """A scale of one part that is none is in all sums of it, and in no other."""
    graph = made(V3, m=2, n=3, b=2, k=4, w="u8")
    arrays = {
        "q": extreme((2, 2, 4), np.dtype(np.int8), 3),
        "z": np.ones((2, 2), np.float32),
        "s": np.array([[1, value], [1, 1], [1, 1]], np.float32),
    }
    found = interpret(graph, arrays)["y"]
    assert not np.isfinite(found[:, 0]).any()
    assert np.isfinite(found[:, 1:]).all()


def test_magnitudes_are_known_to_be_small() -> None:
    graph = made(V3, w="u8")
    nests = [n for n in graph.nodes if isinstance(n, Nest)]
    found = small_factors(nests, {}, magnitudes(graph))
    assert found == {"q.sizes": Small(any_two=True)}


@pytest.mark.parametrize("machine", [V3, V4])
def test_taken_where_no_instruction_adds_products_of_bytes(machine: Machine) -> None:
    assert signed(made(machine, w="u8"))
    assert not signed(made(VNNI, w="u8"))


def test_halves_of_sums_of_a_part_are_exact() -> None:
    """Parts that are too long stay as they are."""
    longest = LARGEST_HALVES // (2 * 128 * 129)
    k = 1 << (longest.bit_length() - 1)
    assert signed(made(V3, n=2, b=2, k=k, w="u8"))
    assert not signed(made(V3, n=2, b=2, k=2 * k, w="u8"))


@pytest.mark.parametrize("k", [4, 8, 64])
def test_parts_of_whole_powers_of_two_are_taken(k: int) -> None:
    assert signed(made(V3, k=k, w="u8"))


@pytest.mark.parametrize("k", [1, 2, 12, 24])
def test_parts_of_other_lengths_stay(k: int) -> None:
    """A share of each product would be rounded, or there are too few for an instruction."""
    assert not signed(made(V3, k=k, w="u8"))


def test_magnitudes_of_weights_decide() -> None:
    """Those that are small are multiplied as they are."""
    assert not signed(made(V3, w="u8", most=128))
    assert signed(made(V3, w="u8", most=129))


def test_registers_for_matrices_take_products_by_themselves() -> None:
    assert not signed(made(TILES_V3, w="u8"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i8{b,k,m}", "u8{b,k,m}"),
        ("i32(%q[m, b, k])", "i32(%q[m, b, k=31 - k])"),
        ("%q[m, b, k]", "%q[m=b, b, k]"),
        ("i32(%q[m, b, k])", "(i32(%q[m, b, k]) - i32(%q[m, b, k=31 - k]))"),
        ("f32(i32(%q[m, b, k]) * i32(%w[n, b, k])) +", "f32(i32(%q[m, b, k])) +"),
    ],
)
def test_other_sums_stay(old: str, new: str) -> None:
    assert not signed(made(V3, w="u8", old=old, new=new))
