"""What a node must give: ONNX Runtime, the reference of the onnx package, and which of them counts.

Both compute every node by itself, on the same operands. Where they agree, that is the result.
Where they do not, `tests.fuzz.rules` says which of them counts and why; where no rule says it, both
do: a result is right if it is either's, element by element, and the run counts the operator among
the disputed.

Both are only as exact as their own arithmetic, and a function that jumps makes much of a
rounding error. So a graph is computed four times: by the oracle that counts, by the other one, and
twice with results moved by as much as two implementations may differ
(`rutc.verify.judging.tolerance`).
How far the four are apart is what a result may be away, over the tolerance of its own node.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from zlib import crc32

import numpy as np
import onnx
import onnxruntime
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    ValueInfoProto,
    defs,
    helper,
)
from onnx.reference import ReferenceEvaluator

from rutc.verify.judging.tolerance import Level, is_float, tolerance
from tests.fuzz import decomposed
from tests.fuzz.data import finfo, iinfo
from tests.fuzz.rules import (
    ABSOLUTE,
    BITWISE,
    BOUNDING,
    CHOICES,
    COMPARING,
    CONTRIB,
    COUNTING,
    EXACT,
    ROUNDING,
    SINGLE,
    STABLE,
    SUMS,
    TERMS,
    UNSIGNED,
    Array,
    Feed,
    counting,
    largest_operand,
    operator_name,
)
from tests.fuzz.rules_contrib import GATED, STEPS
from tests.fuzz.unspecified import EDGES, UNSPECIFIED, crosses
from tests.fuzz.valid import VALID
from tests.reference import exact_options

NEWEST_OPSET = 26
"""The newest opset whose models ONNX Runtime runs."""
IR_VERSION = 10
TRAINING = "ai.onnx.preview.training"
DOMAINS = {"ai.onnx.ml": 5, TRAINING: 1, CONTRIB: 1}
"""The versions of the other domains."""
OLD = frozenset({"TreeEnsembleClassifier", "TreeEnsembleRegressor"})
"""Operators of ai.onnx.ml that its newest version has no more."""

disputes: Counter[str] = Counter()
"""How often the oracles differed where no rule decides, by operator and type."""


Oracle = Callable[[Feed], list[Array] | None]


class NoOracle(Exception):
    """Neither oracle computes a node."""


def evaluate(node: NodeProto, opset: int, feeds: Sequence[Feed]) -> list[tuple[Array, ...]]:
    """The node's outputs, each as a tuple of its value in every run.

    Raises:
        NoOracle: Neither oracle computes the node in all runs.
    """
    name = operator_name(node)
    if name in VALID and not all(VALID[name](node, f) for f in feeds):
        raise NoOracle(name)
    unsure = any(_open([f[n] for f in feeds]) for n in feeds[0])
    if unsure and name in COUNTING:
        raise NoOracle(name)
    model = model_of(node, opset, feeds[0])
    counts = "ort" if decomposed.decomposed(node) else counting(node, feeds[0], opset)
    choices: dict[str, list[Oracle]] = {
        "": [_Reference(model), _Runtime(model)],
        "reference": [_Reference(model)],
        "ort": [_Runtime(model)],
        "wide": [_Wide(node, opset)],
        "rows": [_Rows(node), _Runtime(model)],
    }
    oracles = choices[counts]
    made: list[list[Array]] = []
    found = [_typed(o(feeds[0]), node, opset, feeds[0]) for o in oracles]
    usable = [o for o, f in zip(oracles, found, strict=True) if f is not None]
    first = next((f for f in found if f is not None), None)
    if first is None:
        raise NoOracle(name)
    if len(usable) == 2 and found[0] is not None and found[1] is not None:
        if [_shape(a) for a in found[0]] != [_shape(a) for a in found[1]]:
            disputes[_label(node, feeds[0])] += 1
            raise NoOracle(name)
        disputes[_label(node, feeds[0])] += not _like(found[0], found[1])
    made.append(first)
    for number in range(1, len(feeds)):
        oracle = usable[-1] if number == 1 else usable[0]
        feed = feeds[number]
        if number > 1 and name in STABLE:
            feed = {n: _nearby(a, number) for n, a in feed.items()}
        same = all(feed[n] is feeds[0][n] for n in feeds[0])
        if same:
            results = found[-1] if number == 1 and found[-1] is not None else first
        else:
            again = oracle(feed)
            if again is None:
                raise NoOracle(name)
            results = again
        if number > 1 and name not in EXACT:
            pairs = zip(results, first, strict=True)
            results = [_moved(a, b, node, feeds[0], number, k) for k, (a, b) in enumerate(pairs)]
        if number > 1 and name in UNSIGNED:
            zero = -0.0 if number % 2 else 0.0
            results = [np.where(a == 0, np.asarray(zero, a.dtype), a) for a in results]
        made.append(results)
    chosen = name in CHOICES and (unsure or _differ(made))
    chosen |= name in BITWISE and any(f[n] is not a for f in feeds for n, a in feeds[0].items())
    if name in UNSPECIFIED or chosen:
        mask = _all_of if chosen else UNSPECIFIED[name]
        _doubt(made, [mask(node, feeds[0], a) for a in first])
    if unsure and name in ROUNDING:
        mask = open_elements([f[node.input[0]] for f in feeds])
        _doubt(made, [mask])
    if unsure and name in COMPARING and not is_float(first[0].dtype):
        masks = (open_elements([f[operand] for f in feeds]) for operand in node.input)
        _doubt(made, [np.broadcast_to(functools.reduce(np.logical_or, masks), first[0].shape)])
    if unsure and name in BOUNDING and is_float(first[0].dtype):
        mask = open_elements([f[node.input[0]] for f in feeds])
        made[1] = [np.where(mask, np.asarray(np.nan, first[0].dtype), made[1][0])]
    if name in EDGES:
        operand = node.input[EDGES[name].operand]
        mask = crosses(EDGES[name], [f[operand] for f in feeds])
        _doubt(made, [np.broadcast_to(mask, a.shape) for a in first])
    if unsure:
        made = [list(r) for r in zip(*map(_possible, zip(*made, strict=True)), strict=True)]
    return list(zip(*made, strict=True))


def _differ(made: Sequence[Sequence[Array]]) -> bool:
    """Whether another run chooses another one: positions, or marks of 0 and 1."""
    return any(
        isinstance(first, np.ndarray)
        and (first.dtype.kind in "iub" or bool(((first == 0) | (first == 1)).all()))
        and not np.array_equal(first, a)
        for results in made[1:]
        for first, a in zip(made[0], results, strict=True)
    )


def _all_of(node: NodeProto, feed: Feed, result: np.ndarray) -> np.ndarray:
    return np.full(result.shape, True)


def _doubt(made: list[list[Array]], masks: Sequence[np.ndarray]) -> None:
    """Makes the other runs' results differ from the first's where the masks hold."""
    for run in range(1, len(made)):
        made[run] = [
            _doubted(mask, first, other, run)
            for mask, first, other in zip(masks, made[0], made[run], strict=True)
        ]


def _doubted(open_ones: np.ndarray, first: Array, other: Array, run: int) -> Array:
    """Another run's value, made another one than the first's where any will do."""
    if first.shape != other.shape or not open_ones.any():
        return other
    if is_float(first.dtype):
        real = first.astype(np.float64)
        either = np.where(real == np.inf, 0.5, np.inf)
        values = (np.where(np.isnan(real), 0.5, np.nan), either, -np.inf)[run - 1]
    else:
        least, most = _ends(first.dtype)
        values = (np.where(first != 0, 0, 1), most, least)[run - 1]
    return np.where(open_ones, np.asarray(values).astype(first.dtype), other)


def _ends(kind: np.dtype) -> tuple[int, int]:
    """Two numbers of an integer type, far apart where it is too narrow for positions and sizes."""
    if kind.itemsize > 1 or kind == np.bool_:
        return 3, 7
    return int(iinfo(kind).min), int(iinfo(kind).max)


def _open(runs: Sequence[Array]) -> bool:
    """Whether elements are other integers in other runs, or numbers in some and none in others."""
    first = runs[0]
    if not isinstance(first, np.ndarray) or first.dtype.kind in "OUS":
        return False
    if any(r.shape != first.shape for r in runs):
        return False
    return bool(open_elements(runs).any())


def open_elements(runs: Sequence[np.ndarray]) -> np.ndarray:
    """Which elements are other integers in other runs, or numbers in some and none in others."""
    kinds = list(runs)
    if is_float(runs[0].dtype):
        real = [r.astype(np.float64) for r in runs]
        kinds = [np.isnan(r) * 2 + np.isfinite(r) for r in real]
    return np.any([k != kinds[0] for k in kinds], axis=0)


def _possible(runs: Sequence[Array]) -> tuple[Array, ...]:
    """The runs, with other values where what is open gave NaN in every run, or in all but one.

    A function may be a number on little of what an element may be, and the runs missed that: the
    second one is a number then. Where only the first is, the third and fourth are infinite.
    """
    first = runs[0]
    if not isinstance(first, np.ndarray) or not is_float(first.dtype):
        return tuple(runs)
    if any(r.shape != first.shape for r in runs):
        return tuple(runs)
    undefined = np.isnan(first.astype(np.float64))
    lost = np.all([np.isnan(r.astype(np.float64)) for r in runs[1:]], axis=0)
    kind = first.dtype
    values = (np.where(undefined, 0.5, np.nan), np.where(undefined, np.nan, np.inf), -np.inf)
    others = (np.where(lost, np.asarray(v, kind), r) for v, r in zip(values, runs[1:], strict=True))
    return first, *others


def model_of(node: NodeProto, opset: int, feed: Feed) -> ModelProto:
    """A model of the node alone (or of what it is made of), its operands inputs of their shapes."""
    infos = [value_info(n, a) for n, a in feed.items()]
    outputs = [ValueInfoProto(name=o) for o in node.output if o]
    nodes = decomposed.expanded(node)
    graph = helper.make_graph(nodes, "one", infos, outputs)
    if decomposed.decomposed(node):
        opset = decomposed.OPSET
    elif opset > NEWEST_OPSET and all(_known_before(n) for n in nested([node])):
        opset = NEWEST_OPSET
    opsets = [helper.make_opsetid("", opset), *other_opsets(nodes)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def other_opsets(nodes: Sequence[NodeProto]) -> list[OperatorSetIdProto]:
    """The versions of the nodes' other domains."""
    versions = {n.domain: DOMAINS[n.domain] for n in nested(nodes) if n.domain}
    if any(n.op_type in OLD for n in nodes):
        versions["ai.onnx.ml"] = 3
    return [helper.make_opsetid(d, v) for d, v in sorted(versions.items())]


