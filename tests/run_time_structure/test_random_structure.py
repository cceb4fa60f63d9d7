"""Random loops over a sequence and a tensor that change in every trip, against ONNX Runtime."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper

import rutc
from tests.close import assert_close
from tests.run_time_structure.models import graph

FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, 2])
SEQUENCE = helper.make_sequence_type_proto(FLOATS)
NUMBER = helper.make_tensor_type_proto(TensorProto.INT64, [])
FLAG = helper.make_tensor_type_proto(TensorProto.BOOL, [])
LONGEST = 6


@dataclass
class Body:
    """The body of a loop while it grows: sequences and tensors {any, 2} to go on with."""

    random: random.Random
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    sequences: list[str] = field(default_factory=lambda: ["s"])
    tensors: list[str] = field(default_factory=lambda: ["a", "x"])
    count: int = 0

    def name(self) -> str:
        """A name of its own."""
        self.count += 1
        return f"v{self.count}"

    def constant(self, value: object) -> str:
        """A constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        """The output of a node."""
        made = self.name()
        self.nodes.append(helper.make_node(op, inputs, [made], **attributes))
        return made

    def position(self, s: str, room: int) -> str:
        """A position in a sequence, by the number of the trip."""
        length = self.node("SequenceLength", [s])
        length = self.node("Add", [length, self.constant(np.int64(room))])
        length = self.node("Max", [length, self.constant(np.int64(1))])
        return self.node("Mod", ["trip", length])

    def either(self, kind: TypeProto, then: NodeProto, orelse: NodeProto) -> str:
        """The output of either node, by the number of the trip."""
        every = self.constant(np.int64(self.random.choice([2, 3])))
        rest = self.node("Mod", ["trip", every])
        chosen = self.node("Equal", [rest, self.constant(np.int64(0))])
        branches = [graph([n], {}, {n.output[0]: kind}) for n in (then, orelse)]
        return self.node("If", [chosen], then_branch=branches[0], else_branch=branches[1])

    def front(self, t: str, rows: int) -> str:
        """The first rows of a tensor."""
        zero = self.constant(np.array([0]))
        return self.node("Slice", [t, zero, self.constant(np.array([rows])), zero])

    def step(self) -> None:
        """One more sequence or tensor."""
        r = self.random
        s, t = r.choice(self.sequences), r.choice(self.tensors)
        more = self.node("SequenceInsert", [s, t])
        match r.choice(["insert", "erase", "at", "join", "split", "concat", "tensors", "lists"]):
            case "insert":
                where = [self.position(s, 1)] if r.random() < 0.6 else []
                self.sequences.append(self.node("SequenceInsert", [s, t, *where]))
            case "erase":
                where = [self.position(more, 0)] if r.random() < 0.7 else []
                self.sequences.append(self.node("SequenceErase", [more, *where]))
            case "at":
                self.tensors.append(self.node("SequenceAt", [more, self.position(more, 0)]))
            case "join":
                whole = self.node("ConcatFromSequence", [more], axis=0)
                self.tensors.append(self.front(whole, 7))
            case "split":
                part = self.constant(np.int64(r.choice([1, 2, 3])))
                self.sequences.append(self.node("SplitToSequence", [t, part], axis=0))
            case "concat":
                both = self.node("Concat", [t, r.choice(self.tensors)], axis=0)
                half = self.constant(np.float32(0.5))
                self.tensors.append(self.node("Mul", [self.front(both, r.choice([3, 9])), half]))
            case "tensors":
                then = helper.make_node("Neg", [t], [self.name()])
                orelse = helper.make_node("Abs", [r.choice(self.tensors)], [self.name()])
                self.tensors.append(self.either(FLOATS, then, orelse))
            case "lists":
                then = helper.make_node("SequenceInsert", [s, t], [self.name()])
                orelse = helper.make_node("Identity", [r.choice(self.sequences)], [self.name()])
                self.sequences.append(self.either(SEQUENCE, then, orelse))

    def shortened(self, s: str) -> str:
        """The sequence without two elements where it has become long."""
        length = self.node("SequenceLength", [s])
        long = self.node("Greater", [length, self.constant(np.int64(LONGEST))])
        zero = self.constant(np.int64(0))
        once, twice, kept = self.name(), self.name(), self.name()
        nodes = [
            helper.make_node("SequenceErase", [s, zero], [once]),
            helper.make_node("SequenceErase", [once, zero], [twice]),
        ]
        same = graph([helper.make_node("Identity", [s], [kept])], {}, {kept: SEQUENCE})
        fewer = graph(nodes, {}, {twice: SEQUENCE})
        return self.node("If", [long], then_branch=fewer, else_branch=same)


def program(seed: int) -> ModelProto:
    """A model of one loop."""
    r = random.Random(seed)
    body = Body(r)
    for _ in range(r.randint(2, 6)):
        body.step()
    s = body.shortened(body.sequences[-1])
    a = body.node("Identity", [body.tensors[-1]])
    total = body.node("ReduceSum", [a], keepdims=0)
    length = body.node("SequenceLength", [s])
    ends = r.random() < 0.4
    on = body.node("Less", ["trip", "last"]) if ends else body.node("Identity", ["going"])
    scalar = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    inner = graph(
        body.nodes,
        {"trip": NUMBER, "going": FLAG, "s": SEQUENCE, "a": FLOATS},
        {on: FLAG, s: SEQUENCE, a: FLOATS, total: scalar, length: NUMBER},
        body.constants,
    )
    empty = r.random() < 0.5
    start = ("SequenceEmpty", []) if empty else ("SequenceConstruct", ["x", "x"])
    nodes = [
        helper.make_node(*start, ["first"]),
        helper.make_node("Loop", ["m", "", "first", "x"], ["s", "a", "totals", "n"], body=inner),
    ]
    inputs = {"m": NUMBER, "x": FLOATS, "last": NUMBER}
    row = [helper.make_tensor_type_proto(k, [None]) for k in (TensorProto.FLOAT, TensorProto.INT64)]
    outer = graph(nodes, inputs, {"s": SEQUENCE, "a": FLOATS, "totals": row[0], "n": row[1]})
    return helper.make_model(outer, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("seed", [10, 11, 22, 31, 46])
def test_random_loops(seed, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(program(seed), path)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    oracle = onnxruntime.InferenceSession(path, quiet)
    rutc.compile(path, path.with_suffix(".so"), verify=False)
    rng = np.random.default_rng(seed)
    with rutc.load(path.with_suffix(".so"), threads=2) as session:
        for trips, rows, last in ((1, 1, 9), (5, 3, 9), (9, 2, 4), (13, 1, 99)):
            x = rng.standard_normal((rows, 2)).astype("f4")
            feed = {"m": np.array(trips), "x": x, "last": np.array(last)}
            got, want = session.run(None, feed), oracle.run(None, feed)
            assert len(got[0]) == len(want[0])
            for mine, theirs in zip((*got[0], *got[1:]), (*want[0], *want[1:]), strict=True):
                assert_close(mine, theirs, reduction=1024)
