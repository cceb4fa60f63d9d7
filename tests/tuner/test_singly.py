"""Operands whose lanes lie apart: sorted in registers, or element by element as schedules say."""

from dataclasses import replace
from random import Random

import pytest

from rutc.driver.parts.compile_job import with_schedule
from rutc.emit.kernel import emit_kernel
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import NotApplicable, Singly, apply_schedule
from rutc.tensor_ir.steps.text import parse_schedule, print_schedule
from rutc.tuner.heuristic import spaces, usual
from tests.machines import V4, on_machines, runnable
from tests.tuner.subjects import Subject, of_text

TURNED = """
graph "turned"
dims c = 61, p = 37
%v : {dtype}{{c,p}} = input "v" [c, p]
%o : {dtype}{{c,p}} = %v[c, p]
output "o" [p, c] = %o
"""
EVERY_OTHER = """
graph "every other"
dims i = 7, j = 53, c = 2
%v : {dtype}{{j,i,c}} = input "v" [i, j, c]
%o : {dtype}{{i,j}} = %v[j, i, c=1]
output "o" [i, j] = %o
"""
BACKWARD = """
graph "backward"
dims i = 3, j = 53
%v : {dtype}{{i,j}} = input "v" [i, j]
%o : {dtype}{{i,j}} = %v[i, j=52 - j]
output "o" [i, j] = %o
"""
CHOSEN = """
graph "chosen"
dims n = 61, f = 20
%v : {dtype}{{f}} = input "v" [f]
%at : i64{{n}} = input "at" [n]
%o : {dtype}{{n}} = %v[f=%at[n]]
output "o" [n] = %o
"""
TEXTS = (TURNED, EVERY_OTHER, BACKWARD, CHOSEN)


def points(found: Subject, machine: Machine) -> list[tuple[object, object]]:
    """The points next to the defaults of a kernel whose lanes have loads or stores of their own."""
    own: list[tuple[object, object]] = []
    for space in spaces(found.kernel, machine, found.free):
        if space.default is None or "singly" not in space.axes:
            continue
        for buffers in space.axes["singly"]:
            point = replace(space.default.point, singly=buffers)
            try:
                space.choice(point)
            except NotApplicable:
                continue
            own.append((space, point))
    return own


@on_machines
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_elements_that_lie_apart_are_the_same_one_by_one(
    machine: Machine, text: str, dtype: str
) -> None:
    found = of_text(text.format(dtype=dtype), frozenset(), Random(0))
    own = points(found, machine)
    assert any(point.singly for _, point in own)
    for space, point in own:
        choice = space.choice(point)
        assert parse_schedule(print_schedule(choice.schedule)) == choice.schedule
        assert ("one by one" in str(point)) == bool(point.singly)
        found.run(choice, machine, 1 if runnable(machine) else None)


def code(found: Subject, space: object, point: object) -> tuple[str, Kernel]:
    kernel = with_schedule(found.kernel, space.choice(point), found.free).kernel
    return emit_kernel(kernel, V4).text, kernel


def sorts(text: str) -> bool:
    """Whether lanes are put into another order: to put one in all lanes is none."""
    shuffles = (x for x in text.splitlines() if "shufflevector" in x)
    picks = "permvar" in text or "vpermi2var" in text
    return picks or any(not x.endswith("zeroinitializer") for x in shuffles)


@pytest.mark.parametrize("text", [TURNED, EVERY_OTHER, BACKWARD, CHOSEN])
def test_nothing_is_sorted_in_registers_that_is_accessed_one_by_one(text: str) -> None:
    found = of_text(text.format(dtype="f32"), frozenset(), Random(0))
    space, point = usual(spaces(found.kernel, V4, found.free)) or (None, None)
    assert space is not None
    operand = "o" if text == TURNED else "v"
    before, kernel = code(found, space, point)
    after, changed = code(found, space, replace(point, singly=(operand,)))
    assert sorts(before)
    assert not sorts(after)
    counted, again = (summarise(k, V4).work for k in (kernel, changed))
    assert counted.get("shuffles", 0) > 0
    assert counted.get("gathered", 0) + counted.get("scattered", 0) == 0
    assert again.get("shuffles", 0) == 0
    assert again.get("gathered", 0) + again.get("scattered", 0) > 0
    assert str(changed).splitlines()[0].count(" singly") == 1


def test_what_is_in_no_memory_or_lies_side_by_side_is_refused() -> None:
    found = of_text(TURNED.format(dtype="f32"), frozenset(), Random(0))
    with pytest.raises(NotApplicable, match="there is no memory %u"):
        Singly("u").apply(found.kernel)
    name = found.kernel.args[0].name
    with pytest.raises(NotApplicable, match="already"):
        apply_schedule(found.kernel, (Singly(name), Singly(name)))
    with pytest.raises(ValueError, match="fields"):
        parse_schedule("singly()")
    halves = replace(
        found.kernel.args[0], layout=replace(found.kernel.args[0].layout, nibbles=True)
    )
    kernel = replace(found.kernel, args=(halves, *found.kernel.args[1:]))
    with pytest.raises(NotApplicable, match="halves of bytes"):
        Singly(name).apply(kernel)
    plain = of_text(EVERY_OTHER.format(dtype="f32"), frozenset(), Random(0))
    (space,) = spaces(plain.kernel, V4, plain.free)
    assert space.default is not None
    stored = plain.kernel.args[-1].name
    with pytest.raises(NotApplicable, match="do not lie apart"):
        space.choice(replace(space.default.point, order=("i", "j"), singly=(stored,)))
