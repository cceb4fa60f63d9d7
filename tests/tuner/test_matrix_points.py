"""Schedules in matrix registers: which there are, and what estimates make of them."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rutc.driver.parts.compile_job import with_schedule
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.facts.matrix_blocks import REGISTERS, ROWS, operand_registers
from rutc.tuner.heuristic import spaces
from rutc.tuner.space import Space
from rutc.tuner.templates.matrix import MATRIX, MOST_BLOCKS
from tests.machines import TILES, needs
from tests.tuner.subjects import Subject, of_text, product_of_bytes

TEXT = product_of_bytes(96, 96, 128)
SHAPES = [(t, w) for t in range(1, 7) for w in (1, 2, 3, 6) if t * w <= MOST_BLOCKS]


def subject() -> Subject:
    return of_text(TEXT, frozenset("w"), Random(0))


def space_of(own: Subject) -> Space[Any]:
    (found,) = [s for s in spaces(own.kernel, TILES, own.free) if s.template is MATRIX]
    return found


@needs(TILES)
@pytest.mark.parametrize(("tall", "wide"), SHAPES)
def test_all_shapes_of_blocks_that_registers_hold_are_points(tall: int, wide: int) -> None:
    own = subject()
    space = space_of(own)
    assert space.default is not None
    point = replace(space.default.point, tall=tall, wide=wide)
    assert tall in space.axes["tall"]
    assert wide in space.axes["wide"]
    own.run(space.choice(point), TILES, 1)


@pytest.mark.parametrize(
    ("tall", "wide", "loads"), [(1, 1, 2), (2, 2, 4), (3, 1, 4), (1, 6, 7), (2, 3, 8), (3, 2, 9)]
)
def test_registers_load_what_they_cannot_keep_anew(tall: int, wide: int, loads: int) -> None:
    """With six sums there is one register for either operand.

    Blocks of columns take turns in it for each block of rows.
    """
    own = subject()
    space = space_of(own)
    assert space.default is not None
    choice = space.choice(replace(space.default.point, tall=tall, wide=wide))
    work = summarise(with_schedule(own.kernel, choice).kernel, TILES).work
    products = 6 * 6 * 2
    stores = 6 * 6 * ROWS
    assert work["matrices"] == products
    assert work["blocks"] - stores == ROWS * loads * products / (tall * wide)
    assert sum(operand_registers(tall * wide)) + tall * wide == REGISTERS


@pytest.mark.parametrize(("output", "outer"), [("m, n", "m"), ("n, m", "n")])
def test_results_along_rows_are_stored_panel_by_panel(output: str, outer: str) -> None:
    """The second cache holds all constants: else blocks of columns come before the next rows."""
    text = product_of_bytes(4096, 256, 128)
    own = of_text(text.replace('"s" [m, n]', f'"s" [{output}]'), frozenset("w"), Random(0))
    default = space_of(own).default
    assert default is not None
    assert default.point.order[0] == outer
