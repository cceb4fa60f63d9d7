"""Nodes of com.microsoft and operands for them."""

import pytest


@pytest.fixture
def node(make_node):
    """`node(op, inputs, outputs=("y",), **attributes)` of com.microsoft."""

    def make(op, inputs, outputs=("y",), **attributes):
        return make_node(op, inputs, outputs, domain="com.microsoft", **attributes)

    return make


@pytest.fixture
def normal(rng):
    """`normal(*shape)`: f32 from the seeded generator."""
    return lambda *shape: rng.standard_normal(shape).astype("f4")
