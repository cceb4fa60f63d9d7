"""Random models with nested graphs and functions, whose values share a few names between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

SHAPE = (2, 3)
DOMAIN = "acme"
SUFFIXES = ("", "_shape", "_rows", "_hot", "_intermediate", "_own")
"""What the conversion of opsets adds to names, and nothing."""
NAMES = [*(f"{n}{s}" for n in "abcdef" for s in SUFFIXES), *map(str, range(1, 40))]


def random_model(seed: int, opset: int) -> ModelProto:
    """A model of float {2, 3} inputs `a` and `x` and a bool `go`, whose only output is `result`."""
    rng = np.random.default_rng(seed)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    functions = []
    for k in range(2):
        body = _Scope(rng, {"p", "q"}, ["p", "q"], functions=[f.name for f in functions])
        body.values.append(body.node("Sub", ["p", "q"]))
        body.fill(3, depth=k)
        result = body.values[-1]
        functions.append(
            helper.make_function(DOMAIN, f"F{k}", ["p", "q"], [result], body.nodes, imports)
        )
    main = _Scope(rng, {"a", "x", "go"}, ["a", "x"], [f.name for f in functions], condition="go")
    main.fill(5, depth=0)
    total = main.values[-3:]
    main.nodes.append(helper.make_node("Max", total, ["result"]))
    inputs = [_info("a"), _info("x"), helper.make_tensor_value_info("go", TensorProto.BOOL, [])]
    graph = helper.make_graph(main.nodes, "main", inputs, [_info("result")])
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


def _info(name: str, shape: tuple[int, ...] = SHAPE) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@dataclass
class _Scope:
    """A graph that is being made: the names that it has, and the values that its nodes may read.

    As ONNX asks, no value is called like one `around` it, or `below` in a graph that it holds;
    graphs that do not hold each other may have the same names.
    """

    rng: np.random.Generator
    own: set[str]
    values: list[str]
    functions: list[str]
    condition: str = ""
    around: frozenset[str] = frozenset()
    below: set[str] = field(default_factory=set)
    nodes: list[NodeProto] = field(default_factory=list)

    def name(self) -> str:
        taken = self.own | self.around | self.below
        free = [n for n in NAMES if n not in taken]
        made = free[self.rng.integers(len(free))]
        self.own.add(made)
        return made

    def pick(self) -> str:
        return self.values[self.rng.integers(len(self.values))]

    def node(self, op: str, inputs: list[str], **attributes: object) -> str:
        made = self.name()
        self.nodes.append(helper.make_node(op, inputs, [made], **attributes))
        return made

    def fill(self, count: int, depth: int) -> None:
        """Adds values of SHAPE."""
        for _ in range(count):
            self.values.append(self.step(depth))

    def step(self, depth: int) -> str:
        kinds = ["unary", "binary", "softmax", "hardmax"]
        kinds += [] if depth > 1 else ["if", "loop", "scan"] * 2
        kinds += ["call"] if self.functions and depth < 2 else []
        match kinds[self.rng.integers(len(kinds))]:
            case "unary":
                return self.node(("Neg", "Abs", "Tanh")[self.rng.integers(3)], [self.pick()])
            case "binary":
                return self.node("Sub", [self.pick(), self.pick()])
            case "softmax":
                return self.node("Softmax", [self.pick()], axis=0)
            case "hardmax":
                return self.node("Hardmax", [self.pick()], axis=0)
            case "call":
                name = self.functions[self.rng.integers(len(self.functions))]
                return self.node(name, [self.pick(), self.pick()], domain=DOMAIN)
            case "if":
                condition = self.condition or self.compared()
                then, orelse = self.branch(depth), self.branch(depth)
                return self.node("If", [condition], then_branch=then, else_branch=orelse)
            case "loop":
                return self.loop(depth)
            case _:
                return self.scan(depth)

    def compared(self) -> str:
        """A bool that data decide."""
        spread = self.node("ReduceMax", [self.pick()], keepdims=0)
        zero = self.constant(np.float32(0.5))
        return self.node("Greater", [spread, zero])

    def constant(self, value: np.generic) -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        return self.node("Constant", [], value=helper.make_tensor("", kind, [], [value]))

    def inner(self, *given: str) -> _Scope:
        """A graph in this one, with inputs."""
        around = frozenset(self.own | self.around)
        values = [v for v in self.values if v not in given]
        return _Scope(
            self.rng, set(given), values, self.functions, condition=self.condition, around=around
        )

    def branch(self, depth: int) -> GraphProto:
        scope = self.inner()
        scope.fill(2, depth + 1)
        self.below |= scope.own | scope.below
        return helper.make_graph(scope.nodes, "branch", [], [_info(scope.values[-1])])

    def loop(self, depth: int) -> str:
        count, start = self.constant(np.int64(2)), self.pick()
        scope = self.inner()
        trip, go, carried = (scope.name() for _ in range(3))
        scope.values.append(carried)
        scope.fill(2, depth + 1)
        goes, step = scope.node("Identity", [go]), scope.pick()
        ended = scope.node("Neg", [step])
        kept = scope.node("Abs", [scope.pick()])
        inputs = [
            helper.make_tensor_value_info(trip, TensorProto.INT64, []),
            helper.make_tensor_value_info(go, TensorProto.BOOL, []),
            _info(carried),
        ]
        still = helper.make_tensor_value_info(goes, TensorProto.BOOL, [])
        outputs = [still, _info(ended), _info(kept)]
        self.below |= scope.own | scope.below
        body = helper.make_graph(scope.nodes, "body", inputs, outputs)
        last, all_ = self.name(), self.name()
        self.nodes.append(helper.make_node("Loop", [count, "", start], [last, all_], body=body))
        most = self.node("ReduceMax", [all_], axes=[0], keepdims=0)
        return self.node("Add", [last, most])

    def scan(self, depth: int) -> str:
        start, scanned = self.pick(), self.pick()
        scope = self.inner()
        state, row = scope.name(), scope.name()
        scope.values.append(state)
        scope.fill(2, depth + 1)
        ended = scope.node("Add", [scope.pick(), row])
        kept = scope.node("Neg", [row])
        inputs = [_info(state), _info(row, SHAPE[1:])]
        outputs = [_info(ended), _info(kept, SHAPE[1:])]
        self.below |= scope.own | scope.below
        body = helper.make_graph(scope.nodes, "body", inputs, outputs)
        last, rows = self.name(), self.name()
        made = helper.make_node("Scan", [start, scanned], [last, rows], body=body)
        made.attribute.append(helper.make_attribute("num_scan_inputs", 1))
        self.nodes.append(made)
        return self.node("Sub", [last, rows])
