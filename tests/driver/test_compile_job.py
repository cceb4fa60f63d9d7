"""Compile jobs: what decides code, and what it becomes."""

import gc
from dataclasses import replace
from pathlib import Path
from struct import unpack

import numpy as np
import pytest

from rutc.driver.parts import compile_job
from rutc.driver.parts.compile_job import (
    Argument,
    CompileJob,
    MachineCode,
    Made,
    code_sources_digest,
    draft,
    key,
    made_of,
    make,
    scheduled,
)
from rutc.emit import cache
from rutc.emit.cache import lookup
from rutc.emit.llvm.codegen import compile_object
from rutc.emit.targets import target_named
from rutc.errors import InternalError
from rutc.graph_opt.decide import decide
from rutc.tensor_ir.canonical import canonical
from rutc.tensor_ir.cost.fitted import FITTED
from rutc.tensor_ir.indices.affine import Index, plain
from rutc.tensor_ir.kernel import Kernel
from rutc.tensor_ir.lower import lower
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.steps import Pack
from rutc.tensor_ir.textual.parse import parse, parse_index
from rutc.tuner.choice import Choice
from rutc.tuner.sharing import Piece, Way

NATIVE = target_named("native").machine
TEXT = """
graph "product"
dims {m} = 5, {n} = 7, k = 3
%{x} : f32{{k,{m}}} = input "x" [{m}, k]
%w : f32{{k,{n}}} = input "w" [k, {n}]
%{y} : f32{{{m},{n}}} = sum{{k}} %{x}[k, {m}] * %w[k, {n}]
output "y" [{m}, {n}] = %{y}
"""


ROWS = """
graph "rows"
symbols h = 1..2147483648
dims m = {rows}, n = 7
%x : f32{{m,n}} = input "x" [m, n]
%y : f32{{m,n}} = {what}
output "y" [m, n] = %y
"""


def rows(count: str, what: str = "%x[m, n] * 2.0") -> CompileJob:
    """The job of a kernel over so many rows."""
    plan = decide(parse(ROWS.format(rows=count, what=what)), NATIVE)
    (group,) = plan.groups()
    extents = {d: plain(e) for d, e in plan.graph.dims}
    symbols = dict(plan.graph.symbols)
    return job(lower(group, plan.values, plan.layouts, extents, symbols))


def kernel(m: str = "m", n: str = "n", x: str = "x", y: str = "y") -> Kernel:
    """The kernel of a product, its names as given."""
    plan = decide(parse(TEXT.format(m=m, n=n, x=x, y=y)), NATIVE)
    (group,) = plan.groups()
    extents = {d: plain(e) for d, e in plan.graph.dims}
    return lower(group, plan.values, plan.layouts, extents, {})


def job(*kernels: Kernel) -> CompileJob:
    return CompileJob(canonical(*kernels).kernels, ((),) * len(kernels))


def test_making_code_leaves_nothing_to_the_search_for_garbage() -> None:
    for made in (job(kernel()), rows("h"), rows("7")):
        make_without_code(made)
        gc.collect()
        make_without_code(made)
        assert gc.collect() == 0


def make_without_code(made: CompileJob) -> None:
    made_of(draft(made, NATIVE), NATIVE, code=False)


def test_names_do_not_matter() -> None:
    one, other = job(kernel()), job(kernel("rows", "columns", "left"))
    assert one == other
    assert key(one, NATIVE) == key(other, NATIVE)


def test_machine_and_constants_matter() -> None:
    found = job(kernel())
    keys = {
        key(found, NATIVE),
        key(found, replace(NATIVE, l2=NATIVE.l2 * 2)),
        key(replace(found, constants=(("b1",),)), NATIVE),
    }
    assert len(keys) == 3


def test_kernels_of_a_chain_keep_common_names_in_common() -> None:
    first = kernel()
    same, apart = canonical(first, first), canonical(first, kernel(x="other"))
    assert same.kernels[0].args == same.kernels[1].args
    assert apart.kernels[0] == same.kernels[0]
    assert apart.kernels[1] != apart.kernels[0]
    assert len(apart.buffers) == len(same.buffers) + 1


def test_chains_share_the_schedules_of_the_kernels_that_both_have() -> None:
    first = kernel()
    same, apart = (scheduled(job(first, x), NATIVE) for x in (first, kernel(x="other")))
    assert apart[0] is same[0]
    assert apart[1] != same[1]


def test_names_of_a_later_kernel_of_a_chain_do_not_matter() -> None:
    first, common = kernel(), canonical(kernel(), kernel("m", "n", "p", "q"))
    other = canonical(first, kernel("rows", "n", "left", "result"))
    assert other.kernels == common.kernels
    assert other.dims.keys() == common.dims.keys()
    assert [d for d in other.dims.values() if d != "rows"].count("m") == 1
    assert list(common.dims.values()).count("m") == 2


