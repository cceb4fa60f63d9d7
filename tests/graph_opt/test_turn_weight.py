"""What a section of kernels that take turns saves, as it grows."""

from types import SimpleNamespace
from typing import cast

import pytest

from rutc.graph_opt.decide import decide
from rutc.graph_opt.decide.slices import Slicer
from rutc.graph_opt.decide.turn_weight import SectionPart, TurnWeight, _again
from rutc.graph_opt.plan import Run
from rutc.tensor_ir.indices.ranges import midway
from rutc.tensor_ir.textual.parse import parse
from tests.machines import V4

SHARE = V4.coefficients.tiles.stream
L2 = 1000
MUCH = 500
REREAD = 2.0
MANY = 4
START = 3


def weight() -> TurnWeight:
    """The weight of no kernel yet, of sections from step 3 on."""
    slicer = SimpleNamespace(
        coefficients=SimpleNamespace(reread=REREAD, again=1.0),
        machine=SimpleNamespace(l2=L2),
        near=lambda times: int(MUCH * times),
    )
    return TurnWeight(cast(Slicer, slicer), MANY, START)


def part(
    *,
    read: tuple[tuple[int, int], ...] = (),
    near: tuple[tuple[int, int], ...] = (),
    again: int = 0,
    unhidden: float = 0.0,
) -> SectionPart:
    """A kernel that reads and passes on so much."""
    return SectionPart("m", -1, read, near, again, unhidden, 0.0)


def test_what_kernels_of_the_section_store_is_passed() -> None:
    """What steps before the first one store lies where it is in any case."""
    w = weight()
    w.add(part(read=((START - 1, 1), (START, 20)), near=((START - 1, 300), (START, 4000))))
    assert (w.kernels, w.passed, w.moved) == (1, 4020, 4020 * MANY)
    w.add(part(read=((START + 1, 100),), again=7, unhidden=3.5))
    w.add(part(again=2, unhidden=0.25))
    assert (w.kernels, w.passed, w.again, w.unhidden) == (3, 4120, 9, 3.75)


def test_what_two_l2_caches_hold_is_moved_by_nobody() -> None:
    w = weight()
    w.add(part(read=((START, 2 * L2 // MANY),)))
    assert w.moves_little
    assert w.gain == 0
    w.add(part(read=((START, 1),)))
    assert not w.moves_little
    assert w.gain == w.moved == 2 * L2 + MANY


@pytest.mark.parametrize("again", [MUCH, MUCH + 1])
def test_what_is_read_again_is_lost_once_it_is_much(again: int) -> None:
    """Each index but the first waits for it, as often as it is read again."""
    w = weight()
    w.add(part(read=((START, L2),), again=again, unhidden=10.0))
    lost = REREAD * (MANY - 1) * 10.0 if again > MUCH else 0
    assert w.gain == L2 * MANY - lost
    assert w.is_settled == (again > MUCH)


def test_nothing_is_settled_while_little_is_moved() -> None:
    w = weight()
    w.add(part(read=((START, 1),), again=MUCH + 1, unhidden=10.0))
    assert not w.is_settled
    assert w.gain == 0


@pytest.mark.parametrize(("low", "waits"), [(1, 1.0 - 11 / V4.rows_that_hide), (4, SHARE)])
def test_what_commonly_has_many_rows_hides_weights_with_few(low: int, waits: float) -> None:
    """Eleven or 23 rows midway to the least; known ones below a block hide nothing."""
    text = f"""
    graph "a product of texts"
    symbols batch = 0..64@1, m = {low}..1024@128
    dims n = batch, x = m, c = 64, d = 64
    %x : f32{{c,n,x}} = input "x" [n, x, c]
    %w : f32{{c,d}} = input "w" [c, d]
    %a : f32{{d,n,x}} = sum{{c}} %x[c, n, x] * %w[c, d]
    output "a" [n, x, d] = %a
    """

    def unhidden(text: str) -> float:
        plan = decide(parse(text), V4)
        (group,) = (s.group for s in plan.steps if isinstance(s, Run))
        slicer = SimpleNamespace(
            coefficients=V4.coefficients.slices,
            machine=V4,
            layouts=plan.layouts,
            extents=plan.graph.extents,
            symbols=dict(plan.graph.symbols),
            bytes=lambda v: 64 * 64 * 4,
        )
        found = _again(group, "n", cast(Slicer, slicer), midway(dict(plan.graph.symbols)))
        return found[1] / found[0]

    assert unhidden(text) == pytest.approx(waits)
    assert unhidden(text.replace("x = m", "x = 23")) == 1.0
