"""Weights in blocks of few bits times rows that a model lets be rounded to 8 bits."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rutc
from rutc.errors import UserError
from rutc.importer import import_model
from rutc.importer.ops.microsoft.packed import LEVELS
from rutc.tensor_ir.interpreter.interpret import interpret
from tests.machines import NATIVE

pytestmark = pytest.mark.sampled(8)

SIZES = [(1, 64, 48, 32), (5, 64, 33, 16), (9, 256, 16, 128), (3, 96, 1, 32), (17, 32, 70, 32)]


def model(
    folder: Path,
    shape: tuple[int, ...],
    columns: int,
    block: int,
    bits: int,
    zeros: str,
    kind: int = TensorProto.FLOAT,
) -> tuple[Path, dict[str, np.ndarray]]:
    """A product at level 4, and its constants."""
    rng, inner = np.random.default_rng(columns), shape[-1]
    blocks, real = -(-inner // block), helper.tensor_dtype_to_np_dtype(kind)
    constants = {
        "w": rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype("u1"),
        "s": rng.uniform(-1, 1, (columns, blocks)).astype(real),
    }
    if zeros == "packed":
        constants["z"] = rng.integers(0, 256, (columns, -(-blocks * bits // 8))).astype("u1")
    if zeros == "real":
        constants["z"] = rng.uniform(0, 9, (columns, blocks)).astype(real)
    sizes = {"K": inner, "N": columns, "bits": bits, "block_size": block}
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", accuracy_level=4, **sizes
    )
    graph = helper.make_graph(
        [node],
        "packed",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "packed.onnx"
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), path)
    return path, constants


def truth(x: np.ndarray, constants: dict[str, np.ndarray], block: int, bits: int) -> np.ndarray:
    """What is defined, in float64, but for steps and the rounding to bytes."""
    rows = x.astype(np.float32).reshape(-1, x.shape[-1] // block, block)
    largest = np.abs(rows).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(largest == 0, np.float32(0), np.float32(127) / largest)
    whole = np.rint(rows * inverse).astype(np.float64)
    steps = (largest / np.float32(127)).astype(np.float64)
    columns, blocks = constants["s"].shape
    weights = _numbers(constants["w"], bits).reshape(columns, blocks, block).astype(np.float64)
    if "z" not in constants:
        weights -= 1 << (bits - 1)
    elif constants["z"].dtype == np.uint8:
        weights -= _numbers(constants["z"], bits)[:, :blocks, None]
    else:
        weights -= constants["z"][..., None]
    product = np.einsum("mbl,nbl->mnb", whole, weights)
    total = np.einsum("mnb,mb,nb->mn", product, steps[..., 0], constants["s"].astype(np.float64))
    return total.reshape(*x.shape[:-1], columns)


def _numbers(stored: np.ndarray, bits: int) -> np.ndarray:
    rows = stored.reshape(len(stored), -1)
    return rows if bits == 8 else np.stack([rows & 15, rows >> 4], -1).reshape(len(rows), -1)


def near(got: np.ndarray, wanted: np.ndarray, roundoff: float = 2.0**-24) -> None:
    """Sums of a few blocks: a few roundings of the largest of them."""
    assert np.abs(got - wanted).max() <= 32 * roundoff * np.abs(wanted).max()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "real"])
def test_rows_are_rounded_in_blocks(
    size: tuple[int, int, int, int], bits: int, zeros: str, tmp_path: Path
) -> None:
    m, k, n, block = size
    path, constants = model(tmp_path, (m, k), n, block, bits, zeros)
    x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
    x[m // 2, :block] = 0
    found = rutc.compile(path, tmp_path / "packed.so", verify=False)
    (got,) = rutc.load(found.library).run(None, {"x": x})
    near(got, truth(x, constants, block, bits))


def test_stacks_of_halves(tmp_path: Path) -> None:
    path, constants = model(tmp_path, (2, 3, 64), 20, 32, 4, "none", TensorProto.FLOAT16)
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float16)
    found = rutc.compile(path, tmp_path / "packed.so")
    (got,) = rutc.load(found.library).run(None, {"x": x})
    near(got.astype(np.float64), truth(x, constants, 32, 4), 2.0**-11)


def test_rows_that_are_not_finite_stay_so(tmp_path: Path) -> None:
    path, _ = model(tmp_path, (3, 64), 20, 32, 4, "none")
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    plain = interpret(import_model(path), {"x": x})["y"]
    x[0, 7], x[1, 40] = np.nan, np.inf
    found = rutc.compile(path, tmp_path / "packed.so", verify=False)
    (got,) = rutc.load(found.library).run(None, {"x": x})
    assert np.isnan(got[:2]).all()
    near(got[2], plain[2])


def test_blocks_that_do_not_fill_rows_are_multiplied_as_they_are(tmp_path: Path) -> None:
    path, _ = model(tmp_path, (3, 60), 20, 32, 4, "none")
    kinds = {v.dtype.value for v in import_model(path).values.values()}
    assert "i8" not in kinds
    rutc.compile(path, tmp_path / "packed.so")


@pytest.mark.parametrize("m", [1, 7, 64])
def test_instructions_add_up_products_of_bytes(m: int, tmp_path: Path) -> None:
    path, _ = model(tmp_path, (m, 256), 128, 32, 4, "packed")
    rutc.compile(path, tmp_path / "packed.so", verify=False, dump=tmp_path / "dump")
    texts = [p.read_text() for p in (tmp_path / "dump" / "kernels").glob("*.ll")]
    wanted = "vpdpbusd" if NATIVE.adds_products else "pmadd"
    assert any(f"call <{NATIVE.width} x i32>" in t and wanted in t for t in texts)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize(("columns", "inner"), [(7, 13), (48, 64), (1, 1)])
def test_levels_of_four_bits(columns, inner, kind, transposed, check, node, normal, rng):
    block, count = 16, columns * inner
    stored = rng.integers(0, 256, -(-count // 2)).astype("u1")
    numbers = np.stack([stored >> 4, stored & 15], -1).reshape(-1)[:count]
    largest = np.abs(normal(-(-count // block))) + 1
    levels = np.array(LEVELS[kind], "f8")
    dense = (levels[numbers] * largest.repeat(block)[:count]).reshape(columns, inner)
    x = normal(2, 3, inner if transposed else columns)
    options = {"K": inner, "N": columns, "block_size": block, "quant_type": kind}
    step = node("MatMulBnb4", ["x", "w", "a"], transB=transposed, **options)
    # ONNX Runtime has whole blocks of columns only, and no product with the weights as they are.
    known = transposed and inner % block == 0
    expected = None if known else [(x @ (dense.T if transposed else dense)).astype("f4")]
    check(step, {"x": x}, {"w": stored, "a": largest}, expected=expected)


def test_levels_that_are_unknown(check, node, normal):
    step = node("MatMulBnb4", ["x", "w", "a"], K=4, N=2, block_size=16, quant_type=2)
    constants = {"w": np.zeros(4, "u1"), "a": np.ones(1, "f4")}
    with pytest.raises(UserError, match="quant_type=2 is unknown"):
        check(step, {"x": normal(3, 4)}, constants)


@pytest.mark.parametrize(
    ("op", "options", "name", "count", "message"),
    [
        ("MatMulBnb4", {"quant_type": 1}, "w", 45, r"the weights u8\[45\] should be 46 elements"),
        ("MatMulBnb4", {"quant_type": 1}, "w", 47, r"the weights u8\[47\] should be 46 elements"),
        ("MatMulBnb4", {"quant_type": 1}, "s", 5, "the largest numbers .* should be 6 elements"),
        ("MatMulBnb4", {"quant_type": 1, "block_size": 0}, "w", 46, "blocks of 0 elements"),
        ("MatMulBnb4", {"quant_type": 1, "N": -7}, "w", 46, "K=13 and N=-7 cannot be"),
        ("MatMulNBits", {}, "w", 55, r"the weights u8\[55\] should be 7 \* 1 \* 8 elements"),
        ("MatMulNBits", {}, "s", 8, r"the scales .* should be 7 \* 1 elements"),
        ("MatMulNBits", {}, "z", 6, r"the zero points u8\[6\] should be 7 \* 1 elements"),
        ("MatMulNBits", {"block_size": 0}, "w", 56, "blocks of 0 elements"),
    ],
)
def test_sizes_that_do_not_fit(op, options, name, count, message, check, node, normal):
    sizes = {"w": 46, "s": 6} if op == "MatMulBnb4" else {"w": 56, "s": 7, "z": 7}
    sizes[name] = count
    constants = {n: np.ones(c, "f4" if n == "s" else "u1") for n, c in sizes.items()}
    step = node(op, ["x", *sizes], **{"K": 13, "N": 7, "block_size": 16} | options)
    with pytest.raises(UserError, match=message):
        check(step, {"x": normal(3, 13)}, constants)


@pytest.mark.parametrize(("op", "more"), [("MatMulBnb4", {"quant_type": 0}), ("MatMulNBits", {})])
def test_numbers_that_are_no_bytes(op, more, check, node, normal):
    count = 8 if op == "MatMulBnb4" else 2 * 8
    constants = {"w": np.ones(count, "f4"), "s": np.ones(1 if op == "MatMulBnb4" else 2, "f4")}
    with pytest.raises(UserError, match="packed in u8, not in float32"):
        check(
            node(op, ["x", "w", "s"], K=8, N=2, block_size=16, **more),
            {"x": normal(3, 8)},
            constants,
        )