@pytest.mark.parametrize("tasks", [0, 12, parse_index("(batch + 3) // 4 * 'seq len'")])
def test_what_is_stored_comes_back(tasks: int | Index) -> None:
    packing = Pack("b1", ("d1", "d0"), (("d0", 16),))
    arguments = (Argument("b0", None, True, 96), Argument("b1.1", packing, False, 64))
    found = (Way(1, (Piece("d0", 64), None)), Way(tasks, (None, None), 1.25, 3, True))
    steps, code = "mark(d0, unroll)", b"\x7fELF\n\n\x00"
    sizes = Index.of("d2"), parse_index("min((d3 + 7) // 8, 'seq len')")
    made = Made(
        "k_0",
        arguments,
        sizes,
        tasks,
        64,
        steps,
        found,
        ("amx-bf16",),
        2.5,
        1.5,
        "loads",
        b"abcd",
        code,
    )
    assert Made.decoded(made.encoded()) == made


def test_what_is_no_constant_is_not_packed() -> None:
    """Only constants are laid out when the library is made."""
    given = canonical(kernel())
    reads = [b.name for b in given.kernels[0].args][:2]
    dims = [[d for d, _ in b.layout.extents] for b in given.kernels[0].args[:2]]
    choices = tuple(Choice((Pack(b, tuple(d)),)) for b, d in zip(reads, dims, strict=True))
    make(CompileJob(given.kernels, ((reads[0],),), choices=choices[:1]), NATIVE)
    with pytest.raises(InternalError, match=f"%{reads[1]} is packed, which is no constant"):
        make(CompileJob(given.kernels, ((reads[0],),), choices=choices[1:]), NATIVE)


def test_code_depends_on_the_job_alone() -> None:
    assert make(job(kernel()), NATIVE) == make(job(kernel("b", "a", "q")), NATIVE)


def test_kernels_that_differ_in_sizes_alone_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    texts: list[str] = []

    def compiled(text: str, machine: Machine, *, symbol: str, entry: str) -> bytes:
        texts.append(text)
        return compile_object(text, machine, symbol=symbol, entry=entry)

    monkeypatch.setattr("rutc.driver.parts.compile_job.compile_object", compiled)
    first, second = (make(rows(f"(h + {k - 1}) // {k}"), NATIVE) for k in (4, 32))
    assert len(texts) == 1
    assert (first.symbol, first.code) == (second.symbol, second.code)
    (own,), (others,) = first.sizes, second.sizes
    assert str(own).replace("3) // 4", "31) // 32") == str(others)
    other = make(rows("h", "%x[m, n] + %x[m, n]"), NATIVE)
    assert len(texts) == 2
    assert other.symbol != first.symbol


def test_kernels_that_differ_in_literals_alone_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    found = [make(rows("h", f"%x[m, n] * {c} + {d}"), NATIVE) for c, d in ((2, 7), (0.3, -0.1))]
    assert len({(made.symbol, made.code) for made in found}) == 1
    assert [unpack("<2f", made.numbers) for made in found] == [
        (2.0, 7.0),
        tuple(np.float32([0.3, -0.1]).tolist()),
    ]
    for same in ("%x[m, n] * 1.0 + 7.0", "%x[m, n] * 2.0 + 2.0", "max(%x[m, n], 7.0) * 2.0"):
        assert make(rows("h", same), NATIVE).symbol != found[0].symbol


def test_what_is_no_code_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUTC_CACHE", str(tmp_path))
    wanted = make(rows("h"), NATIVE)
    code = MachineCode(wanted.symbol, wanted.numbers, wanted.code)
    encoded = code.encoded()
    assert MachineCode.found(encoded) == code
    for data in (b"", wanted.code, b"k_0\n" + wanted.code, encoded.replace(b"ELF", b"FLE")):
        assert MachineCode.found(data) is None
        monkeypatch.setattr(cache, "lookup", lambda _, data=data: data)
        assert make(rows("h"), NATIVE) == wanted


def test_the_key_names_the_compilers_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    found = job(kernel())
    before = key(found, NATIVE)
    monkeypatch.setattr(
        "rutc.driver.parts.compile_job.code_sources_digest", lambda: "other sources"
    )
    assert key(found, NATIVE) != before
    assert lookup(key(found, NATIVE)) is None
    assert len(code_sources_digest()) == 64


def test_what_decides_code_is_where_the_sources_digest_looks() -> None:
    missing = [part for part in compile_job.SOURCES if not (compile_job.ROOT / part).exists()]
    assert not missing


def test_what_estimates_were_fitted_to_decides_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates choose schedules: with other numbers a kernel may become other code."""
    root = compile_job.ROOT
    monkeypatch.setattr(compile_job, "ROOT", tmp_path)
    fitted = tmp_path / FITTED.resolve().relative_to(root)
    fitted.parent.mkdir(parents=True)
    found = []
    for text in ("1", "2"):
        fitted.write_text(text)
        found.append(code_sources_digest.__wrapped__())
    assert found[0] != found[1]