def _known_before(node: NodeProto) -> bool:
    """Whether an operator of the newest opset is what it was in the newest that both run."""
    if node.domain:
        return True
    return bool(defs.get_schema(node.op_type).since_version <= NEWEST_OPSET)


def nested(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The nodes, and those of their subgraphs."""
    found: list[NodeProto] = []
    for n in nodes:
        found.append(n)
        for a in n.attribute:
            if a.type == AttributeProto.GRAPH:
                found += nested(a.g.node)
    return found


def captured(node: NodeProto) -> list[str]:
    """The names that the node's subgraphs take from outside."""
    found: dict[str, None] = {}
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            found.update(dict.fromkeys(_free(a.g)))
    return list(found)


def _free(graph: GraphProto) -> list[str]:
    known = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    found: dict[str, None] = {}
    for n in graph.node:
        found.update(dict.fromkeys(i for i in (*n.input, *captured(n)) if i and i not in known))
        known.update(n.output)
    found.update(dict.fromkeys(o.name for o in graph.output if o.name not in known))
    return list(found)


def value_info(name: str, value: Array, *, shaped: bool = True) -> ValueInfoProto:
    """The declaration of a value: a tensor's, or a sequence's."""
    if isinstance(value, list):
        kind = _element(value[0]) if value else onnx.TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, kind, None)
    shape = value.shape if shaped else None
    return helper.make_tensor_value_info(name, _element(value), shape)


