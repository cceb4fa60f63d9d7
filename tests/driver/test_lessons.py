"""What was timed becomes lessons: once for each schedule, and some of it is held out of the fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fit, train
from tests.machines import V4

FITTED, HELD = f"{fit.HELD_OUT + 1:x}", f"{fit.HELD_OUT:x}"


def timed(cycles: float, source: str = "net", digest: str = FITTED, number: int = 0) -> fit.Timed:
    return fit.Timed(
        source, "g0", digest, V4.name, "tiled", number, f"split(d0, {number})", cycles, ()
    )


def written(folder: Path, processor: str, rows: list[fit.Timed], **more: object) -> None:
    """Writes the times of a processor, of which its provenance says more."""
    folder.mkdir(exist_ok=True)
    whence = {"processor": processor, **more}
    fit.save(folder / f"{processor}.json.gz", rows, {V4.name: V4}, {V4.name: {}}, whence)


def processors(times: fit.Times) -> set[str]:
    return {p.target.partition(" ")[0] for p in times.points}


def test_constants_are_fitted_to_no_processor_that_is_held_out(tmp_path: Path) -> None:
    written(tmp_path, "known", [timed(100.0)])
    written(tmp_path, "busy", [timed(100.0)], shared="3 tasks at once")
    written(tmp_path, "unknown", [timed(100.0)], held_out=True)
    assert processors(fit.load(tmp_path)) == {"known"}
    assert processors(fit.load(tmp_path, shared=True)) == {"known", "busy", "unknown"}


def test_all_of_a_processor_that_is_held_out_is_judged_as_unfitted(tmp_path: Path) -> None:
    rows = [timed(100.0), timed(100.0, digest=HELD)]
    written(tmp_path, "known", rows)
    written(tmp_path, "unknown", rows, held_out=True)
    data = train.lessons(fit.load(tmp_path, shared=True))
    found = zip(data.processors.tolist(), data.unfitted.tolist(), strict=True)
    assert list(found) == [
        ("known", False),
        ("known", True),
        ("unknown", True),
        ("unknown", True),
    ]


def test_what_was_timed_several_times_is_one_lesson_of_median_cycles() -> None:
    points = [
        timed(100.0),
        timed(200.0, number=1),
        timed(140.0, "other"),
        timed(120.0, "third"),
        timed(70.0, digest=HELD),
    ]
    found = train.once(points)
    assert [p.source for p in found] == ["net"] * 3
    assert [p.cycles for p in found] == pytest.approx([120.0, 200.0, 70.0])
