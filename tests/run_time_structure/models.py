"""Shorthands for models of sequences, optionals, loops and branches, and their values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, TypeProto, helper, numpy_helper

from tests.close import assert_close

node = helper.make_node
ANY = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
ANY_INT = helper.make_tensor_type_proto(TensorProto.INT64, None)
BOOL = helper.make_tensor_type_proto(TensorProto.BOOL, [])
TEXTS = helper.make_tensor_type_proto(TensorProto.STRING, [None])
sequence = helper.make_sequence_type_proto
optional = helper.make_optional_type_proto


def floats(*shape: int | str | None) -> TypeProto:
    """The type of a float tensor."""
    return helper.make_tensor_type_proto(TensorProto.FLOAT, list(shape))


def ints(*shape: int | str | None) -> TypeProto:
    """The type of an integer tensor."""
    return helper.make_tensor_type_proto(TensorProto.INT64, list(shape))


def graph(nodes, inputs, outputs, constants=()):
    """A graph; inputs and outputs by name with their types."""
    return helper.make_graph(
        nodes,
        "g",
        [helper.make_value_info(n, t) for n, t in inputs.items()],
        [helper.make_value_info(n, t) for n, t in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(constants).items()],
    )


def body(nodes, states, results, constants=(), going=None):
    """A loop's body with the inputs `trip` and `going`; without a condition it goes on."""
    nodes = [*nodes, node("Identity", [going or "going"], ["on"])]
    inputs = {"trip": ints(), "going": BOOL, **states}
    return graph(nodes, inputs, {"on": BOOL, **results}, constants)


def rows(*shape, seed=0):
    """Random floats."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f4")


def in_queue(state):
    """Nodes that put x into the queue s of at most three elements, giving t of length n or 3."""
    return [
        node("SequenceInsert", ["s", "x"], ["longer"]),
        node("SequenceLength", ["longer"], ["n"]),
        node("Greater", ["n", "three"], ["full"]),
        node(
            "If",
            ["full"],
            ["t"],
            then_branch=graph([node("SequenceErase", ["longer", "zero"], ["a"])], {}, {"a": state}),
            else_branch=graph([node("Identity", ["longer"], ["b"])], {}, {"b": state}),
        ),
    ]


def same(got, want):
    """Check that two values agree: arrays, lists of them, or None."""
    if want is None:
        assert got is None
    elif isinstance(want, list):
        assert isinstance(got, list)
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    elif np.asarray(want).dtype == object:
        assert got.tolist() == want.tolist()
    else:
        assert np.shape(got) == np.shape(want)
        assert np.asarray(got).dtype == np.asarray(want).dtype
        assert_close(got, want, reduction=1024)


REFUSED = """
import sys
import numpy as np
from tests.close import assert_close
import rutc
from rutc.runtime import ModelError

def refused(feed, run="run"):
    try:
        session.run(None, feed) if run == "run" else session.run_into(feed, {})
        print("it ran")
    except ModelError as error:
        print(error)

session = rutc.load(sys.argv[1])
"""


def refusals(library: Path, script: str) -> list[str]:
    """The messages of runs that a process makes, which may end for what it makes of wrong inputs.

    The script calls `refused(feed)` for each, or `refused(feed, "run_into")`.
    """
    done = subprocess.run(
        [sys.executable, "-c", REFUSED + script, str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


PAIRS = sequence(floats(None, 2))
"""Any number of matrices of two columns."""
