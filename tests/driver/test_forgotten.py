"""Constants that are computed of others are freed once kernels have theirs, and made again."""

import pickle
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest

from rutc.driver.parts import compilation
from rutc.driver.parts import weights as packing
from rutc.driver.parts.build import Builder
from rutc.driver.parts.weights import Weights
from rutc.emit.host_program.program import padded
from rutc.emit.targets import target_named
from rutc.graph_opt import versions
from rutc.graph_opt.decide import decide
from rutc.tensor_ir.data import Data
from rutc.tensor_ir.dtype import DType
from rutc.tensor_ir.graph import Const
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.nodes import Value
from rutc.tensor_ir.textual.parse import parse

T = TypeVar("T")

FILTERED = """
graph "windows of equal weights over maps of two sizes"
dims c = 67, i = 13, j = 13, kx = 3, ky = 3, o = 61, x = 29, y = 29
%a : f32{c,x,y} = input "a" [c, y, x]
%b : f32{c,i,j} = input "b" [c, j, i]
%w : f32{c,kx,ky,o} = const [o, c, ky, kx] data "w"
%r : f32{o,x,y} = sum{c,kx,ky} %a[c, x=kx + x - 1, y=ky + y - 1 else 0] * %w[c, kx, ky, o]
%s : f32{i,j,o} = sum{c,kx,ky} %b[c, i=kx + i - 1, j=ky + j - 1 else 0] * %w[c, kx, ky, o]
output "r" [o, y, x] = %r
output "s" [o, j, i] = %s
"""


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_filtered_weights_are_freed_once_kernels_have_theirs(target: str) -> None:
    machine = target_named(target).machine
    weights = np.random.default_rng(0).standard_normal((61, 67, 3, 3)).astype(np.float32)
    (version,) = versions(parse(FILTERED, {"w": Data(weights)}), machine)
    plan = decide(version.graph, machine, version.assigned)
    points = [n for n in plan.graph.nodes if isinstance(n, Const) and "points" in n.out.name]
    assert points, "sums are filtered"
    assert not any("array" in n.data.__dict__ for n in points), "nobody has read an element"
    before = [n.data.array.copy() for n in points]
    Builder(plan, machine, "m", 1, code=False).build()
    assert all("array" in n.data.__dict__ for n in points), "they may be built from again"
    program = Builder(plan, machine, "m", 1, code=False, once=True).build().program
    assert not any("array" in n.data.__dict__ for n in points)
    for n, array in zip(points, before, strict=True):
        assert np.array_equal(n.data.array, array)
    elements = np.concatenate([np.asarray(x).ravel() for _, x in program.weights])
    assert all(np.isin(array[:, :5], elements).all() for array in before)


APART = """
graph "a small kernel before a large one, which reads weights"
dims c = 67, o = 61, x = 29
%a : f32{c,x} = input "a" [c, x]
%w : f32{c,o} = const [o, c] data "w"
%e : f32{c,x} = -%a[c, x]
%r : f32{o,x} = sum{c} %a[c, x] * %w[c, o]
output "e" [c, x] = %e
output "r" [o, x] = %r
"""


def test_weights_are_packed_while_other_kernels_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = target_named("x86-64-v3").machine
    weights = np.random.default_rng(0).standard_normal((61, 67)).astype(np.float32)
    (version,) = versions(parse(APART, {"w": Data(weights)}), machine)
    plan = decide(version.graph, machine, version.assigned)
    told: list[str] = []

    def telling(text: str, function: Callable[..., T]) -> Callable[..., T]:
        def called(*args: object) -> T:
            told.append(text)
            return function(*args)

        return called

    monkeypatch.setenv("RUTC_CACHE_MIB", "0")
    monkeypatch.setattr(compilation, "make", telling("made", compilation.make))
    monkeypatch.setattr(packing, "pack", telling("packed", packing.pack))
    built = Builder(plan, machine, "m", 1).build()
    assert told == ["made", "packed", "made"], "the large kernel is made first"
    drafted = Builder(plan, machine, "m", 1, code=False).build()
    assert [x.args for x in built.program.kernels] == [x.args for x in drafted.program.kernels]


def test_constants_have_places_in_the_order_in_which_these_are_asked_for() -> None:
    sizes = (5, 70)
    consts = [
        Const(Value("w", DType.F32, ("x",)), ("x",), Data(np.ones(n, np.float32))) for n in sizes
    ]
    asked = [(const, dense(("x",), {"x": n})) for const, n in zip(consts, sizes, strict=True)]
    packed, usual = Weights(), Weights()
    for const, layout in reversed(asked):
        packed.pack(const, layout)
    for weights in (packed, usual):
        assert [weights.place(*each).offset for each in asked] == [0, padded(4 * 5)]
        assert [image.size for _, image in weights.images] == [*sizes]
    assert packed.bytes == usual.bytes


def test_what_can_be_made_again_may_be_forgotten() -> None:
    made = [0]

    def again() -> np.ndarray:
        made[0] += 1
        return np.arange(7, dtype=np.float32)

    data = Data(again(), again=again)
    same, other = Data(np.arange(7, dtype=np.float32)), Data(np.arange(1, 8, dtype=np.float32))
    before = hash(data), data.digest
    data.forget()
    assert (hash(data), data.digest) == before
    assert {data: "found"}[data] == "found"
    assert made[0] == 1, "nobody asked for elements"
    assert data == same
    assert data != other
    assert not data.array.flags.writeable
    assert made[0] == 2, "they are made once"
    data.forget()
    assert pickle.loads(pickle.dumps(data)) == same


def test_what_is_made_later_is_known_by_what_it_is_made_of() -> None:
    made: list[int] = []

    def doubled(of: Data, times: int) -> Data:
        def again() -> np.ndarray:
            made.append(times)
            return of.array * np.float32(times)

        return Data.later((times, of), of.shape, of.dtype, again)

    array = np.arange(7, dtype=np.float32)
    one, same = doubled(Data(array.copy()), 2), doubled(Data(array.copy()), 2)
    assert one == same
    assert {one: "found"}[same] == "found"
    assert one.few == same.few
    assert one not in (doubled(Data(array), 3), doubled(Data(array + 1), 2))
    assert (one.shape, one.dtype, one.is_finite) == ((7,), np.dtype(np.float32), True)
    assert one != Data(np.zeros(8, np.float32))
    assert not made, "nobody asked for elements"
    assert one == Data(array * 2)
    assert made == [2], "they are compared with those of an array that is there"
    assert pickle.loads(pickle.dumps(one)) == one


def test_what_cannot_be_made_again_is_not_forgotten() -> None:
    for array in (np.zeros((0, 3), np.int8), np.array([np.nan, np.inf], np.float32)):
        data = Data(array)
        data.forget()
        assert data.array is array
