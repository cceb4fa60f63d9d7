"""What the page of numbers says of decisions that read one: those that change, and by how much."""

import pytest

from benchmarks import coefficients, sensitivity, varied
from benchmarks.varied import Network, Subject, number_of, others_of
from rutc.emit.targets import x86
from rutc.tensor_ir import Nest
from rutc.tensor_ir.indices.affine import plain
from rutc.tensor_ir.layout import dense
from rutc.tensor_ir.lower import Group, lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse

PRODUCT = """
graph "product"
dims i = 512, j = 192, k = 768
%x : f32{i,k} = input "x" [i, k]
%w : f32{k,j} = input "w" [k, j]
%y : f32{i,j} = sum{k} %x[i, k] * %w[k, j]
output "y" [i, j] = %y
"""
V3 = x86.avx2()


def _subject(machine: Machine) -> Subject:
    graph = parse(PRODUCT)
    nest = next(n for n in graph.nodes if isinstance(n, Nest))
    extents = {d: plain(e) for d, e in graph.dims}
    layouts = {v: dense(tuple(d), extents) for v, d in (("x", "ik"), ("w", "kj"), ("y", "ij"))}
    group = Group("g", (nest,), ("i", "j"), ("y",))
    kernel = lower(group, graph.values, layouts, extents)
    return varied._subject("product", "g", kernel, frozenset(), machine.alone())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel and one network are all that decisions are made about."""
    monkeypatch.setattr(sensitivity, "targets", lambda: {"AVX2": V3})
    monkeypatch.setattr(sensitivity, "subjects", lambda m, share: (_subject(m),))

    def networks(machine: Machine, share: int) -> tuple[Network, ...]:
        return (varied._network("product", parse(PRODUCT), None, machine),)

    monkeypatch.setattr(sensitivity, "networks", networks)


def test_changes_are_counted_and_estimated(few: None) -> None:
    name = "tiles.spare"
    entry = {"case": name, **sensitivity.measure(name, 0.0, ())}
    own = entry["decisions"]["AVX2"]
    assert (own["plans"], own["schedules"]) == (0, 1)
    assert [t["value"] for t in own["tried"]] == others_of(name)
    changed = [t["schedules"]["changed"] for t in own["tried"]]
    ratios = [len(t["schedules"]["ratios"]) for t in own["tried"]]
    assert changed == ratios
    assert any(changed)
    text = sensitivity.page([entry], {})
    assert f"| {name} | {number_of(name):g} |" in text
    assert "AVX2 1 of 1: " in text
    assert "changes with: none.\n" in text
    assert f"Not looked at yet: {varied.NAMES[1]}, " in text


def test_a_number_that_changes_nothing_is_said_to(few: None) -> None:
    name = "layouts.copy"
    entry = {"case": name, **sensitivity.measure(name, 0.0, ())}
    assert entry["decisions"]["AVX2"]["plans"] == 1
    assert f"changes with: {name}." in sensitivity.page([entry], {})


def test_a_number_that_nothing_reads_is_said_not_to_be_read(few: None) -> None:
    name = "forests.walks"
    entry = {"case": name, **sensitivity.measure(name, 0.0, ())}
    text = sensitivity.page([entry], {})
    assert "changes with: none." in text
    assert f"looked at reads: {name}." in text


def test_times_count_for_the_number_that_they_were_taken_with() -> None:
    name = "tiles.spare"
    timed = {
        "value": number_of(name),
        "processor": "znver4",
        "commit": "1234567",
        "date": "2026-11-27",
        "reading": [1, 0],
        "tried": [{"kernels": {"changed": 0}, "networks": {"changed": 0}}],
    }
    said = sensitivity.source_of(name, {name: timed})
    assert said == "changes nothing here (znver4, 1234567, 2026-11-27)"
    other = {**timed, "value": number_of(name) + 1}
    assert sensitivity.source_of(name, {name: other}) == ""
    assert sensitivity.source_of(name, {}) == ""


def test_what_was_found_of_another_number_is_left_out(few: None) -> None:
    name = "tiles.spare"
    entry = {"case": name, **sensitivity.measure(name, 0.0, ())}
    timed = {**entry, "reading": [1, 0], "processor": "znver4", "cpu": "a CPU", "tried": []}
    stale = {"value": number_of(name) + 1}
    assert f"| {name} |" in sensitivity.page([entry], {})
    text = sensitivity.page([{**entry, **stale}], {})
    assert f"| {name} |" not in text
    assert f"Not looked at yet: {name}, " in text
    assert f"Not measured yet: {varied.NAMES[1]}, " in "\n".join(coefficients._table([timed]))
    assert f"Not measured yet: {name}, " in "\n".join(coefficients._table([timed | stale]))
