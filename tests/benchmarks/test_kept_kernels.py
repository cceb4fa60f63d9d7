"""Kernels that benchmarks keep are those that were measured, and need no model to be counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import fit, kept_kernels
from benchmarks.kept_kernels import decoded, encoded
from benchmarks.kernel_times import digest_of
from rutc.driver.parts.compile_job import with_schedule
from rutc.tensor_ir.cost import summarise
from rutc.tensor_ir.kernel import Kernel
from rutc.tuner import choose
from tests.machines import V4
from tests.tuner.test_schedules import lowered

KERNELS = {
    "product": """
graph "product"
dims i = 6, j = 40, k = 24
%x : f32{i,k} = input "x" [i, k]
%w : f32{j,k} = input "w" [k, j]
%y : f32{i,j} = sum{k} %x[i, k] * %w[j, k]
output "y" [i, j] = %y
""",
    "any number of rows": """
graph "rows"
symbols n = 1..4096 @ 128
dims i = n, j = 40
%x : f32{i,j} = input "x" [i, j]
%y : f32{i} = max{j} %x[i, j]
output "y" [i] = %y
""",
    "windows": """
graph "windows"
dims i = 30, o = 28, k = 3
%x : f32{i} = input "x" [i]
%y : f32{o} = sum{k} %x[i=o + k] * 0.5
output "y" [o] = %y
""",
    "equal quotients": """
graph "quotients"
dims i = 12, j = 24
%x : i64{i} = input "x" [i]
%y : f32{j} = exp(f32(%x[i=j // 2])) * exp(f32(%x[i=j // 2]))
output "y" [j] = %y
""",
}


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> tuple[Kernel, frozenset[str]]:
    return lowered(KERNELS[request.param])


def test_a_kept_kernel_is_the_same(kernel: tuple[Kernel, frozenset[str]], tmp_path: Path) -> None:
    place = tmp_path / "kept.json.gz"
    own, constants = kernel
    kept_kernels.write(place, {"it": (encoded(own), sorted(constants))})
    ((table, named),) = kept_kernels.read(place).values()
    assert decoded(table) == own
    assert digest_of(decoded(table), frozenset(named)) == digest_of(own, constants)


def test_what_was_one_object_is_one_again() -> None:
    """Operations of one object are counted once."""
    own, _ = lowered(KERNELS["equal quotients"])
    assert summarise(decoded(encoded(own)), V4) == summarise(own, V4)


def test_points_are_counted_without_their_models(
    kernel: tuple[Kernel, frozenset[str]], tmp_path: Path
) -> None:
    """Those of kernels that nothing has any more are left out."""
    own, constants = kernel
    done = with_schedule(own, choose(own, V4, constants))
    said, regions = "; ".join(map(str, done.schedule)), summarise(done.kernel, V4).regions
    old = [replace(r, work={"scalar": 1.0}) for r in regions]
    digest = digest_of(own, constants)
    row = fit.Timed("operator Abs", "g0", digest, V4.name, "none", 0, said, 1.0, tuple(old))
    lost = replace(row, digest="0" * 12)
    place, whence = tmp_path / "timed.json.gz", {"processor": "one"}
    fit.save(place, [row, lost], {V4.name: V4}, {V4.name: {}}, whence)
    fit.count_anew(place, {digest: (encoded(own), sorted(constants))})
    fit.save(
        tmp_path / "new.json.gz",
        [replace(row, regions=regions)],
        {V4.name: V4},
        {V4.name: {}},
        whence,
    )
    (found,), (new,) = (
        fit.load(each).points for each in (_alone(place), _alone(tmp_path / "new.json.gz"))
    )
    assert found.regions == new.regions


def _alone(place: Path) -> Path:
    folder = place.parent / place.stem
    folder.mkdir()
    place.rename(folder / place.name)
    return folder


def test_every_kept_kernel_is_read() -> None:
    kept = kept_kernels.read(fit.KEPT)
    some = sorted(kept)[::40]
    assert len(some) > 20
    for digest in some:
        table, constants = kept[digest]
        assert digest_of(decoded(table), frozenset(constants)) == digest
