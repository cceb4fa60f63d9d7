"""Descriptions of machines as files: to compile on one machine for another one that was measured.

    {"target": "x86-64-v4", "features": ["avx512vnni"], "l2": 1048576, "fma_per_cycle": 1.0, ...}

`target` names what the machine has at least, `features` what it has besides; every other field is
one of `Machine`, with the target's value where it is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from rutc.base.files import cannot_write, write_atomically
from rutc.errors import UserError
from rutc.tensor_ir.machine import Machine

FIXED = frozenset({"name", "triple", "features", "vector_bits", "registers", "coefficients"})
"""Fields that the target decides, or this version of rutc."""
LARGEST = 1e12
NARROWEST_LINE = 16
"""Bytes: the longest elements are half as long."""


def save_machine(machine: Machine, base: Machine, path: Path) -> None:
    """Writes the description of a machine that has at least what `base` has.

    Raises:
        UserError: the file cannot be written.
    """
    values = {f.name: getattr(machine, f.name) for f in fields(machine) if f.name not in FIXED}
    more = sorted(machine.features - base.features)
    text = json.dumps({"target": base.name, "features": more, **values}, indent=2)
    try:
        write_atomically(path, f"{text}\n".encode())
    except OSError as error:
        raise cannot_write(path, error) from error


def load_machine(path: Path, bases: Mapping[str, Machine], known: frozenset[str]) -> Machine:
    """Returns the machine that a file describes.

    `bases` are the targets by name, `known` the features that code generation uses.

    Raises:
        UserError: there is no such file, or what it says is no description of a machine.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} describes no machine: it is not JSON ({error})") from error
    try:
        return _machine(data, bases, known)
    except _NoMachineError as error:
        raise UserError(
            f"{path} describes no machine: {error}. "
            "`rutc doctor --save-target FILE.json` writes such files"
        ) from error


class _NoMachineError(Exception):
    """What a file says is no description of a machine."""


def _machine(data: object, bases: Mapping[str, Machine], known: frozenset[str]) -> Machine:
    if not isinstance(data, dict):
        raise _NoMachineError("it is not an object of names and values")
    given = dict(data)
    target, features = given.pop("target", None), given.pop("features", [])
    if not isinstance(target, str) or target not in bases:
        raise _NoMachineError(f"its target must be one of {', '.join(bases)}, not {target!r}")
    if not isinstance(features, list) or not set(map(str, features)) <= known:
        raise _NoMachineError(f"its features must be a list of some of {', '.join(sorted(known))}")
    base = bases[target]
    values: dict[str, int | float] = {}
    for field in fields(base):
        if field.name in FIXED or field.name not in given:
            continue
        value, usual = given.pop(field.name), getattr(base, field.name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # Costs may be nothing; sizes and rates not.
        least = 0 if usual == 0 or field.name == "load_cycles" else 1e-6
        if not number or not least <= value <= LARGEST:
            raise _NoMachineError(f"{field.name} must be a positive number, not {value!r}")
        if isinstance(usual, int) and value != int(value):
            raise _NoMachineError(f"{field.name} must be a whole number, not {value!r}")
        values[field.name] = type(usual)(value)
    if given:
        raise _NoMachineError(f"it has no field {', '.join(map(repr, given))}")
    machine = replace(base, features=base.features | set(features), **values)  # type: ignore[arg-type]
    if machine.l1_way_bytes % machine.line_bytes or machine.l1 % machine.l1_way_bytes:
        raise _NoMachineError("l1 must be a multiple of l1_way_bytes, and that one of line_bytes")
    if machine.line_bytes < NARROWEST_LINE or machine.l2 < machine.l1:
        raise _NoMachineError(f"lines have {NARROWEST_LINE} bytes or more, and l2 as many as l1")
    return machine
