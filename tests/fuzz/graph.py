"""A model being built, node after node; each value is computed by the oracles as it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import GraphProto, NodeProto, defs, helper, numpy_helper

from rutc.verify.judging.tolerance import is_float
from tests.fuzz.data import array_of, dtype_named
from tests.fuzz.oracles import DOMAINS, captured, evaluate, value_info
from tests.fuzz.rules import CONTRIB, Array

RUNS = 4
EXTENTS = (2, 3, 1, 4, 5, 7, 0, 8, 11, 16, 17, 33)
MOST_ELEMENTS = 4096
_TYPES = "float int64 int32 double bool float16 uint8 int8 bfloat16 int16 uint64 uint32 uint16"
ELEMENTS = _TYPES.split()
"""Types of leaves, in the order of how simple they are."""
CHANCES = {"float": 6, "int64": 2, "double": 2, "float16": 2, "bfloat16": 1}

Types = Sequence[str]


class Refused(Exception):
    """An operator cannot be put on what there is."""


@dataclass(frozen=True, eq=False)
class Val:
    """A value of the model in every run (see `tests.fuzz.oracles`)."""

    name: str
    runs: tuple[Array, ...]

    @property
    def array(self) -> np.ndarray:
        """Its elements by the oracle that counts."""
        assert isinstance(self.runs[0], np.ndarray)
        return self.runs[0]

    @property
    def is_tensor(self) -> bool:
        """Whether it is no sequence."""
        return isinstance(self.runs[0], np.ndarray)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""
        return self.array.shape

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype:
        """Its element type."""
        return self.array.dtype

    @property
    def stable(self) -> bool:
        """Whether all runs give the same shape."""
        shapes = {r.shape if isinstance(r, np.ndarray) else len(r) for r in self.runs}
        return len(shapes) == 1


@dataclass
class Build:
    """The model, and the means to put more nodes to it.

    `outer` is the build that this one is a subgraph of: leaves are made there.
    """

    draw: Callable[[st.SearchStrategy[Any]], Any]
    opset: int
    flavor: str
    outer: Build | None = None
    values: list[Val] = field(default_factory=list)
    nodes: list[NodeProto] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    known: dict[str, Val] = field(default_factory=dict)
    """All values by name, of the subgraphs too."""

    # Draws.

    def number(self, low: int, high: int) -> int:
        """A whole number in `low..high`; small ones are simpler."""
        return int(self.draw(st.integers(low, high)))

    def one(self, choices: Sequence[Any]) -> Any:
        """One of the choices; the first is the simplest."""
        return self.draw(st.sampled_from(list(choices)))

    def chance(self, percent: int) -> bool:
        """True in so many of 100 cases."""
        return self.number(0, 99) >= 100 - percent

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """A shape of few elements with `low..high` axes."""
        extents = [self.one(EXTENTS) for _ in range(self.number(low, high))]
        while prod(max(1, e) for e in extents) > MOST_ELEMENTS:
            extents[int(np.argmax(extents))] = 2
        return tuple(extents)

    def axis(self, rank: int) -> int:
        """An axis of a rank, perhaps counted from the end."""
        if rank == 0:
            raise Refused
        axis = self.number(0, rank - 1)
        return axis - rank if self.chance(30) else axis

    def dtype(self, types: Types) -> np.dtype:
        """One of the types, common ones more often."""
        weighted = [t for t in ELEMENTS if t in types for _ in range(CHANCES.get(t, 1))]
        weighted += [t for t in _spelled(types) if t not in ELEMENTS]
        if not weighted:
            raise Refused
        return dtype_named(self.one(weighted))

    # Schemas.

    def schema(self, op: str, domain: str = "") -> defs.OpSchema:
        """The operator's definition at this model's opset."""
        try:
            found = defs.get_schema(op, DOMAINS.get(domain, self.opset), domain)
        except defs.SchemaError as error:
            raise Refused(op) from error
        if found.deprecated and not domain:
            raise Refused(op)
        return found

    def types(self, op: str, operand: int = 0, domain: str = "") -> list[str]:
        """The element types that an operand may have at this opset."""
        schema = self.schema(op, domain)
        variable = schema.inputs[min(operand, len(schema.inputs) - 1)].type_str
        allowed = [variable]
        for constraint in schema.type_constraints:
            if constraint.type_param_str == variable:
                allowed = list(constraint.allowed_type_strs)
        return [t[7:-1] for t in allowed if t.startswith("tensor(")]

    def has(self, op: str, attribute: str) -> bool:
        """Whether the operator has an attribute at this opset."""
        return attribute in self.schema(op).attributes

    # Values.

    def pick(
        self,
        types: Types,
        where: Callable[[Val], bool] = lambda v: True,
        shape: Callable[[], Sequence[int]] | None = None,
        **bounds: Any,
    ) -> Val:
        """A value of one of the types: one that is there and fits, or a new leaf."""
        kinds = {dtype_named(t) for t in _spelled(types)}
        found = [v for v in self.values if v.is_tensor and v.dtype in kinds and where(v)]
        if found and not bounds and self.chance(75):
            return found[-1 - self.number(0, len(found) - 1)]
        return self.leaf(self.dtype(types), (shape or self.shape)(), **bounds)

    def like(self, value: Val, shape: Sequence[int] | None = None, **bounds: Any) -> Val:
        """Another value of the same type that has a shape; its own by default."""
        wanted = value.shape if shape is None else tuple(shape)
        found = [
            v for v in self.values if v.is_tensor and v.dtype == value.dtype and v.shape == wanted
        ]
        if found and not bounds and self.chance(60):
            return found[-1 - self.number(0, len(found) - 1)]
        return self.leaf(value.dtype, wanted, **bounds)

    def spread(self, value: Val, **bounds: Any) -> Val:
        """A value of the same type that broadcasts with it."""

        def fits(v: Val) -> bool:
            if not v.is_tensor or v.dtype != value.dtype:
                return False
            try:
                made = np.broadcast_shapes(v.shape, value.shape)
            except ValueError:
                return False
            return prod(made) <= MOST_ELEMENTS

        found = [v for v in self.values if fits(v)]
        if found and not bounds and self.chance(60):
            return found[-1 - self.number(0, len(found) - 1)]
        shape = [1 if self.chance(25) else e for e in value.shape]
        return self.leaf(value.dtype, shape[self.number(0, len(shape)) :], **bounds)

    def leaf(
        self, dtype: np.dtype, shape: Sequence[int], *, fixed: bool | None = None, **bounds: Any
    ) -> Val:
        """A new input or initializer."""
        if prod(max(1, e) for e in shape) > 4 * MOST_ELEMENTS:
            raise Refused("too large")
        random = np.random.default_rng(self.number(0, 1 << 16))
        flavor = "small" if self.flavor == "small" or self.chance(30) else self.flavor
        return self.given(array_of(random, dtype, shape, flavor, **bounds), fixed=fixed)

    def given(self, array: np.ndarray, *, fixed: bool | None = None) -> Val:
        """An input or an initializer (`fixed`) of these elements."""
        array = np.asarray(array)
        root = self
        while root.outer is not None:
            root = root.outer
        if fixed is None:
            fixed = self.chance(30)
        name = root.name("w" if fixed else "x")
        (root.weights if fixed else root.inputs)[name] = array
        value = root.known[name] = Val(name, (array,) * RUNS)
        if is_float(array.dtype) or array.ndim:
            root.values.append(value)
            if root is not self:
                self.values.append(value)
        return value

    def integers(self, numbers: Sequence[int], *, fixed: bool | None = None) -> Val:
        """A list of 64-bit integers that says how to compute; an input in one case of eight."""
        fixed = not self.chance(12) if fixed is None else fixed
        return self.given(np.array(numbers, np.int64).reshape(len(numbers)), fixed=fixed)

    def scalar(self, number: int, *, fixed: bool | None = None) -> Val:
        """A 64-bit integer that says how to compute; an input in one case of eight."""
        fixed = not self.chance(12) if fixed is None else fixed
        return self.given(np.array(number, np.int64), fixed=fixed)

    def name(self, prefix: str) -> str:
        """A new name."""
        root = self
        while root.outer is not None:
            root = root.outer
        root.names.append(prefix)
        return f"{prefix}{len(root.names)}"

    # Nodes.

    def node(
        self,
        op: str,
        inputs: Sequence[Val | None],
        outputs: int | Sequence[bool] = 1,
        domain: str = "",
        **attrs: Any,
    ) -> list[Val]:
        """Puts a node on values and computes so many outputs, or those for which True is said.

        Raises:
            Refused: No oracle computes it.
            NoOracle: The same.
        """
        given = {k: v for k, v in attrs.items() if v is not None}
        if domain != CONTRIB:
            self.check_types(op, inputs, domain)
        wanted = [True] * outputs if isinstance(outputs, int) else outputs
        named = [self.name("v") if w else "" for w in wanted]
        names = [n for n in named if n]
        operands = ["" if v is None else v.name for v in inputs]
        made = helper.make_node(op, operands, named, domain=domain, **given)
        known = self.known
        known.update((v.name, v) for v in inputs if v)
        read = dict.fromkeys(n for n in (*operands, *captured(made)) if n)
        feeds = [{n: known[n].runs[r] for n in read} for r in range(RUNS)]
        results = [Val(n, r) for n, r in zip(names, evaluate(made, self.opset, feeds), strict=True)]
        if any(r is None for v in results for r in v.runs):
            raise Refused("no result")
        if any(v.is_tensor and v.array.size > 4 * MOST_ELEMENTS for v in results):
            raise Refused("too large")
        self.nodes.append(made)
        known.update((v.name, v) for v in results)
        self.values += [v for v in results if v.stable]
        return results

    def check_types(self, op: str, inputs: Sequence[Val | None], domain: str) -> None:
        """Raises Refused where an operand is of a type that the operator does not take."""
        for place, v in enumerate(inputs):
            if v is not None and v.is_tensor:
                kinds = self.types(op, place, domain)
                if kinds and all(v.dtype != dtype_named(k) for k in _spelled(kinds)):
                    raise Refused(op)

    def inner(self, values: Sequence[Val]) -> Build:
        """A build of a subgraph that sees some values."""
        return Build(self.draw, self.opset, self.flavor, self, list(values), known=self.known)

    def graph(
        self, inputs: Sequence[Val], outputs: Sequence[Val], *, changing: Sequence[Val] = ()
    ) -> GraphProto:
        """This build as a subgraph; the shapes of `changing` values are not the same every time."""
        infos = [
            [value_info(v.name, v.runs[0], shaped=v not in changing) for v in values]
            for values in (inputs, outputs)
        ]
        return helper.make_graph(self.nodes, self.name("g"), *infos)

    def mark(self) -> tuple[int, int, list[str], list[str]]:
        """What `undo` takes."""
        return len(self.values), len(self.nodes), list(self.inputs), list(self.weights)

    def undo(self, mark: tuple[int, int, list[str], list[str]]) -> None:
        """Forgets all that came after a mark."""
        values, nodes, inputs, weights = mark
        del self.values[values:]
        del self.nodes[nodes:]
        self.inputs = {n: self.inputs[n] for n in inputs}
        self.weights = {n: self.weights[n] for n in weights}


def _spelled(kinds: Types) -> list[str]:
    return [k for k in kinds if not k.startswith(("complex", "float6"))]


def tensor(array: np.ndarray, name: str) -> Any:
    """An initializer."""
    return numpy_helper.from_array(array, name)


Maker = Callable[[Build, str], object]
MAKERS: dict[str, Maker] = {}
"""How to put an operator on a build, by the operator's name."""


def maker(names: str, domain: str = "") -> Callable[[Maker], Maker]:
    """Registers a function for operators, their names separated by spaces."""

    def register(function: Maker) -> Maker:
        prefix = f"{domain}." if domain else ""
        MAKERS.update({prefix + n: function for n in names.split()})
        return function

    return register
