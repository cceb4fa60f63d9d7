"""Operators of com.microsoft that no oracle computes, or none exactly, as nodes of other ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, NodeProto, TensorProto, helper

from rutc.importer.quantised import rounds_to_bytes
from tests.fuzz.rules import CONTRIB

OPSET = 21
"""The opset of the nodes of the standard."""


@dataclass
class Nodes:
    """Nodes that stand for one node, whose attributes are at hand."""

    node: NodeProto
    made: list[NodeProto] = field(default_factory=list)

    def put(self, op: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        """The only result of a new node."""
        return self.several(op, 1, *inputs, domain=domain, **attrs)[0]

    def several(
        self, op: str, count: int, *inputs: str, domain: str = "", **attrs: Any
    ) -> list[str]:
        """The results of a new node."""
        names = [f"{self.node.output[0]}_{len(self.made)}_{k}" for k in range(count)]
        self.made.append(helper.make_node(op, inputs, names, domain=domain, **attrs))
        return names

    def given(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        found = [a for a in self.node.attribute if a.name == name]
        value = helper.get_attribute_value(found[0]) if found else default
        return value.decode() if isinstance(value, bytes) else value

    def others(self, *left_out: str) -> dict[str, AttributeProto]:
        """The attributes but for some."""
        return {
            a.name: helper.get_attribute_value(a)
            for a in self.node.attribute
            if a.name not in left_out
        }


def expanded(node: NodeProto) -> list[NodeProto]:
    """The nodes that compute what a node does: itself, unless it is one of those here."""
    if not decomposed(node):
        return [node]
    nodes = Nodes(node)
    results = _BODIES[node.op_type](nodes, *node.input)
    found = [results] if isinstance(results, str) else results
    for result, name in zip(found, node.output, strict=False):
        if name:
            nodes.made.append(helper.make_node("Identity", [result], [name]))
    return nodes.made


def decomposed(node: NodeProto) -> bool:
    """Whether the node is one of those here."""
    return node.domain == CONTRIB and node.op_type in _BODIES and _rounds_blocks(node)


def _bias_add(b: Nodes, x: str, bias: str, skip: str) -> str:
    return b.put("Add", b.put("Add", x, bias), skip)


def _bias_split_gelu(b: Nodes, x: str, bias: str) -> str:
    left, right = b.several("Split", 2, b.put("Add", x, bias), axis=-1, num_outputs=2)
    return b.put("Mul", left, b.put("Gelu", right))


def _fused_matmul_activation(b: Nodes, x: str, y: str) -> str:
    named = [f"activation_{n}" for n in ("alpha", "beta", "gamma", "axis")]
    total = b.put("FusedMatMul", x, y, domain=CONTRIB, **b.others("activation", *named))
    parameters = {n[11:]: b.given(n) for n in named if b.given(n) is not None}
    return b.put(b.given("activation"), total, **parameters)


def _gemm_fast_gelu(b: Nodes, x: str, w: str, *bias: str) -> str:
    return b.put("FastGelu", b.put("MatMul", x, w), *bias, domain=CONTRIB)


def _group_norm(b: Nodes, x: str, scale: str, shift: str) -> str:
    last = b.given("channels_last", 1)
    wide = b.put("Cast", x, to=TensorProto.FLOAT)
    wide = b.put("Transpose", wide, perm=[0, 3, 1, 2]) if last else wide
    options = {"num_groups": b.given("groups"), "epsilon": b.given("epsilon", 1e-5)}
    y = b.put("GroupNormalization", wide, scale, shift, **options)
    y = b.put("Mul", y, b.put("Sigmoid", y)) if b.given("activation") else y
    return b.put("CastLike", b.put("Transpose", y, perm=[0, 2, 3, 1]) if last else y, x)


def _as_standard(b: Nodes, *operands: str) -> list[str]:
    """ONNX Runtime has these in the standard's domain."""
    outputs = len(b.node.output)
    return b.several(b.node.op_type, outputs, *operands, **b.others())


def _nhwc_conv(b: Nodes, x: str, *operands: str) -> str:
    y = b.put("Conv", b.put("Transpose", x, perm=[0, 3, 1, 2]), *operands, **b.others())
    return b.put("Transpose", y, perm=[0, 2, 3, 1])