def _element(array: np.ndarray) -> int:
    if array.dtype.kind in "OU":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


class _Reference:
    """The implementation of the onnx package."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    def __call__(self, feed: Feed) -> list[Array] | None:
        """The outputs; None where it has no implementation or refuses the operands."""
        try:
            with np.errstate(all="ignore"):
                made = ReferenceEvaluator(self.model).run(None, dict(feed))
        except Exception:
            return None
        return [_plain(a) for a in made]


class _Wide:
    """The implementation of the onnx package, which computes narrow types in single precision."""

    def __init__(self, node: NodeProto, opset: int) -> None:
        self.node = node
        self.opset = opset

    def __call__(self, feed: Feed) -> list[Array] | None:
        """The outputs, rounded to the operands' type; None where it refuses the operands."""
        kinds = {a.dtype for a in feed.values() if is_float(a.dtype)}
        wide = {n: a.astype(np.float32) if is_float(a.dtype) else a for n, a in feed.items()}
        made = _Reference(model_of(self.node, self.opset, wide))(wide)
        if made is None or len(kinds) != 1:
            return None
        (kind,) = kinds
        with np.errstate(over="ignore"):
            return [a.astype(kind) if is_float(a.dtype) else a for a in made]


class _Rows:
    """The implementation of the onnx package, given a matrix of all axes from the named one on."""

    def __init__(self, node: NodeProto) -> None:
        self.axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        self.node = helper.make_node(node.op_type, node.input, node.output, axis=1)

    def __call__(self, feed: Feed) -> list[Array] | None:
        """The outputs, in the operand's shape; None where it refuses the operand."""
        (name,) = self.node.input
        x = feed[name]
        at = self.axis % x.ndim
        rows = {name: x.reshape(prod(x.shape[:at]), prod(x.shape[at:]))}
        made = _Reference(model_of(self.node, 13, rows))(rows)
        return None if made is None else [a.reshape(x.shape) for a in made]


