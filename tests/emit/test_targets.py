"""Targets: named ones, the machine at hand at its measured rates, and descriptions in files."""

import json
from dataclasses import fields, replace
from pathlib import Path

import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner

from rutc.cli import app
from rutc.driver.api import compile
from rutc.emit.targets import TARGETS, native_target, target_named, x86
from rutc.emit.targets import measured as measuring
from rutc.emit.targets.measured import (
    RATES,
    WINDOWS,
    coarse,
    in_cycles,
    measure,
    octave,
    with_measured_rates,
)
from rutc.emit.targets.select import save_native
from rutc.errors import UserError
from rutc.tensor_ir.machine import Machine
from tests.machines import NATIVE

NAMED = tuple(name for name in TARGETS if name != "native")
BASE = replace(NATIVE, **{name: getattr(Machine, name) for name in RATES})


def test_rates_are_rounded_to_few_values() -> None:
    assert [coarse(x) for x in (1.97, 0.71, 1.0, 31.3, 5.95, 9.2, 0.99, 145_000)] == [
        *(2.0, 0.75, 1.0, 32.0, 6.0, 8.0, 1.0),
        131072.0,
    ]
    for rate in (0.3, 1.2, 7.7, 1e5):
        assert coarse(coarse(rate)) == coarse(rate)
        assert rate / 1.28 < coarse(rate) < rate * 1.28


def test_whole_numbers_of_cycles_are_rounded_alike_when_they_are_measured_again() -> None:
    """Measurements of 3 cycles give 2.9 to 3.1; gathers of a Zen 5 take 19.6, 1 % more or less."""
    for cycles in range(1, 13):
        assert len({coarse(cycles * (1 + part / 1000)) for part in range(-40, 41)}) == 1, cycles
    assert len({coarse(19.6 * (1 + part / 1000)) for part in range(-20, 21)}) == 1
    # Operations in a cycle, which are measured as fewer.
    for rate in (0.5, 1, 2, 3, 4, 32, 64):
        assert len({coarse(rate * (1 - part / 1000)) for part in range(80)}) == 1, rate


def test_the_rate_of_the_last_cache_is_told_by_octaves() -> None:
    """Others use it meanwhile: reads on Emerald Rapids give 8.9 to 10 bytes a cycle."""
    assert [octave(x, 24.0) for x in (8.9, 9.5, 10.0, 17.0, 24.0, 30.0)] == [12.0] * 3 + [24.0] * 3


def test_what_is_measured_is_what_a_processor_can_do() -> None:
    """Bounds are wide: other work may run beside the tests."""
    found = measure(BASE)
    assert set(found) == set(RATES)
    assert 0.25 <= found["fma_per_cycle"] <= 4
    assert 0.25 <= found["loads_per_cycle"] <= 4
    assert 2 <= found["fma_latency"] <= 12
    assert found["gather_cycles"] > 1 / found["loads_per_cycle"]
    assert found["divide_cycles"] > 1 / found["fma_per_cycle"]
    assert 1 <= found["l2_bytes_per_cycle"] <= NATIVE.vector_bits
    assert found["l3_bytes_per_cycle"] <= found["l2_bytes_per_cycle"]
    assert found["l3_bytes_per_cycle"] in {24.0 * 2.0**k for k in range(-5, 2)}
    assert 1 <= found["hint_gain"] <= 8
    assert all(isinstance(x, type(getattr(Machine, name))) for name, x in found.items())


def test_a_cycle_that_seems_long_makes_no_loop_fast() -> None:
    """What disturbs every other measurement of a cycle leaves those beside it."""
    cycles = iter([1.0, 3.0] * WINDOWS)
    assert in_cycles(lambda: next(cycles), lambda: 10.0) == 10.0


def test_rates_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    given = iter([dict.fromkeys(RATES, 3), dict.fromkeys(RATES, 5)])
    monkeypatch.setattr(measuring, "measure", lambda machine: next(given))
    assert with_measured_rates(BASE).divide_cycles == 3
    assert with_measured_rates(BASE).divide_cycles == 3
    assert with_measured_rates(BASE, again=True).divide_cycles == 5
    assert with_measured_rates(BASE).divide_cycles == 5


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"fma_per_cycle": -1}', "half of"])
def test_damaged_rates_are_measured_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    monkeypatch.setattr(measuring, "measure", lambda machine: dict.fromkeys(RATES, 3))
    with_measured_rates(BASE)
    (file,) = (tmp_path / "machines").iterdir()
    file.write_text(damage)
    assert with_measured_rates(BASE).divide_cycles == 3
    assert json.loads(file.read_text()) == dict.fromkeys(RATES, 3)