def _distances(b: Nodes, x: str, y: str) -> str:
    """Without the difference of nearly equal sums that ONNX Runtime makes of products."""
    rows, columns, inner = (b.put("Constant", value_ints=[k]) for k in (1, 0, 2))
    apart = b.put("Sub", b.put("Unsqueeze", x, rows), b.put("Unsqueeze", y, columns))
    squared = b.put("ReduceSumSquare", apart, inner, keepdims=0)
    return b.put("Sqrt", squared) if b.given("metric") == "euclidean" else squared


def _qlinear_reduce_mean(b: Nodes, x: str, step: str, zero: str, *stored: str) -> str:
    real = b.put("DequantizeLinear", x, step, *([zero] if zero else []))
    axes = b.put("Constant", value_ints=b.given("axes"))
    y = b.put("ReduceMean", real, axes, keepdims=b.given("keepdims"))
    return b.put("QuantizeLinear", y, *stored)


def _integer_product(
    b: Nodes, x: str, y: str, x_step: str, y_step: str, x_zero: str, y_zero: str, bias: str
) -> str:
    """The product of 8-bit numbers in 32 bits, times their steps.

    ONNX Runtime adds up pairs of products in 16 bits where a processor has nothing better, and cuts
    off what is more.
    """

    def whole(numbers: str, zero: str) -> str:
        wide = b.put("Cast", numbers, to=TensorProto.INT32)
        return b.put("Sub", wide, b.put("Cast", zero, to=TensorProto.INT32)) if zero else wide

    total = b.put("MatMul", whole(x, x_zero), whole(y, y_zero))
    real = b.put("Cast", total, to=TensorProto.FLOAT)
    real = b.put("Mul", real, b.put("Mul", x_step, y_step))
    return b.put("Add", real, bias) if bias else real


def _product_to_float(b: Nodes, x: str, y: str, x_step: str, y_step: str, *rest: str) -> str:
    x_zero, y_zero, bias = [*rest, "", "", ""][:3]
    return _integer_product(b, x, y, x_step, y_step, x_zero, y_zero, bias)


def _dynamic_product(b: Nodes, x: str, y: str, y_step: str, *rest: str) -> str:
    y_zero, bias = [*rest, "", ""][:2]
    x, x_step, x_zero = b.several("DynamicQuantizeLinear", 3, x)
    return _integer_product(b, x, y, x_step, y_step, x_zero, y_zero, bias)


def _number(b: Nodes, value: int) -> str:
    return b.put("Constant", value_int=value)


def _rows(b: Nodes, x: str) -> str:
    """Every row a whole number of times its own step, which is a 127th of its largest element."""
    axes = b.put("Constant", value_ints=[-1])
    most = b.put("ReduceMax", b.put("Abs", x), axes, keepdims=1)
    nothing, one, units = (b.put("Constant", value_float=v) for v in (0.0, 1.0, 127.0))
    step = b.put("Where", b.put("Equal", most, nothing), one, b.put("Div", most, units))
    return b.put("Mul", b.put("Round", b.put("Div", x, step)), step)