def _typed(
    results: list[Array] | None, node: NodeProto, opset: int, feed: Feed
) -> list[Array] | None:
    """The results; None where their types are not those that the operator's definition says."""
    if node.domain == TRAINING and results is not None:
        # The reference computes in double precision.
        return [a.astype(feed[node.input[-1]].dtype) for a in results]
    if any(_odd_strings(a) for a in results or ()):
        return None
    if results is None or not defs.has(node.op_type, opset, node.domain) or node.domain:
        return results
    schema = defs.get_schema(node.op_type, opset, node.domain)
    known = {
        i.type_str: feed[n].dtype
        for i, n in zip(schema.inputs, node.input, strict=False)
        if n and i.is_homogeneous and isinstance(feed[n], np.ndarray)
    }
    for output, value in zip(schema.outputs, results, strict=False):
        wanted = known.get(output.type_str)
        if wanted is not None and isinstance(value, np.ndarray) and value.dtype != wanted:
            return None
    return results


def _odd_strings(value: Array) -> bool:
    """Whether a tensor of strings holds something else: the reference fills some with 0."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind == "O"
        and not all(isinstance(e, str | bytes) for e in value.flat)
    )


class _Runtime:
    """ONNX Runtime, which rewrites nothing."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.session: onnxruntime.InferenceSession | None = None

    def __call__(self, feed: Feed) -> list[Array] | None:
        """The outputs; None where it has no kernel or refuses the operands."""
        try:
            if self.session is None:
                self.session = runtime(self.model)
            return [_plain(a) for a in self.session.run(None, dict(feed))]
        except Exception:
            return None