def test_without_a_compiler_the_machine_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(machine: Machine) -> dict[str, float]:
        raise UserError("no C compiler found")

    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    monkeypatch.setattr(measuring, "measure", none)
    assert with_measured_rates(BASE) == BASE
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("name", NAMED)
def test_named_targets_are_the_same_everywhere(name: str) -> None:
    machine = target_named(name).machine
    assert machine.name == name
    assert {f.name: getattr(machine, f.name) for f in fields(machine) if f.name in RATES} == {
        name: getattr(Machine, name) if name != "l2_bytes_per_cycle" else machine.l2_bytes_per_cycle
        for name in RATES
    }


@pytest.mark.parametrize(
    ("name", "ahead"), [("x86-64-v3", False), ("x86-64-v4", True), ("aarch64", True)]
)
def test_tiles_leave_registers_to_load_ahead_where_there_are_many(
    name: str, *, ahead: bool
) -> None:
    machine = target_named(name).machine
    assert machine.loads_ahead == ahead
    # Of sums that wait for twice as long, twice as many are under way.
    assert not replace(machine, fma_latency=2 * machine.fma_latency).loads_ahead


def test_costs_that_nothing_measures_go_by_the_processor() -> None:
    machine = x86.avx512()
    assert x86.with_costs(machine, "znver4") != machine
    assert x86.with_costs(machine, "znver4").features == machine.features
    assert x86.with_costs(machine, "sapphirerapids") == machine
    assert x86.with_costs(x86.avx2(), "znver4") == x86.avx2()


def test_a_saved_machine_is_the_same_machine(tmp_path: Path) -> None:
    save_native(path := tmp_path / "mine.json")
    assert target_named(str(path)).machine == native_target().machine


def test_a_model_is_compiled_for_a_saved_machine(tmp_path: Path) -> None:
    path, model = tmp_path / "mine.json", tmp_path / "m.onnx"
    source = '<ir_version: 10, opset_import: ["" : 21]> g (float[64, 32] x, float[32, 48] w)'
    source += " => (float[64, 48] y) { p = MatMul (x, w) y = Relu (p) }"
    onnx.save(parser.parse_model(source), model)
    done = CliRunner().invoke(app, ["doctor", "--remeasure", "--save-target", str(path)])
    assert "multiply-add" in done.output
    for name, target in (("mine", str(path)), ("native", "native")):
        (tmp_path / name).mkdir()
        compile(model, tmp_path / name / "m.so", target=target)
    assert (tmp_path / "mine/m.so").read_bytes() == (tmp_path / "native/m.so").read_bytes()


WRONG = {
    "not JSON": ("half of", "not JSON"),
    "a list": ("[]", "not an object"),
    "no target": ("{}", "its target must be one of x86-64-v4"),
    "another target": ('{"target": "z80"}', "not 'z80'"),
    "a list as target": ('{"target": ["x86-64-v3"]}', "its target must be"),
    "unknown features": ('{"target": "x86-64-v3", "features": ["x87"]}', "its features must be"),
    "no list": ('{"target": "x86-64-v3", "features": "avxvnni"}', "its features must be"),
    "another field": ('{"target": "x86-64-v3", "l4": 1}', "no field 'l4'"),
    "its registers": ('{"target": "x86-64-v3", "registers": 64}', "no field 'registers'"),
    "a text": ('{"target": "x86-64-v3", "l2": "much"}', "l2 must be a positive number"),
    "a truth": ('{"target": "x86-64-v3", "l2": true}', "l2 must be a positive number"),
    "nothing": ('{"target": "x86-64-v3", "l2": 0}', "l2 must be a positive number"),
    "less": ('{"target": "x86-64-v3", "fma_per_cycle": -2}', "fma_per_cycle must be"),
    "infinity": ('{"target": "x86-64-v3", "l1": Infinity}', "l1 must be a positive number"),
    "no number": ('{"target": "x86-64-v3", "divide_cycles": NaN}', "divide_cycles must be"),
    "a half": ('{"target": "x86-64-v3", "fma_latency": 2.5}', "a whole number, not 2.5"),
    "a deep nest": ("[" * 100_000, "not JSON"),
    "a small second cache": ('{"target": "x86-64-v3", "l2": 1}', "l2 as many as l1"),
    "short lines": ('{"target": "x86-64-v3", "line_bytes": 1}', "16 bytes or more"),
    "lines in no way": ('{"target": "x86-64-v3", "line_bytes": 96}', "l1 must be a multiple"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_describes_no_machine_is_told(kind: str, tmp_path: Path) -> None:
    text, words = WRONG[kind]
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        target_named(str(path))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none\.json: No such file"):
        target_named(str(tmp_path / "none.json"))
    with pytest.raises(UserError, match="cannot write"):
        save_native(tmp_path / "none" / "mine.json")
    with pytest.raises(UserError, match=r"unknown target 'z80'.* --save-target"):
        target_named("z80")
