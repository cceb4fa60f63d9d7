"""Chains of quantised steps that are one table: the numbers that the model defines, every one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from rutc.driver.compiler import Options, compile_model
from rutc.graph_opt import optimize, pipeline_for
from rutc.runtime import load
from rutc.tensor_ir import Cast, Nest, Read
from rutc.tensor_ir.expr import walk
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.reference import Reference
from tests.close import assert_close
from tests.graph_opt.networks import Net
from tests.machines import V3, runnable, target_named

KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}
TARGETS = [t for t in ("x86-64-v3", "x86-64-v4", "native") if runnable(target_named(t).machine)]


def hard_swish(n: Net, x: str, kind: type, middle: int) -> str:
    """x * clip(x + 3, 0, 6) / 6 of a quantised x, each step quantised."""

    def quantised(value: str, scale: float, zero: int) -> str:
        given = n.const(scale), n.const(zero + middle, kind)
        return n("DequantizeLinear", n("QuantizeLinear", value, *given), *given)

    v = n("DequantizeLinear", x, n.const(0.05), n.const(60 + middle, kind))
    h = quantised(n("Add", v, n.const(3.0)), 0.07, 40)
    h = quantised(n("Clip", h, n.const(0.0), n.const(6.0)), 0.023, 0)
    m = quantised(n("Mul", v, h), 0.03, 10)
    last = n.const(0.012), n.const(20 + middle, kind)
    return n("QuantizeLinear", n("Div", m, n.const(6.0)), *last)


def tanh(n: Net, x: str, kind: type, middle: int) -> str:
    """A function of which the table has f32, read by a sum of other numbers, too."""
    v = n("Tanh", n("DequantizeLinear", x, n.const(0.03), n.const(100 + middle, kind)))
    return n("Add", v, n.weight(7))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chain", [hard_swish, tanh])
def test_all_numbers_as_defined(
    chain: Callable[[Net, str, type, int], str], kind: str, target: str, tmp_path: Path
) -> None:
    """All 256 numbers in every lane, rows of odd length, and more threads than one."""
    n = Net()
    dtype, type_ = KINDS[kind]
    x = n.input("rows", 7, type_=type_)
    model = n.save(tmp_path / "m.onnx", chain(n, x, dtype, -128 if kind == "i8" else 0))
    options = Options(target=target, dims={"rows": (1, 4096)})
    library = compile_model(model, tmp_path / "m.so", options).library
    low = np.iinfo(dtype).min
    for rows in (1, 37, 1031):
        codes = (np.arange(rows * 7) * 37 % 256 + low).astype(dtype).reshape(rows, 7)
        (wanted,) = Reference(model, 1).run({x: codes}).values()
        for threads in (1, 2):
            with load(library, threads=threads) as session:
                (found,) = session.run(None, {x: codes})
            assert found.dtype == wanted.dtype
            if dtype is found.dtype.type:
                np.testing.assert_array_equal(found, wanted)
            else:
                assert_close(found, wanted)


def test_a_chain_is_one_read_of_a_table() -> None:
    """Nothing of it is computed, and nothing in between is stored."""
    n = Net()
    x = n.input(64, 7, type_=TensorProto.UINT8)
    graph = optimize(n.graph(hard_swish(n, x, np.uint8, 0), dims={}), pipeline=pipeline_for(V3))
    (nest,) = (p for p in graph.nodes if isinstance(p, Nest))
    assert list(map(type, walk(nest.body[0]))) == [Read, Cast, Read]


def test_two_elements_of_one_value_are_no_one_number() -> None:
    """As the colours of a picture, of which one value is made: it was an error of the compiler."""
    graph = parse(
        """
        graph "grey"
        dims i = 2000, c = 2
        %x : u8{i,c} = input "x" [i, c]
        %y : u8{i} = u8(exp(f32(%x[i, c=0]) / 128.0) + exp(f32(%x[i, c=1]) / 64.0))
        output "y" [i] = %y
        """
    )
    x = np.random.default_rng(0).integers(0, 256, (2000, 2), np.uint8)
    wanted = interpret(graph, {"x": x})["y"]
    found = optimize(graph, pipeline=pipeline_for(target_named("x86-64-v3").machine))
    np.testing.assert_array_equal(interpret(found, {"x": x})["y"], wanted)