def runtime(model: ModelProto) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime on one thread."""
    onnxruntime.set_default_logger_severity(4)
    options = exact_options()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _plain(value: Array) -> Array:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value if value is None else np.asarray(value)


def _shape(value: Array) -> object:
    if isinstance(value, list):
        return [_shape(v) for v in value]
    return None if value is None else (value.shape, value.dtype)


def _like(left: Sequence[Array], right: Sequence[Array]) -> bool:
    return all(_same(a, b) for a, b in zip(left, right, strict=True))


def _same(a: Array, b: Array) -> bool:
    if isinstance(a, list) or isinstance(b, list):
        return isinstance(a, list) and isinstance(b, list) and len(a) == len(b) and _like(a, b)
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not is_float(a.dtype):
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    limit = tolerance(Level.MODEL, a.dtype, 64)
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= limit.allowed(np.where(np.isfinite(y), y, 0.0))
    return bool(np.all(near | (x == y) | (np.isnan(x) & np.isnan(y))))


def _label(node: NodeProto, feed: Feed) -> str:
    first = next((feed[n] for n in node.input if n), None)
    kind = first.dtype.name if isinstance(first, np.ndarray) else "sequence"
    return f"{operator_name(node)}({kind})"


def reduction_of(operands: Sequence[Array], result: Array) -> int:
    """About how many operands' elements one element of a result sums up."""
    tensors = [a for a in operands if isinstance(a, np.ndarray)]
    sizes = [a.size for a in tensors]
    lengths = [a.shape[-1] for a in tensors if a.ndim]
    if not isinstance(result, np.ndarray):
        return 1
    return int(max(1, max(sizes, default=1) // max(1, result.size), *lengths))


def _nearby(value: Array, run: int) -> Array:
    """Numbers a rounding away."""
    if not isinstance(value, np.ndarray) or not is_float(value.dtype):
        return value
    step = tolerance(Level.KERNEL, value.dtype).rtol / 2
    signs = np.random.default_rng([value.size, run]).choice([-1.0, 1.0], value.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        return (value.astype(np.float64) * (1 + step * signs)).astype(value.dtype)


def _moved(value: Array, first: Array, node: NodeProto, feed: Feed, run: int, output: int) -> Array:
    """A result moved by what two implementations may differ.

    Elements that other operators moved before go on in their direction, away from the `first` run.
    """
    if isinstance(value, list):
        pairs = zip(value, first, strict=False)
        return [_moved(v, f, node, feed, run, output) for v, f in pairs]
    if value is None or not value.size:
        return value
    name = operator_name(node)
    if name in STEPS and not is_float(value.dtype):
        step, info = (0, 0, -1, 1)[run], iinfo(value.dtype)
        stepped = np.clip(value.astype(np.int64) + step, int(info.min), int(info.max))
        return np.asarray(stepped, value.dtype)
    if not is_float(value.dtype):
        return value
    seed = [crc32(str(node.output[0]).encode()), output]
    random = np.random.default_rng(seed)
    real = value.astype(np.float64)
    finite = np.where(np.isfinite(real), real, 0.0)
    kind = value.dtype if name not in SINGLE else np.dtype(np.float32)
    limit = tolerance(Level.KERNEL, kind, reduction_of(list(feed.values()), value))
    step = limit.allowed(finite) / 2
    if name in SUMS:
        terms = TERMS[name](node, feed) if name in TERMS else _largest(feed)
        step = step + limit.scale * terms / 2
    if name in ABSOLUTE:
        floor = tolerance(Level.MODEL, kind).floor
        step = step + floor * (max(1.0, float(largest_operand(node, feed))) if name in GATED else 1)
    # One of the two runs moves an element up, the other one down; by different lengths, so that no
    # later sum loses both.
    step = step * np.random.default_rng([*seed, run]).uniform(1.0, 1.5, real.shape)
    signs = np.where((random.random(real.shape) < 0.5) == (run % 2 == 1), -1.0, 1.0)
    if first.shape == real.shape:
        with np.errstate(invalid="ignore", over="ignore"):
            away = np.nan_to_num(np.sign(real - first.astype(np.float64)))
        signs = np.where(away != 0, away, signs)
    step = step * signs
    kept = ~np.isfinite(real)
    if name not in SUMS:
        kept |= real == 0
    normal = float(finfo(value.dtype).smallest_normal)
    tiny = (np.abs(real) < normal) & (np.abs(step) < normal)
    if value.dtype.itemsize > kind.itemsize:
        # Single precision makes 0 of these.
        least = float(finfo(kind).smallest_normal)
        lost = np.abs(real) < least
        step = np.where(lost, np.maximum(np.abs(step), least) * signs, step)
        kept &= ~lost
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.where(kept, real, np.where(tiny & (run % 2 == 1), 0.0, real + step))
        return moved.astype(value.dtype)


def _largest(feed: Feed) -> float:
    """The largest product of finite elements of the operands."""
    total = 1.0
    for a in list(feed.values())[:2]:
        if isinstance(a, np.ndarray) and is_float(a.dtype) and a.size:
            real = np.abs(a.astype(np.float64))
            total *= float(real[np.isfinite(real)].max(initial=0.0))
    return total if np.isfinite(total) else 0.0
