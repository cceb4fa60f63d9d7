"""Products, convolutions, pooling."""

from __future__ import annotations

import numpy as np
import pytest

from rutc.errors import UserError


def normal(rng, *shape):
    return rng.standard_normal(shape).astype("f4")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 3, 4), (2, 4, 1)),
        ((3, 1), (1, 5)),
        ((3, 0), (0, 2)),
        ((0, 3), (3, 2)),
    ],
)
def test_matmul(left, right, check, make_node, rng):
    check(make_node("MatMul", ["a", "b"]), {"a": normal(rng, *left), "b": normal(rng, *right)})


def test_product_with_itself_keeps_two_dims(check, make_node, rng):
    nodes = [
        make_node("Transpose", ["a"], ["t"], perm=[1, 0]),
        make_node("MatMul", ["a", "t"]),
    ]
    graph = check(nodes, {"a": normal(rng, 3, 7)})
    (out,) = graph.outputs
    assert len(set(out.axes)) == 2


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (3, 1), (), (3, 5)])
def test_gemm(trans_a, trans_b, bias, check, make_node, rng):
    inputs = {
        "a": normal(rng, *((4, 3) if trans_a else (3, 4))),
        "b": normal(rng, *((5, 4) if trans_b else (4, 5))),
    }
    names = ["a", "b"]
    if bias is not None:
        inputs["c"] = normal(rng, *bias)
        names.append("c")
    check(make_node("Gemm", names, transA=trans_a, transB=trans_b, alpha=0.5, beta=2.0), inputs)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk", [(2, 3, 4), (2, 4, 5)]),
        ("ii->i", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("...ij,...jk->...ik", [(2, 5, 3, 4), (2, 5, 4, 2)]),
        ("i,j,k->ijk", [(2,), (3,), (4,)]),
        ("b h q d, b h k d -> b h q k", [(1, 2, 3, 4), (1, 2, 5, 4)]),
    ],
)
def test_einsum(equation, shapes, check, make_node, rng):
    inputs = {f"x{i}": normal(rng, *s) for i, s in enumerate(shapes)}
    check(make_node("Einsum", list(inputs), equation=equation), inputs)


CONVOLUTIONS = [
    ((2, 3, 7, 9), (4, 3, 3, 3), {}),
    ((2, 3, 7, 9), (4, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ((1, 3, 7, 9), (5, 3, 1, 1), {"strides": [2, 1]}),
    ((1, 4, 7, 9), (6, 2, 3, 3), {"group": 2, "pads": [0, 1, 2, 0]}),
    ((1, 4, 7, 9), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ((1, 4, 7, 9), (8, 1, 3, 3), {"group": 4}),
    ((2, 3, 11), (4, 3, 5), {"dilations": [2], "pads": [3, 1]}),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"strides": [1, 2, 2]}),
    ((1, 2, 7, 8), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 2, 7, 8), (3, 2, 2, 2), {"auto_pad": "SAME_LOWER"}),
    ((1, 2, 7, 8), (3, 2, 2, 2), {"auto_pad": "VALID"}),
    ((1, 3, 1, 5), (2, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(x, w, attributes, bias, check, make_node, rng):
    constants = {"w": normal(rng, *w)}
    names = ["x", "w"]
    if bias:
        constants["b"] = normal(rng, w[0])
        names.append("b")
    check(make_node("Conv", names, **attributes), {"x": normal(rng, *x)}, constants)


def test_convolution_without_padding_has_no_fill(check, make_node, rng):
    w = {"w": normal(rng, 2, 3, 3, 3)}
    graph = check(make_node("Conv", ["x", "w"]), {"x": normal(rng, 1, 3, 5, 5)}, w)
    assert "else" not in str(graph)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 4, 5), (3, 2, 2, 2), {"strides": [2, 2]}),
        ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 4, 4, 5), (4, 2, 3, 3), {"group": 2, "output_padding": [1, 1], "strides": [2, 2]}),
        ((2, 3, 6), (3, 2, 3), {"dilations": [2]}),
        ((1, 3, 4, 5), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ],
)
def test_conv_transpose(x, w, attributes, check, make_node, rng):
    inputs, constants = {"x": normal(rng, *x)}, {"w": normal(rng, *w)}
    check(make_node("ConvTranspose", ["x", "w"], **attributes), inputs, constants)


def test_groups_divide_the_channels_of_a_transposed_convolution(check, make_node, rng):
    step = make_node("ConvTranspose", ["x", "w"], group=2)
    inputs, constants = {"x": normal(rng, 1, 3, 4, 5)}, {"w": normal(rng, 3, 1, 2, 2)}
    with pytest.raises(UserError, match="3 input channels are not divisible into 2 groups"):
        check(step, inputs, constants)


POOLS = [
    {"kernel_shape": [3, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "pads": [0, 1, 1, 0], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "dilations": [2, 2]},
    {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]},
]


@pytest.mark.parametrize("attributes", POOLS)
def test_max_pool(attributes, check, make_node, rng):
    check(make_node("MaxPool", ["x"], **attributes), {"x": normal(rng, 2, 3, 7, 8)})


@pytest.mark.parametrize("attributes", POOLS)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(attributes, include, check, make_node, rng):
    x = {"x": normal(rng, 2, 3, 7, 8)}
    check(make_node("AveragePool", ["x"], count_include_pad=include, **attributes), x)


def test_max_pool_indices(check, make_node, rng):
    x = {"x": normal(rng, 2, 3, 6, 7)}
    step = make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 3], strides=[2, 2])
    check(step, x, outputs=("y", "i"))


def test_sums_of_halves_may_be_larger_than_their_type(check, make_node):
    x = {"x": np.full((1, 1, 3, 3), 40000, "f2")}
    step = make_node("AveragePool", ["x"], kernel_shape=[2, 2])
    check(step, x, expected=[np.full((1, 1, 2, 2), 40000, "f2")])


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pools(op, check, make_node, rng):
    check(make_node(op, ["x"]), {"x": normal(rng, 2, 3, 5, 7)})


def test_lp_pool(check, make_node, rng):
    check(make_node("LpPool", ["x"], kernel_shape=[2, 2], p=2), {"x": normal(rng, 1, 2, 5, 5)})


def test_lrn(check, make_node, rng):
    check(make_node("LRN", ["x"], size=3, alpha=0.3, beta=0.7), {"x": normal(rng, 2, 7, 3, 3)})
