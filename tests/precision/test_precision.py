"""`--precision bf16` and `fp16`: weights in 16 bits where that is faster, and nothing else."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import rutc
from rutc.driver.compiler import Options, compile_model
from rutc.driver.parts.build import Builder
from rutc.driver.plans.narrow_weights import TYPES as DTYPES
from rutc.driver.plans.narrow_weights import stored_types, with_narrow_weights
from rutc.driver.plans.planning import planned
from rutc.errors import UserError
from rutc.graph_opt import versions
from rutc.graph_opt.alternatives.split_precision import SAID_ROUNDED
from rutc.graph_opt.decide.greedy import greedy
from rutc.graph_opt.decide.prepared import prepare
from rutc.graph_opt.leeway import Leeway
from rutc.graph_opt.plan import Plan
from rutc.importer import import_model
from rutc.report.explain import explain
from rutc.runtime import load
from rutc.tensor_ir import Data, DType
from rutc.tensor_ir.machine import Machine
from rutc.tensor_ir.textual.parse import parse
from rutc.verify import verify_model
from rutc.verify.judging.tolerance import Level
from rutc.verify.reference import Reference
from tests.cli.conftest import invoke
from tests.close import assert_close
from tests.compiled import build, run
from tests.graph_opt.networks import Net
from tests.machines import TILES, TILES_V3, V3, V4, needs, weighing

TYPES = {"bf16": "bf16", "fp16": "f16", "w8": "i8"}


def layers(n: Net, rows: int = 1, width: int = 384) -> str:
    """Products of a few rows, with biases."""
    x = n.input(rows, width)
    for _ in range(2):
        x = n("Relu", n("Gemm", x, n.weight(width, width), n.weight(width)))
    return n("MatMul", x, n.weight(width, 100))


def block(n: Net, words: int = 2, width: int = 512) -> str:
    """Attention over a few words, whose table gives the scores of the next one, too."""
    ids = n.input(1, words, type_=TensorProto.INT64)
    table = n.weight(500, width)
    x = n("Gather", table, ids)
    g, b = n.weight(width), n.weight(width)
    y = n("LayerNormalization", x, g, b)
    q, k, v = (n("MatMul", y, n.weight(width, width)) for _ in range(3))
    scores = n("Softmax", n("MatMul", q, n("Transpose", k, perm=[0, 2, 1])), axis=-1)
    x = n("Add", x, n("MatMul", n("MatMul", scores, v), n.weight(width, width)))
    h = n("Gelu", n("MatMul", x, n.weight(width, 4 * width)))
    x = n("Add", x, n("MatMul", h, n.weight(4 * width, width)))
    return n("MatMul", x, n("Transpose", table, perm=[1, 0]))


def recurrent(n: Net) -> str:
    """An LSTM, one sequence at a time."""
    x = n.input(5, 1, 64)
    return n("LSTM", x, n.weight(1, 512, 64), n.weight(1, 512, 128), hidden_size=128)


def saved(make: Callable[..., str], folder: Path, *sizes: int) -> Path:
    """The file of a network."""
    n = Net()
    result = make(n, *sizes)
    return n.save(folder / f"{make.__name__}.onnx", result)


def manifest_of(library: Path) -> Mapping[str, object]:
    with load(library, threads=1) as session:
        return session.manifest


def plan_of(model: Path, machine: Machine, precision: str) -> Plan:
    """The plan of a model that has one."""
    plan, earlier = planned(versions(import_model(model), machine), machine, precision)
    assert not earlier
    return plan


def angles(n: Net) -> str:
    """Sines of many frequencies: those of a rounded table are others."""
    return n("Sin", n("MatMul", n.input(4, 64), n.weight(64, 4096)))


def warped(n: Net) -> str:
    """A picture that is read at the places of a table, turned."""
    x, turn, table = n.input(1, 4, 64, 64), n.input(1, 2, 3), n.weight(3, 64 * 64)
    places = n("Transpose", n("MatMul", turn, table), perm=[0, 2, 1])
    return n("GridSample", x, n("Reshape", places, n.const([1, 64, 64, 2], np.int64)))


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("make", [angles, warped])
def test_what_tells_places_keeps_all_digits(
    make: Callable[..., str], precision: str, tmp_path: Path
) -> None:
    model = saved(make, tmp_path)
    made = rutc.compile(model, tmp_path / "made.so", precision=precision)
    assert made.verification is not None
    assert made.verification.level is Level.MODEL


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("make", [layers, block, recurrent])
def test_weights_of_products_take_less_memory(
    make: Callable[..., str], precision: str, tmp_path: Path
) -> None:
    model = saved(make, tmp_path)
    usual = rutc.compile(model, tmp_path / "usual.so", target="x86-64-v3")
    made = rutc.compile(model, tmp_path / "made.so", target="x86-64-v3", precision=precision)
    assert made.verification is not None
    assert made.verification.passed
    assert made.verification.level is (Level.HALF if precision == "fp16" else Level.REDUCED)
    (output,) = made.verification.outputs
    assert output.error is not None
    assert output.error > 1e-5, "weights are rounded"
    report, before = made.report, usual.report
    assert report.narrow_values >= 1
    share = 1 / 4 if precision == "w8" else 1 / 2
    assert report.narrow_bytes == pytest.approx(
        share * (report.narrow_bytes + report.narrow_saved), rel=0.1
    )
    assert before.weight_bytes - report.weight_bytes >= 0.98 * report.narrow_saved
    # Tables of words stay as they are, and weights that several rows share.
    assert report.weight_bytes < 0.8 * before.weight_bytes
    manifest = manifest_of(made.library)
    assert manifest["precision"] == precision
    stored = manifest["stored"]
    assert isinstance(stored, list)
    assert {s["type"] for s in stored} == {TYPES[precision]}
    assert sum(s["bytes"] for s in stored) == report.narrow_bytes
    assert "stored" not in manifest_of(usual.library)
    assert manifest_of(usual.library)["precision"] == "fp32"


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("machine", [V3, V4], ids=["v3", "v4"])
@pytest.mark.parametrize("make", [layers, block])
def test_plans_for_machines_store_weights_in_fewer_bits(
    make: Callable[..., str], machine: Machine, precision: str, tmp_path: Path
) -> None:
    plan = plan_of(saved(make, tmp_path), machine, precision)
    assert plan.assignment is not None
    names = [s.value for s in plan.assignment.types]
    assert len(names) == (3 if make is layers else 7)
    assert [s.value for s in stored_types([plan])] == names
    for name in names:
        assert str(plan.values[name].dtype) == TYPES[precision]
    usual = plan_of(tmp_path / f"{make.__name__}.onnx", machine, "fp32")
    # The last product may or may not join the kernel of what it reads.
    assert abs(len(list(plan.groups())) - len(list(usual.groups()))) <= 1


def test_many_rows_keep_their_weights(tmp_path: Path) -> None:
    model = saved(layers, tmp_path, 256)
    assert not stored_types([plan_of(model, V3, "bf16")])
    made = rutc.compile(model, tmp_path / "made.so", target="x86-64-v3", precision="bf16")
    usual = rutc.compile(model, tmp_path / "usual.so", target="x86-64-v3")
    assert made.verification is not None
    assert made.verification.level is Level.MODEL
    assert made.report.narrow_values == 0
    assert made.report.weight_bytes == usual.report.weight_bytes
    # It is a matter of what is gained, and of nothing else.
    eager = weighing(V3, "stored_types", least_gain=-1.0)
    assert len(stored_types([plan_of(model, eager, "bf16")])) == 3


@pytest.mark.parametrize(("common", "narrow"), [(1, 3), (256, 0)])
def test_common_sizes_decide_where_sizes_are_open(common: int, narrow: int, tmp_path: Path) -> None:
    n = Net()
    x = n.input("rows", 384)
    for _ in range(3):
        x = n("Relu", n("Gemm", x, n.weight(384, 384), n.weight(384)))
    model = n.save(tmp_path / "net.onnx", x)
    dims = {"rows": (1, 256, 1, common)}
    made = rutc.compile(model, tmp_path / "m.so", dims=dims, target="x86-64-v3", precision="w8")
    assert made.verification is not None
    assert made.verification.passed
    assert made.report.narrow_values == narrow
    graph = import_model(model, dims=dims)
    plan, earlier = planned(versions(graph, TILES), TILES, "w8")
    # One plan is for many rows, and has its weights in parts.
    assert len(earlier) == 1
    assert len(stored_types([plan])) == narrow
    assert not stored_types([earlier[0].plan])


def test_the_kernels_of_matrix_registers_keep_their_parts(tmp_path: Path) -> None:
    model = saved(layers, tmp_path, 128)
    usual = plan_of(model, TILES, "fp32")
    narrow = plan_of(model, TILES, "bf16")
    assert usual.assignment is not None
    assert any("bf16" in a for _, a in usual.assignment.algorithms)
    taken = {v for v, _ in usual.assignment.algorithms}
    assert {s.value for s in stored_types([narrow])}.isdisjoint(taken)


def test_filtered_weights_keep_f32(tmp_path: Path) -> None:
    """Filters subtract large numbers from each other: weights have to be exact."""
    n = Net()
    x = n.input(1, 64, 56, 56)
    y = n("Conv", x, n.weight(64, 64, 3, 3), pads=[1] * 4)
    pooled = n("MaxPool", n("Relu", y), kernel_shape=[56, 56])
    model = n.save(tmp_path / "net.onnx", n("Conv", pooled, n.weight(1000, 64, 1, 1)))
    machine = weighing(V3, "stored_types", least_gain=-1.0)
    plan = plan_of(model, machine, "bf16")
    assert plan.assignment is not None
    assert plan.assignment.algorithms
    (stored,) = stored_types([plan])
    assert stored.bytes == 64 * 1000 * 2


@pytest.mark.parametrize(
    ("factor", "precision", "narrow"),
    [
        (1.0, "fp16", 3),
        (1e5, "fp16", 2),
        (1e5, "bf16", 3),
        (1e5, "w8", 3),
        (1e-9, "fp16", 2),
        (1e-9, "bf16", 3),
    ],
)
def test_weights_beyond_a_type_keep_f32(
    factor: float, precision: str, narrow: int, tmp_path: Path
) -> None:
    n = Net()
    x = n.input(1, 256)
    w = n.const(n.rng.standard_normal((256, 256)) * factor)
    y = n("MatMul", n("MatMul", n("MatMul", x, n.weight(256, 256)), w), n.weight(256, 256))
    model = n.save(tmp_path / "net.onnx", y)
    made = rutc.compile(model, tmp_path / "made.so", precision=precision)
    assert made.verification is not None
    assert made.verification.passed
    assert made.report.narrow_values == narrow


@pytest.mark.parametrize("precision", TYPES)
def test_weights_that_are_read_outside_of_them_keep_f32_if_need_be(
    precision: str, tmp_path: Path
) -> None:
    """Outside is a number that 16 bits have not, and integers have 0 alone there."""
    graph = parse(
        'graph "g"\ndims k = 300, n = 256, m = 256\n%x : f32{k} = input "x" [k]\n'
        '%w : f32{k,n} = const [k, n] data "w"\n%v : f32{m,n} = const [n, m] data "v"\n'
        "%y : f32{n} = sum{k} %x[k] * %w[k, n=n+1 else 1.001]\n"
        "%z : f32{m} = sum{n} %y[n] * %v[m, n]\n"
        'output "z" [m] = %z\n',
        {
            name: Data(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
            for name, shape in (("w", (300, 256)), ("v", (256, 256)))
        },
    )
    found = greedy(prepare(graph), V3).realisation
    other = with_narrow_weights(found, DTYPES[precision], V3)
    assert [s.value for s in other.assignment.types] == ["v"]


def test_what_is_wrong_is_found_beside_rounding(tmp_path: Path) -> None:
    """A model is not the one that was compiled: weights of one column are a half larger."""
    n = Net()
    x = n.input(1, 384)
    w = n.rng.standard_normal((384, 64)) / 2
    y = n("MatMul", x, n.const(w))
    model = n.save(tmp_path / "net.onnx", y)
    made = rutc.compile(model, tmp_path / "made.so", precision="bf16")
    assert verify_model(model, made.library).passed
    other = Net()
    w[:, 11] *= 1.5
    y = other("MatMul", other.input(1, 384), other.const(w))
    found = verify_model(other.save(tmp_path / "other.onnx", y), made.library)
    assert not found.passed
    assert "indices 0 to 15 of axis 1" in found.outputs[0].reason


@pytest.mark.parametrize("precision", TYPES)
def test_labels_may_differ_where_rounded_weights_explain_it(precision: str, tmp_path: Path) -> None:
    n = Net()
    x = n.input(1, 256)
    scores = n("MatMul", x, n.weight(256, 4000))
    model = n.save(tmp_path / "net.onnx", n("TopK", scores, n.const([300], np.int64), outputs=2))
    made = rutc.compile(model, tmp_path / "made.so", precision=precision)
    assert made.verification is not None
    assert made.verification.passed
    assert made.report.narrow_values == 1


def test_what_was_compiled_in_another_precision_is_another_artifact(tmp_path: Path) -> None:
    model = saved(layers, tmp_path)
    first, second, again = (
        rutc.compile(model, tmp_path / "made.so", precision=p, verify=False).report
        for p in ("fp32", "bf16", "bf16")
    )
    assert first.weight_bytes > second.weight_bytes == again.weight_bytes
    assert (again.precision, again.narrow_values) == ("bf16", second.narrow_values)


def test_a_dump_says_what_is_stored_how(tmp_path: Path) -> None:
    model, dump = saved(layers, tmp_path), tmp_path / "dump"
    options = Options(target="x86-64-v3", precision="fp16", dump=dump)
    compile_model(model, tmp_path / "made.so", options)
    said = (dump / "assignment.txt").read_text(encoding="utf-8")
    assert said.count(" as f16\n") == 3
    compile_model(model, tmp_path / "made.so", replace(options, precision="w8"))
    said = (dump / "assignment.txt").read_text(encoding="utf-8")
    assert len(re.findall(r"^store %\S+ as i8 by {\S+}$", said, re.MULTILINE)) == 3


def test_commands_tell_what_is_stored_how(tmp_path: Path) -> None:
    model, library = saved(layers, tmp_path), tmp_path / "made.so"
    # Processors with registers for bf16 have more values in it.
    target = "--target", "x86-64-v3"
    done = invoke("compile", model, "-o", library, "--precision", "bf16", *target, "-q")
    assert done.status == 0, done.stderr
    assert "3 values stored as bf16: 651 KiB instead of 1.27 MiB" in done.stdout
    shown = invoke("inspect", library)
    assert "precision bf16" in shown.stdout
    assert "stored as bf16: 3 values, 651 KiB instead of 1.27 MiB" in shown.stdout
    told = invoke("compile", model, "-o", library, "--precision", "bf16", *target, "--json")
    assert json.loads(told.stdout)["narrow_values"] == 3
    told = invoke("explain", model, "v0", "--precision", "bf16", *target)
    assert "is stored as bf16, 288 KiB instead of 576 KiB" in told.stdout
    assert "stored as bf16" not in invoke("explain", model, "v0", *target).stdout
    many = saved(layers, tmp_path, 256)
    told = invoke("compile", many, "-o", library, "--precision", "fp16", *target)
    assert "no values stored as fp16: no kernel would be faster by it" in told.stdout


@pytest.mark.parametrize("name", ["compile", "explain"])
def test_precisions_that_there_are_not_are_refused(name: str, tmp_path: Path) -> None:
    model = saved(layers, tmp_path)
    node = ["v0"] if name == "explain" else ["-o", tmp_path / "made.so"]
    done = invoke(name, model, *node, "--precision", "int4")
    assert done.status == 2
    assert "'int4'" in done.stderr
    assert "fp32, bf16, fp16, w8, w4, int8, auto" in done.stderr
    assert not (tmp_path / "made.so").exists()
    with pytest.raises(UserError, match="fp32, bf16, fp16, w8, w4, int8, auto"):
        explain(model, "v0", Options(precision="BF16"))


def residual(n: Net) -> str:
    """Convolutions, one of stride 2 and one beside another, and a product of what they give."""
    x = n("Relu", n("Conv", n.input(1, 32, 24, 24), n.weight(64, 32, 3, 3), pads=[1] * 4))
    y = n("Relu", n("Conv", x, n.weight(64, 64, 3, 3), pads=[1] * 4))
    x = n("Relu", n("Add", n("Conv", y, n.weight(64, 64, 1, 1)), x))
    x = n("Relu", n("Conv", x, n.weight(128, 64, 3, 3), pads=[1] * 4, strides=[2, 2]))
    return n("MatMul", n("Transpose", x, perm=[0, 2, 3, 1]), n.weight(128, 64))


@needs(V3)
def test_registers_for_matrices_multiply_rounded_factors(tmp_path: Path) -> None:
    n = Net()
    path = n.save(tmp_path / "net.onnx", residual(n))
    graph = import_model(path)
    (version,) = versions(graph, TILES_V3, Leeway(bf16=True))
    plan, _ = planned((version,), TILES_V3, "bf16")
    assert plan.assignment is not None
    assert [a for _, a in plan.assignment.algorithms] == [SAID_ROUNDED] * 5
    assert len(stored_types([plan])) == 5
    narrow = [v for g in plan.groups() for v in g.stored if plan.values[v].dtype is DType.BF16]
    assert len(narrow) == 5
    texts: list[str] = []
    builder = Builder(plan, TILES_V3, "model", 1, keep_subnormals=False, code=False)
    builder.on_draft = lambda pending, made, draft: texts.append(draft.text)
    builder.build()
    assert sum("call void @llvm.x86.tdpbf16ps(" in text for text in texts) == 5
    x = np.random.default_rng(0).standard_normal((1, 32, 24, 24)).astype(np.float32)
    (wanted,) = Reference(path, 1).run({"x0": x}).values()
    (got,) = run(build(plan, TILES_V3, tmp_path), {"x0": x}, 2).values()
    assert_close(got, np.asarray(wanted), level=Level.REDUCED)
    # Factors have 8 bits indeed.
    assert np.abs(got - wanted).max() > 2.0**-12 * np.abs(wanted).max()