def _product_of_rounded_blocks(b: Nodes, x: str, weights: str, scales: str, *rest: str) -> str:
    """MatMulNBits of blocks of `x` that are whole numbers of times a 127th of their largest.

    ONNX Runtime does not round beside weights that a model takes as an input.
    """
    zeros, order, bias = [*rest, "", "", ""][:3]
    size = b.given("block_size")
    axes, shape = b.put("Constant", value_ints=[-1]), b.put("Shape", x)
    blocks = b.put("Constant", value_ints=[b.given("K") // size, size])
    blocks = b.put("Concat", b.put("Shape", x, end=-1), blocks, axis=0)
    real = b.put("Reshape", b.put("Cast", x, to=TensorProto.FLOAT), blocks, allowzero=1)
    most = b.put("ReduceMax", b.put("Abs", real), axes, keepdims=1)
    nothing, units = (b.put("Constant", value_float=v) for v in (0.0, 127.0))
    inverse = b.put("Where", b.put("Equal", most, nothing), nothing, b.put("Div", units, most))
    whole = b.put("Round", b.put("Mul", real, inverse))
    rounded = b.put("Reshape", b.put("Mul", whole, b.put("Div", most, units)), shape, allowzero=1)
    scales, bias = (b.put("Cast", v, to=TensorProto.FLOAT) if v else "" for v in (scales, bias))
    operands = [rounded, weights, scales, zeros, order, bias]
    while not operands[-1]:
        operands.pop()
    y = b.put("MatMulNBits", *operands, domain=CONTRIB, **b.others("accuracy_level"))
    return b.put("CastLike", y, x)


def _rounds_blocks(node: NodeProto) -> bool:
    """Whether a node is no MatMulNBits, or one that rounds its operand to 8 bits."""
    given = Nodes(node).given
    sizes = given("accuracy_level", 0), given("bits", 4), given("K"), given("block_size")
    return node.op_type != "MatMulNBits" or rounds_to_bytes(*sizes)


def _lstm(b: Nodes, x: str, w: str, r: str, *rest: str) -> list[str]:
    """LSTM of the weights in real numbers, by rows of 8 bits.

    ONNX Runtime rounds several rows with one step; which ones depends on the number of its threads.
    """
    bias, _, hidden, memory, _, w_scale, w_zero, r_scale, r_zero = rest
    way = b.given("direction", "forward")
    ends = [
        _direction(
            b, d, x, (w, w_scale, w_zero), (r, r_scale, r_zero), bias, (hidden, memory), back
        )
        for d, back in enumerate({"forward": [0], "reverse": [1], "bidirectional": [0, 1]}[way])
    ]
    return [b.put("Concat", *(e[k] for e in ends), axis=int(k == 0)) for k in range(3)]


def _direction(
    b: Nodes,
    d: int,
    x: str,
    w: tuple[str, str, str],
    r: tuple[str, str, str],
    bias: str,
    start: tuple[str, str],
    back: int,
) -> list[str]:
    """What one direction shows in all steps, and its last states, each with an axis for it."""
    size = b.given("hidden_size")
    at = _number(b, d)

    def real(numbers: str, scale: str, zero: str) -> str:
        shape = b.put("Constant", value_ints=[0, 1, -1])
        zero = b.put("Reshape", b.put("Cast", zero, to=TensorProto.FLOAT), shape)
        whole = b.put("Sub", b.put("Cast", numbers, to=TensorProto.FLOAT), zero)
        return b.put("Gather", b.put("Mul", whole, b.put("Reshape", scale, shape)), at)

    gates = b.put("MatMul", _rows(b, x), real(*w))
    if bias:
        halves = b.several("Split", 2, b.put("Gather", bias, at), axis=0, num_outputs=2)
        gates = b.put("Add", gates, b.put("Add", *halves))
    parts = b.put("Constant", value_ints=[size] * 4)
    first = b.put("Gather", gates, _number(b, 0))
    none = b.put(
        "Mul", b.several("Split", 4, first, parts, axis=-1)[0], b.put("Constant", value_float=0.0)
    )
    states = [b.put("Gather", s, at) if s else none for s in start]
    trip = Nodes(helper.make_node("Trip", [], [f"{gates}_trip"]))
    names = [f"{gates}_{n}" for n in ("h", "c", "x")]
    given = trip.put("Add", names[2], trip.put("MatMul", _rows(trip, names[0]), real(*r)))
    entry, out, forget, new = trip.several("Split", 4, given, parts, axis=-1)
    entry, out, forget = (trip.put("Sigmoid", g) for g in (entry, out, forget))
    kept = trip.put("Mul", forget, names[1])
    cell = trip.put("Add", kept, trip.put("Mul", entry, trip.put("Tanh", new)))
    shown = trip.put("Mul", out, trip.put("Tanh", cell))
    results = [trip.put("Identity", v) for v in (shown, cell, shown)]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ns]
        for ns in (names, results)
    )
    body = helper.make_graph(trip.made, "trip", inputs, outputs)
    last, memory, every = b.several(
        "Scan",
        3,
        *states,
        gates,
        body=body,
        num_scan_inputs=1,
        scan_input_directions=[back],
        scan_output_directions=[back],
    )
    axes = [b.put("Constant", value_ints=[k]) for k in (1, 0, 0)]
    return [b.put("Unsqueeze", v, a) for v, a in zip((every, last, memory), axes, strict=True)]


_BODIES: Mapping[str, Callable[..., str | list[str]]] = {
    "BiasAdd": _bias_add,
    "BiasSplitGelu": _bias_split_gelu,
    "CDist": _distances,
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeMatMul": _dynamic_product,
    "FusedMatMulActivation": _fused_matmul_activation,
    "GemmFastGelu": _gemm_fast_gelu,
    "GroupNorm": _group_norm,
    "LayerNormalization": _as_standard,
    "MatMulIntegerToFloat": _product_to_float,
    "MatMulNBits": _product_of_rounded_blocks,
    "NhwcConv": _nhwc_conv,
    "QLinearReduceMean": _qlinear_reduce_mean,
    "SimplifiedLayerNormalization": _as_standard,
}
