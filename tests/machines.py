"""The machines that tests compile for, and which of them this processor is.

Code is generated for any machine anywhere. Before it runs, a test asks here, by the detection
that `--target native` uses, whether it can.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rutc.emit.targets import target_named
from rutc.tensor_ir.machine import Machine
from tests.tiles import FEATURES, without_tiles

NATIVE = target_named("native").machine
V3, V4 = (target_named(name).machine for name in ("x86-64-v3", "x86-64-v4"))
TILES = replace(V4, features=V4.features | FEATURES)
"""A machine with registers for matrices."""
TILES_V3 = replace(V3, features=V3.features | FEATURES)
"""The same beside vectors of 256 bits, which no processor is: functions do its work on any."""


def eager(machine: Machine) -> Machine:
    """The machine, if threads started at no cost: however little there is to do, they share it."""
    return replace(machine, launch_cycles=0, wake_cycles=0)


def weighing(machine: Machine, group: str, **values: float) -> Machine:
    """The machine, some coefficients of decisions for it of other values."""
    own = machine.coefficients
    changed = {group: replace(getattr(own, group), **values)}
    return replace(machine, coefficients=replace(own, **changed))


def rounding(machine: Machine) -> Machine:
    """The machine, if to round to fewer bits cost nothing: whatever may be rounded is."""
    machine = weighing(machine, "bf16_pairs", rounded=0.0, packed=0.0)
    return weighing(machine, "stored_types", least_gain=-1.0, least_moved=0.0)


def lacking(machine: Machine) -> str:
    """Why this processor cannot run a machine's code; empty where it can, be it with functions."""
    if machine.architecture != NATIVE.architecture:
        return f"this processor is not of the family {machine.architecture}"
    missing = without_tiles(machine) - NATIVE.features
    return f"this processor lacks {', '.join(sorted(missing))}" if missing else ""


def emulated(machine: Machine) -> bool:
    """Whether functions do what this processor lacks: instructions on tiles."""
    return bool(machine.features & FEATURES - NATIVE.features)


def runnable(machine: Machine) -> bool:
    """Whether this processor can run the machine's code."""
    return not lacking(machine)


def needs(machine: Machine) -> pytest.MarkDecorator:
    """The mark of a test that runs code for this machine."""
    return pytest.mark.skipif(not runnable(machine), reason=lacking(machine))


def on(machines: Mapping[str, Machine]) -> pytest.MarkDecorator:
    """The mark of a test of its argument `machine`, skipped for those that cannot run here."""
    params = [pytest.param(m, id=name, marks=needs(m)) for name, m in machines.items()]
    return pytest.mark.parametrize("machine", params)


RUNNABLE = {m.name: m for m in (NATIVE, V3, V4) if runnable(m)}
"""The machines to draw from, by name."""
on_machines = on({m.name: m for m in (V3, V4)})
on_native_and_v3 = on(
    {V3.name: V3} | ({"native": NATIVE} if NATIVE.features != V3.features else {})
)
