"""A second interpreter: pure Python, one point at a time, sequential folds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from rutc.tensor_ir import (
    Apply,
    Bind,
    Call,
    Cast,
    Const,
    DType,
    Expr,
    Graph,
    If,
    Index,
    IndexValue,
    Input,
    Lit,
    Local,
    Nest,
    Node,
    Read,
    Reducer,
    Scan,
    Scatter,
    While,
)

Scalar = int | float | bool
Table = dict[tuple[int, ...], Scalar]


class Naive:
    """The values of a graph as tables from positions (in sorted dim order) to scalars."""

    def __init__(self, graph: Graph, inputs: Mapping[str, np.ndarray]) -> None:
        self.graph = graph
        self.inputs = inputs
        self.env: dict[str, int] = {}
        self.tables: dict[str, Table] = {}
        for n in graph.inputs:
            for d, size in zip(n.axes, inputs[n.name].shape, strict=True):
                name = graph.extents[d].as_var
                if name is not None:
                    self.env[name] = size
        self.run(graph.nodes)

    def output(self, name: str) -> np.ndarray:
        o = next(o for o in self.graph.outputs if o.name == name)
        v = self.graph.values[o.value]
        array = np.empty([self.size(d) for d in o.axes], v.dtype.numpy)
        for position, x in self.tables[o.value].items():
            at = dict(zip(v.dims, position, strict=True))
            array[tuple(at[d] for d in o.axes)] = x
        return array

    def size(self, d: str) -> int:
        return int(self.graph.extents[d].evaluate(self.env))

    def points(self, dims: Sequence[str]) -> Iterator[tuple[int, ...]]:
        return product(*(range(self.size(d)) for d in dims))

    def run(self, nodes: Sequence[Node]) -> None:
        for n in nodes:
            self.node(n)

    def node(self, n: Node) -> None:
        match n:
            case Input() | Const():
                array = self.inputs[n.name] if isinstance(n, Input) else n.data.array
                self.tables[n.out.name] = {
                    p: array[tuple(dict(zip(n.out.dims, p, strict=True))[a] for a in n.axes)].item()
                    for p in self.points(n.out.dims)
                }
            case Nest():
                for v in n.outs:
                    self.tables[v.name] = {}
                for p in self.points(n.out.dims):
                    for v, x in zip(n.outs, self.element(n, p), strict=True):
                        self.tables[v.name][p] = x
            case Scan():
                for c in n.carries:
                    self.tables[c.param.name] = self.tables[c.init]
                collected = n.outs[len(n.carries) :]
                for v in collected:
                    self.tables[v.name] = {}
                for t in range(self.size(n.dim)):
                    self.env[n.dim] = t
                    self.run(n.body)
                    for v, name in zip(collected, n.collected, strict=True):
                        axis = v.dims.index(n.dim)
                        for p, x in self.tables[name].items():
                            self.tables[v.name][(*p[:axis], t, *p[axis:])] = x
                    states = [self.tables[c.next] for c in n.carries]
                    for c, state in zip(n.carries, states, strict=True):
                        self.tables[c.param.name] = state
                self.env.pop(n.dim, None)
                for v, c in zip(n.outs, n.carries, strict=False):
                    self.tables[v.name] = self.tables[c.param.name]
            case If():
                branch = n.then if self.tables[n.cond][()] else n.orelse
                self.run(branch.nodes)
                for v, r in zip(n.outs, branch.results, strict=True):
                    self.tables[v.name] = self.tables[r]
            case While():
                for c in n.carries:
                    self.tables[c.param.name] = self.tables[c.init]
                while self.tables[n.cond][()]:
                    self.run(n.body)
                    states = [self.tables[c.next] for c in n.carries]
                    for c, state in zip(n.carries, states, strict=True):
                        self.tables[c.param.name] = state
                for v, c in zip(n.outs, n.carries, strict=True):
                    self.tables[v.name] = self.tables[c.param.name]
            case Scatter():
                table = dict(self.tables[n.base])
                dims = sorted(n.dims)
                for p in self.points(dims):
                    env = self.env | dict(zip(dims, p, strict=True))
                    at = tuple(self.coord(c, env) for _, c in n.coords)
                    if at in table:
                        x = self.value(n.body, env)
                        old = table[at]
                        table[at] = x if n.reducer is None else fold(n.reducer, [(old,), (x,)])[0]
                self.tables[n.out.name] = table
            case Bind():
                self.tables[n.out.name] = self.tables[n.value]
                self.env[n.symbol] = int(self.tables[n.value][()])
            case Call():
                raise NotImplementedError(n.routine)

    def element(self, n: Nest, p: tuple[int, ...]) -> tuple[Scalar, ...]:
        env = self.env | dict(zip(n.out.dims, p, strict=True))
        if n.reducer is None:
            return (self.value(n.body[0], env),)
        items = [
            tuple(self.value(e, env | dict(zip(n.bound, q, strict=True))) for e in n.body)
            for q in self.points(n.bound)
        ]
        return fold(n.reducer, items)

    def coord(self, c: Index | Expr, env: Mapping[str, int]) -> int:
        return int(c.evaluate(env)) if isinstance(c, Index) else int(self.value(c, env))

    def value(self, e: Expr, env: Mapping[str, int]) -> Scalar:
        if isinstance(e, IndexValue):
            return int(e.index.evaluate(env))
        if isinstance(e, Read):
            at = []
            outside = False
            for d, c in e.coords:
                i, extent = self.coord(c, env), self.size(d)
                inside = 0 <= i < extent
                outside |= not inside
                assert inside or e.fill is not None or not isinstance(c, Index), e
                at.append(min(max(i, 0), extent - 1))
            if outside and e.fill is not None:
                return _number(e.fill)
            return self.tables[e.value][tuple(at)]
        if isinstance(e, Apply):
            return operate(e.op, [self.value(a, env) for a in e.args], e.args[-1].dtype, e.dtype)
        if isinstance(e, Cast):
            return convert(self.value(e.arg, env), e.dtype)
        return pure(e, {})


def fold(r: Reducer, items: Sequence[tuple[Scalar, ...]]) -> tuple[Scalar, ...]:
    state = tuple(_number(i) for i in r.identity)
    for x in items:
        lifted = tuple(pure(e, _env(x=x)) for e in r.lift)
        state = tuple(pure(e, _env(a=state, b=lifted)) for e in r.merge)
    return tuple(pure(e, _env(s=state)) for e in r.finish)


def _number(x: Lit) -> Scalar:
    assert not isinstance(x.value, str)
    return x.value


def _env(**groups: Sequence[Scalar]) -> dict[str, Scalar]:
    return {f"{prefix}{i}": x for prefix, xs in groups.items() for i, x in enumerate(xs)}


def pure(e: Expr, env: Mapping[str, Scalar]) -> Scalar:
    """An expression without reads and indices."""
    match e:
        case Lit():
            return _number(e)
        case Local():
            return env[e.name]
        case Apply():
            return operate(e.op, [pure(a, env) for a in e.args], e.args[-1].dtype, e.dtype)
        case Cast():
            return convert(pure(e.arg, env), e.dtype)
        case _:
            raise TypeError(e)


def convert(x: Scalar, dtype: DType) -> Scalar:
    if dtype is DType.BOOL:
        return x != 0
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return float(np.float64(x).astype(dtype.numpy))
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    high = low + (1 << dtype.bits) - 1
    if isinstance(x, float):
        if math.isnan(x):
            return 0
        return low if x <= low else high if x >= high else int(x)
    return wrap(int(x), dtype)


def wrap(x: int, dtype: DType) -> int:
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return (x - low) % (1 << dtype.bits) + low


def operate(op: str, args: list[Scalar], dtype: DType, result: DType) -> Scalar:
    """`op` on operands of type `dtype`."""
    if op == "select":
        return args[1] if args[0] else args[2]
    if dtype.is_float:
        x = _float(op, [float(a) for a in args])
    elif dtype is DType.BOOL:
        x = _logic(op, [bool(a) for a in args])
    else:
        x = _integer(op, [int(a) for a in args], dtype)
    return bool(x) if result is DType.BOOL else convert(x, result)


def _compare(op: str, a: Scalar, b: Scalar) -> bool | None:
    table = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return table.get(op)


def _logic(op: str, args: list[bool]) -> bool:
    if op == "not":
        return not args[0]
    a, b = args
    table = {"and": a and b, "or": a or b, "xor": a != b, "eq": a == b, "ne": a != b}
    return table[op]


def _integer(op: str, args: list[int], dtype: DType) -> Scalar:
    a, b = (*args, 0)[:2]
    compared = _compare(op, a, b)
    if compared is not None:
        return compared
    width = dtype.bits
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "neg":
            return -a
        case "abs":
            return abs(a)
        case "sign":
            return (a > 0) - (a < 0)
        case "bitnot":
            return ~a
        case "div":
            return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        case "mod":
            return 0 if b == 0 else a % b
        case "fmod":
            return 0 if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)
        case "pow":
            if b >= 0:
                return pow(a, b, 1 << width)
            return 0 if a == 0 else int(1 / a) if abs(a) > 1 else a if b % 2 else 1
        case "bitand":
            return a & b
        case "bitor":
            return a | b
        case "bitxor":
            return a ^ b
        case "shl":
            return a << b if 0 <= b < width else 0
        case "shr":
            return a >> b if 0 <= b < width else -1 if a < 0 else 0
        case _:
            raise ValueError(op)


def _float(op: str, args: list[float]) -> Scalar:
    a, b = (*args, 0.0)[:2]
    compared = _compare(op, a, b)
    if compared is not None:
        return compared
    match op:
        case "isnan":
            return math.isnan(a)
        case "isinf":
            return math.isinf(a)
        case "neg":
            return -a
        case "abs":
            return abs(a)
        case "sign":
            return a if math.isnan(a) or a == 0 else math.copysign(1, a)
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "min" | "max":
            if math.isnan(a) or math.isnan(b):
                return math.nan
            return min(a, b) if op == "min" else max(a, b)
        case "floor" | "ceil" | "round":
            if not math.isfinite(a):
                return a
            return float(
                math.floor(a) if op == "floor" else math.ceil(a) if op == "ceil" else round(a)
            )
        case "div":
            if b == 0:
                signs = math.copysign(1, a) * math.copysign(1, b)
                return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, signs)
            return a / b
        case "exp":
            return math.inf if a > 700 else math.exp(a)
        case "mod":
            return math.nan if b == 0 or math.isinf(a) else a % b
        case "sin" | "cos":
            return math.nan if math.isinf(a) else getattr(math, op)(a)
        case _:
            return float(getattr(math, op)(*args))
