"""Tables on terminals of all widths: nothing of them is lost, and names are text as they are."""

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from rutc.report.display import (
    StepTime,
    profile_table,
    shape_text,
    timings_table,
    verification_table,
)
from rutc.report.listing import Table, draw
from rutc.report.shown_values import values_json, values_table
from rutc.verify import Level, OutputComparison, Verification
from rutc.verify.bench import BenchTiming
from rutc.verify.interleaved import Latency
from tests.cli.conftest import Rutc
from tests.onnx_files import write_model


def _drawn(table: Table, width: int, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The cells of all lines, on a terminal of some columns."""
    draw(table, width)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    return _words(lines)


def _words(lines: list[str]) -> list[list[str]]:
    return [re.split(r"[\s│┃]+", line) for line in lines]


@pytest.mark.parametrize("command", [("inspect",), ("compile", "-o", "m.so")])
def test_shapes_of_open_sizes_are_shown(
    rutc: Rutc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Of a model and of what is compiled of it, where names look like styles of a terminal."""
    monkeypatch.chdir(tmp_path)
    _any_rows(tmp_path / "m.onnx")
    name, *options = command
    result = rutc(name, "m.onnx", *options)
    shown = result.stdout if name == "inspect" else rutc("inspect", "m.so").stdout
    assert shown.count("[batch, 3]") == 2
    assert "[red]x" in shown


def _any_rows(path: Path) -> None:
    node, shape = helper.make_node("Mul", ["[red]x", "[red]x"], ["y"]), ["batch", 3]
    write_model(path, [node], {"[red]x": shape}, {"y": shape})


def test_columns_in_which_nothing_stands_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """With their titles; one that has a text in any row stays."""
    table = Table("kernel", "best", "measured", "used", names=("kernel",))
    table.add("g1", "", "", "")
    table.add("g2", "", "7", "")
    text = " ".join(word for line in _drawn(table, 80, capsys) for word in line if word)
    assert "kernel measured" in text
    assert "best" not in text
    assert "used" not in text
    empty = Table("kernel", "best")
    assert any("best" in line for line in _drawn(empty, 80, capsys))


def test_long_formulas_are_left_to_json() -> None:
    assert shape_text(["batch", 4, "(h + 31)//32"]) == "[batch, 4, (h + 31)//32]"
    formula = "past + max(-past + total, seq)*min(1, min(max(-past + total, 0), seq))"
    assert shape_text(["batch", formula, 32]) == "[batch, …, 32]"


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_a_verification_is_shown_whole(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    one = OutputComparison("present.10.value", "float32", (5, 4, 128, 32), True)
    outputs = (replace(one, max_abs=1.93e-08, max_ulp=123456, largest=2.0, error=3.1e-8),)
    found = Verification(Path("m"), Path("l"), Level.MODEL, "", "", 1, outputs, 0.0, 0.0)
    cells = _drawn(verification_table(found), width, capsys)
    for number in ("1.93e-08", "123456", "9.7e-09", "3.1e-08"):
        assert any(number in line for line in cells)
    folded = "".join("".join(line) for line in cells)
    assert "…" not in folded


def test_short_names_are_not_folded_where_numbers_leave_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = OutputComparison("out", "float32", (1, 5, 161), True)
    found = replace(one, max_abs=0.000809, max_ulp=1505, error=0.00011, reference_error=7.3e-5)
    told = Verification(Path("m"), Path("l"), Level.MODEL, "", "", 1, (found,), 0.0, 0.0)
    assert any(
        "out float32[1, 5, 161] 0.000809" in " ".join(line)
        for line in _drawn(verification_table(told), 80, capsys)
    )


@pytest.mark.parametrize("width", [30, 80, 120])
def test_a_profile_is_shown_whole(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal that has no room for all numbers breaks lines, but no number is cut off."""
    long = StepTime(
        "g.GRU_1_output_0_7.collect", "/layers.0/GRU_1", 188.25, 9870, 19600, 10, 1, 90.4, "memory"
    )
    short = StepTime("g0", "/Log", 60.27, 98700000, 19600, 1, 2, 9.04, "second cache")
    draw(profile_table([long, short]), width)
    lines = capsys.readouterr().out.splitlines()
    cells = [word for line in _words(lines) for word in line]
    for number in ("188.25", "75.7", "248.52", "1637.6", "90.40", "48", "second", "/Log"):
        assert number in cells
    assert width < 80 or max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_timings_are_shown_whole(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    slow = Latency(12345, 61234.56, 61000.1, 62000.2, 123456.7, 60999.9)
    fast = replace(slow, median_us=26.19)
    cells = _drawn(
        timings_table([BenchTiming(1, fast, slow, replace(slow, runs=777))]), width, capsys
    )
    for number in ("61235", "123457", "12345", "26.19", "38183", "0.000", "777"):
        assert any(number in line for line in cells)


def test_outputs_of_all_kinds_are_shown() -> None:
    values = {
        "label": np.array(["yes", "no"], object),
        "scores": [{"no": 0.25, "yes": 0.75}],
        "parts": [np.zeros((2, 3), np.float32), np.zeros(1, np.float32)],
        "none": None,
        "empty": [],
        "third": np.array([1 / 3], np.float32),
    }
    told = {str(v["name"]): (v["dtype"], v["first"]) for v in values_json(values)}
    assert told["label"] == ("string", "yes no")
    assert told["scores"] == ("sequence", "no: 0.25, yes: 0.75")
    assert told["parts"] == ("sequence", "float32[2, 3]")
    assert told["none"] == ("optional", "")
    assert told["empty"] == ("sequence", "")
    assert told["third"] == ("float32", "0.333333")


def test_outputs_on_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    value = np.linspace(-2.49546123, 3, 6000, dtype=np.float32).reshape(3, 2000)
    cells = _drawn(values_table({"present.10.value": value}), 80, capsys)
    assert any("-2.495" in line and "0.2523" in line for line in cells)
    assert not any("…" in cell for line in cells for cell in line)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_elements_are_not_broken(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns of names share the room: each has what its longest word needs."""
    values = {
        "p_boxes": np.linspace(4, 320, 8400, dtype=np.float32).reshape(1, 2100, 4),
        "p_scores": np.linspace(2.21512e-06, 0.03774, 37800, dtype=np.float32).reshape(1, 18, 2100),
    }
    cells = _drawn(values_table(values), width, capsys)
    assert any("2.21512e-06" in line for line in cells)


def test_a_table_that_nobody_reads_is_the_commands_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rutc inspect OUT.so | head -1` has the status of what SIGPIPE ends."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = open(writer, "w")  # noqa: SIM115 - it cannot be closed as others are
    monkeypatch.setattr("sys.stdout", stream)
    with pytest.raises(BrokenPipeError):
        draw(Table("a"), 80)
    with suppress(BrokenPipeError):
        stream.close()
