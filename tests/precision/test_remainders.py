"""Products of bytes whose constants are small but for remainders: exact, and where they are."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rutc.graph_opt import optimize, pipeline_for
from rutc.graph_opt.alternatives import Assigned
from rutc.graph_opt.alternatives.choices import offers
from rutc.graph_opt.alternatives.remainders import TakeRemainders
from rutc.graph_opt.rewrite import Pass
from rutc.tensor_ir import Const, DType, Graph, Index
from rutc.tensor_ir.facts.products import fours_are_small
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from tests import byte_products
from tests.byte_products import MACHINES, VNNI, with_rule, with_weights, without_sums
from tests.lock.texts import TARGETS
from tests.machines import V3, V4
from tests.precision.test_narrow_products import CONVOLUTION, PRODUCT, extreme

pytestmark = pytest.mark.sampled(8)

GATES = """
graph "columns of two loops"
dims m = 5, n = 36, k = 37, g = 3, h = 12
%x : i8{k,m} = input "x" [m, k]
%w : i8{k,n} = input "w" [k, n]
%q : i32{k,m} = i32(%x[k, m]) - 3
%y : i32{g,h,m} = sum{k} %q[k, m] * i32(%w[k, n=12*g + h])
output "y" [m, g, h] = %y
"""
SCANNED = """
graph "one row in every trip"
dims m = 64, n = 256, k = 256, t = 64
%x : u8{k,t} = input "x" [t, k]
%zero : i32{} = const [] 0
%w : i8{k,n} = input "w" [k, n]
%last : i32{}, %all : i32{n,t} = scan t carry(%before : i32{} = %zero -> %next) collect(%y) {
  %y : i32{n} = sum{k} i32(%x[k, t]) * i32(%w[k, n])
  %next : i32{} = max{n} %y[n]
}
output "y" [t, n] = %all
"""
IN_FOURS = "remainders in fours"
KINDS = ("remainders", IN_FOURS)


def scaled(k: int, n: int, seed: int = 0) -> np.ndarray:
    """Weights as quantisers make them: of a normal distribution, scaled by the largest one."""
    found = np.random.default_rng(seed).standard_normal((k, n))
    return np.rint(found * (127 / np.abs(found).max())).astype(np.int8)


def always(machine: Machine, algorithm: str | None = None) -> tuple[Pass, ...]:
    """The pipeline that takes remainders apart, however little it saves."""
    assigned = None if algorithm is None else Assigned(tuple((v, algorithm) for v in "yt"))
    rule = TakeRemainders(inf, -inf, machine, assigned)
    return with_rule(pipeline_for(machine), rule)


def chosen(graph: Graph, machine: Machine) -> bool:
    """Whether remainders are taken apart by themselves."""
    found = optimize(graph, pipeline=pipeline_for(machine))
    return any(v.endswith(".rest") for v in found.values)


def check(graph: Graph, w: np.ndarray, algorithm: str, machine: Machine, folder: Path) -> None:
    """Compile and run the graph with extreme inputs, its remainders taken apart."""
    found = optimize(with_weights(graph, w), pipeline=always(machine, algorithm))
    assert any(v.endswith(".rest") for v in found.values)
    small = next(n for n in found.nodes if isinstance(n, Const) and "w.small" in n.out.name)
    if algorithm.startswith(IN_FOURS):
        summed = next(i for i, d in enumerate(small.axes) if d in ("c", "k"))
        assert fours_are_small(small.data.array, summed)
    byte_products.check(graph, w, found, machine, folder)


@pytest.fixture(params=list(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    return without_sums(request.param)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("a", "b"), [("u8", "i8"), ("i8", "u8"), ("i8", "i8"), ("u8", "u8")])
@pytest.mark.parametrize(
    ("m", "n", "k", "block"),
    [(1, 2, 2, 2), (3, 5, 7, 5), (17, 40, 31, 16), (33, 48, 66, 32), (5, 70, 129, 16)],
)
def test_products(
    a: str, b: str, m: int, n: int, k: int, block: int, kind: str, machine: Machine, tmp_path: Path
) -> None:
    zero, other = (0, 3, -7)[m % 3], 128 if b == "u8" else 0
    graph = parse(PRODUCT.format(m=m, n=n, k=k, a=a, b=b, zero=zero, other=other))
    w = extreme((k, n), DType(b).numpy, m)
    # Of both signs, the largest pair there is.
    w[:2, 0], w[:2, -1] = np.iinfo(w.dtype).min, np.iinfo(w.dtype).max
    check(graph, w, f"{kind} by {block}", machine, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("given", "s"), [("u8", 1), ("i8", 2)])
def test_convolutions_that_read_outside(
    given: str, s: int, kind: str, machine: Machine, tmp_path: Path
) -> None:
    text = CONVOLUTION.format(c=34, o=20, i=9, y=(10 - 1) // s + 1, s=s, w="%q[c, kx, ky, o]")
    text = text.replace("ky = 3, kx = 3", "ky = 1, kx = 1").replace("x : u8", f"x : {given}")
    w = extreme((20, 34, 1, 1), np.dtype(np.int8), s)
    check(parse(text), w, f"{kind} by 16", machine, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_two_loops(kind: str, machine: Machine, tmp_path: Path) -> None:
    w = extreme((37, 36), np.dtype(np.int8), 1)
    check(parse(GATES), w, f"{kind} by 16", machine, tmp_path)


def test_pairs_that_fit_are_summed_in_fours(machine: Machine, tmp_path: Path) -> None:
    graph = parse(PRODUCT.format(m=9, n=40, k=43, a="u8", b="i8", zero=3, other=0))
    w = np.random.default_rng(0).choice(np.array([-64, 64, 0], np.int8), (43, 40))
    check(graph, w, f"{IN_FOURS} by 16", machine, tmp_path)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 6), (4, 0, 6), (4, 5, 0)])
def test_nothing_is_taken_from_nothing(m: int, n: int, k: int) -> None:
    graph = parse(PRODUCT.format(m=m, n=n, k=k, a="u8", b="i8", zero=3, other=0))
    w = np.full((k, n), 127, np.int8)
    x = np.full((m, k), 255, np.uint8)
    found = optimize(with_weights(graph, w), pipeline=always(V3))
    np.testing.assert_array_equal(
        interpret(found, {"x": x})["y"], interpret(graph, {"x": x, "w": w})["y"]
    )


def product(w: np.ndarray) -> Graph:
    """A product of 128 rows by constant weights."""
    text = PRODUCT.format(m=128, n=w.shape[1], k=w.shape[0], a="u8", b="i8", zero=3, other=0)
    return with_weights(parse(text), w)


@pytest.mark.parametrize(
    ("machine", "wanted"), [(V3, True), (V4, True), (VNNI, False), (TARGETS["amx"], False)]
)
def test_few_remainders_are_taken_apart_where_instructions_take_small_bytes_only(
    machine: Machine, *, wanted: bool
) -> None:
    assert chosen(product(scaled(512, 512)), machine) is wanted


@pytest.mark.parametrize(("largest", "summed"), [(63, 0), (127, None)])
def test_fours_are_made_small_where_few_remain(largest: int, summed: int | None) -> None:
    drawn = np.random.default_rng(0).laplace(size=(512, 512))
    w = np.rint(drawn * (largest / np.abs(drawn).max(axis=summed))).astype(np.int8)
    found = optimize(product(w), pipeline=pipeline_for(V3))
    small = [n for n in found.nodes if isinstance(n, Const) and n.out.name == "w.small"]
    assert len(small) == 1
    assert fours_are_small(small[0].data.array, 0)


def test_what_all_trips_of_a_scan_save_is_weighed() -> None:
    graph, w = parse(SCANNED), np.random.default_rng(0).laplace(size=(256, 256))
    w = np.rint(w * (127 / np.abs(w).max())).astype(np.int8)
    assert chosen(with_weights(graph, w), V3)
    once = replace(graph, dims=tuple((d, Index.of(1) if d == "t" else x) for d, x in graph.dims))
    assert not chosen(with_weights(once, w), V3)


@pytest.mark.parametrize("kind", ["extremes", "any", "small", "small in fours"])
def test_many_or_no_remainders_are_left(kind: str) -> None:
    rng = np.random.default_rng(0)
    w = {
        "extremes": rng.choice(np.array([-128, 127], np.int8), (384, 384)),
        "any": rng.integers(-128, 128, (384, 384)).astype(np.int8),
        "small": rng.integers(-64, 65, (384, 384)).astype(np.int8),
        "small in fours": rng.integers(-32, 33, (384, 384)).astype(np.int8),
    }[kind]
    assert not chosen(product(w), V3)
    values = optimize(product(w), pipeline=pipeline_for(V3)).values
    assert any(v.endswith(".signs") for v in values) is (kind in ("extremes", "any"))


def test_offers_say_what_every_size_of_blocks_takes() -> None:
    found = offers(product(scaled(384, 80)), V3, Assigned())
    found = tuple(o for o in found if o.algorithm.startswith("remainders"))
    assert [(o.value, o.algorithm) for o in found] == [
        ("y", f"{kind} by {b}") for kind in KINDS for b in (16, 32, 64, 80)
    ]
    assert all(0 < o.cost < 2 * o.direct for o in found)
