"""Import of a whole model: inputs, nodes in order, outputs, names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from onnx import IR_VERSION, GraphProto, NodeProto, TypeProto, ValueInfoProto, checker, helper

from rutc.errors import InternalError, UserError
from rutc.importer import ops
from rutc.importer.any_rank import NeedsRank, is_any_rank, on_any_rank
from rutc.importer.assembly import assembled
from rutc.importer.builder import Builder, OperatorError
from rutc.importer.bundles import bundled_input, bundled_output, keys_asked_for
from rutc.importer.convert import OPSET, prepare
from rutc.importer.dims import clean_dim
from rutc.importer.external import ModelFolder
from rutc.importer.fixed import fixed_elements, kind_of
from rutc.importer.functions import function_body, is_function
from rutc.importer.open_sizes import SizeFoundError
from rutc.importer.ops.control import branched
from rutc.importer.proto import array_of, attribute_value, dense_of, dtype_of, load, subgraphs
from rutc.importer.registry import OPERATORS, Key
from rutc.importer.shapes import folded
from rutc.importer.tensor import Axis, Item, Tensor
from rutc.importer.types import check_types
from rutc.tensor_ir import Data, DType, Graph, Index, Input, Value
from rutc.tensor_ir.affine import ONE, ZERO, Range
from rutc.tensor_ir.interface import Bundle, Interface
from rutc.tensor_ir.parse import parse_index

SYMBOL_RANGE: Range = (1, 1 << 31)
"""What a size that nothing fixes may be."""

TRAINING = "ai.onnx.preview.training"

Shapes = Mapping[str, tuple[int, ...]]
Dims = Mapping[str, int | tuple[int, ...]]
Values = Mapping[str, np.ndarray]
Environment = dict[str, Item]
Learned = dict[str, Index | Range]
"""What the model's symbolic sizes are, in terms of others of its names, or their ranges."""

ops.register_all()


def import_model(
    path: Path,
    *,
    shapes: Shapes | None = None,
    dims: Dims | None = None,
    values: Values | None = None,
    folder: ModelFolder | None = None,
) -> Graph:
    """The model as a graph of nests.

    Args:
        path: The .onnx file.
        shapes: Fixed shapes of inputs, by the input's name.
        dims: Fixed values or inclusive ranges of the model's symbolic sizes, by their name; a
            range may have a step, of which all sizes are multiples.
        values: Fixed elements of inputs, by the input's name. They are constants to the import,
            and a run fails where such an input holds anything else.
        folder: Where external data lies, if the caller asks which files were read.

    Raises:
        UserError: The file is no acceptable model, uses what is not supported (all of it is
            listed), or contradicts `shapes`, `dims` or `values`.
    """
    folder = folder or ModelFolder(path.parent)
    model = load(path, folder)
    name = clean_dim(path.stem)
    graph, weights = prepare(model, folder)
    _check_supported(graph, path)
    fixed = fixed_elements([i for i in graph.input if i.name not in weights], values or {})
    given = {**(shapes or {}), **{n: array.shape for n, array in fixed.items()}}
    learned: Learned = {}
    while True:
        importer = _Importer(folder, Builder(), dict(dims or {}), dict(given), fixed, learned)
        try:
            return importer.run(graph, weights, name)
        except SizeFoundError as found:
            learned = {**learned, **importer.learn(found)}


def _key(node: NodeProto) -> Key:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _check_supported(graph: GraphProto, path: Path) -> None:
    """Raises UserError naming every operator that is not supported."""
    missing: dict[Key, list[str]] = {}
    for g in subgraphs(graph):
        for node in g.node:
            domain, op = _key(node)
            if (domain, op) not in OPERATORS and not is_function(op, domain):
                missing.setdefault((domain, op), []).append(_title(node))
    if not missing:
        return
    lines = []
    for (domain, op), where in sorted(missing.items(), key=lambda kv: (-len(kv[1]), kv[0])):
        shown = ", ".join(where[:3]) + (", ..." if len(where) > 3 else "")
        lines.append(f"  {domain + '.' if domain else ''}{op} ({len(where)}): {shown}")
    raise UserError(f"{path.name}: operators that are not supported:\n" + "\n".join(lines))


def _title(node: NodeProto) -> str:
    """What a node is called: its name, else its first output's."""
    return node.name or next((o for o in node.output if o), node.op_type)


@dataclass
class _Importer:
    """One import: where external data lies, the builder, what the user fixed and the model says."""

    folder: ModelFolder
    b: Builder
    dims: dict[str, int | tuple[int, ...]]
    shapes: dict[str, tuple[int, ...]]
    fixed: dict[str, np.ndarray]
    learned: Learned

    def __post_init__(self) -> None:
        self.symbols: dict[str, str] = {}
        self.used_dims: set[str] = set()
        self.inside = 0
        self.inputs: list[Input] = []
        self.plain: set[str] = set()

    def run(self, graph: GraphProto, weights: dict[str, np.ndarray], name: str) -> Graph:
        """The whole model's graph."""
        b = self.b
        b.run_graph = self.subgraph
        env: Environment = {}
        given = [i for i in graph.input if i.name not in weights]
        self.plain = {
            d.dim_param for i in given for d in i.type.tensor_type.shape.dim if d.dim_param
        }
        takes = tuple((i.name, self.bundle(i, graph, env)) for i in given)
        inputs = self.inputs
        self._check_names([i.name for i in inputs])
        for initializer, data in weights.items():
            env[initializer] = b.constant(data, kind_of(data), initializer)
        try:
            self.nodes(graph, env, [o.name for o in graph.output])
        except NeedsRank as e:
            raise UserError(str(e)) from e
        gives, outputs = self.outgoing(graph, env)
        ranges = [*((s, b.ranges[s]) for s in self.symbols.values()), *b.bound.items()]
        made = assembled(name, b, inputs, outputs, ranges)
        interface = Interface(takes, gives)
        return made if interface.is_plain else replace(made, interface=interface)

    def _check_names(self, inputs: list[str]) -> None:
        unknown = sorted(set(self.shapes) - set(inputs))
        if unknown:
            raise UserError(
                f"a shape is given for {unknown[0]!r}, which is no input; "
                f"the inputs are {', '.join(inputs) or 'none'}"
            )
        unknown = sorted(set(self.dims) - self.used_dims)
        if unknown:
            known = sorted(self.used_dims | set(self.symbols))
            raise UserError(
                f"a size is given for {unknown[0]!r}, which no input has; "
                f"the symbolic sizes are {', '.join(known) or 'none'}"
            )

    # -- interface ------------------------------------------------------------------------------
    def bundle(self, info: ValueInfoProto, graph: GraphProto, env: Environment) -> Bundle:
        """A model input of any type, its item entered in `env`."""

        def read(part: ValueInfoProto) -> Tensor:
            self.inputs.append(self.input(part, env))
            made = env[part.name]
            assert isinstance(made, Tensor)
            return made

        def read_boxes(name: str, size: str, limits: Range) -> Tensor:
            symbol = clean_dim(size)
            self.symbols[size] = symbol
            self.b.ranges[symbol] = limits
            axis = self.b.dim(Index.of(symbol), f"!{symbol}_i")
            value = Value(self.b.fresh(name), DType.TENSOR, (axis,))
            self.inputs.append(Input(value, name, (axis,), (name,)))
            return Tensor(value.name, DType.TENSOR, (Axis(axis, Index.of(symbol)),))

        keys = keys_asked_for(info.name, graph)
        item, bundle = bundled_input(
            info.name, info.type, read, read_boxes, self._count, self.shapes, keys
        )
        env[info.name] = item
        return bundle

    def _count(self, name: str, default: int | Range | None) -> int | Range | None:
        """The given number of elements of an input that is no tensor, or its range."""
        if name not in self.dims:
            return default
        self.used_dims.add(name)
        found = self.dims[name]
        if isinstance(found, int):
            return found
        if len(found) > 2:
            raise UserError(f"{name!r} is a number of elements, of which a range has no step")
        return found[0], found[1]

    def outgoing(
        self, graph: GraphProto, env: Environment
    ) -> tuple[tuple[tuple[str, Bundle], ...], list[tuple[str, Tensor]]]:
        """The model's outputs, and the tensors that they are made of."""
        bundles: list[tuple[str, Bundle]] = []
        ports: list[tuple[str, Tensor]] = []
        for o in graph.output:
            if o.name not in env:
                raise UserError(f"output {o.name!r} is not computed by any node")
            bundle, made = bundled_output(o.name, env[o.name], o.type, self.b)
            if o.type.WhichOneof("value") == "optional_type" and bundle.kind != "optional":
                bundle = Bundle("optional", parts=(bundle,))
            bundles.append((o.name, bundle))
            ports += made
        return tuple(bundles), ports

    def input(self, info: ValueInfoProto, env: Environment) -> Input:
        """A model input, its tensor entered in `env`."""
        b = self.b
        kind, extents, params = self._declared(info)
        axes: list[str] = []
        kept: list[Axis] = []
        units: list[str] = []
        for extent, param in zip(extents, params, strict=True):
            role = f"!{clean_dim(param)}{'' if extent.is_const else '_i'}" if param else ""
            d = b.dim(extent, role)
            axes.append(d)
            kept.append(Axis(None if extent == ONE else d, extent))
            if extent == ONE:
                units.append(d)
        value = Value(b.fresh(info.name), kind, tuple(sorted(axes)))
        known = None
        if any(e == ZERO for e in extents) and all(e.is_const for e in extents):
            known = np.empty([e.const for e in extents], kind.numpy)
        tensor = Tensor(value.name, kind, tuple(kept), known, tuple(units))
        env[info.name] = (
            replace(tensor, name=b.fresh(info.name), units=()) if known is not None else tensor
        )
        fixed = self.fixed.get(info.name)
        if fixed is None:
            return Input(value, info.name, tuple(axes), (info.name,))
        env[info.name] = b.constant(fixed, kind, info.name)
        return Input(value, info.name, tuple(axes), (info.name,), Data(np.array(fixed)))

    def _declared(self, info: ValueInfoProto) -> tuple[DType, list[Index], list[str]]:
        """An input's type, extents and the names of its symbolic sizes ("" for none)."""
        tensor: TypeProto.Tensor = info.type.tensor_type
        kind = dtype_of(tensor.elem_type)
        given = self.shapes.get(info.name)
        if not tensor.HasField("shape"):
            if given is None:
                raise UserError(f"input {info.name!r} has no declared shape; give one for it")
            return kind, [Index.of(n) for n in given], [""] * len(given)
        declared = tensor.shape.dim
        if given is not None and len(given) != len(declared):
            raise _conflict(info, given)
        extents: list[Index] = []
        params: list[str] = []
        for i, d in enumerate(declared):
            param = d.dim_param
            fixed = given[i] if given is not None else None
            if fixed is not None and fixed < 0:
                raise UserError(f"input {info.name!r}: the given extent {fixed} is negative")
            if d.HasField("dim_value") and d.dim_value >= 0:
                if fixed is not None and fixed != d.dim_value:
                    raise _conflict(info, given)
                extents.append(Index.of(d.dim_value))
                params.append("")
                continue
            if not re.search(r"[A-Za-z_]", param):
                param = f"{clean_dim(info.name)}_{i}"
            formula = self._formula(info, param) if fixed is None else None
            extents.append(self._symbol(info, param, fixed) if formula is None else formula)
            params.append(param if formula is None else "")
        return kind, extents, params

    def _formula(self, info: ValueInfoProto, param: str) -> Index | None:
        """What a name like "past + seq" says, where inputs have the sizes in it."""
        if param in self.dims or not re.fullmatch(r"[\w.\s]+([+*-][\w.\s]+)+", param):
            return None
        try:
            formula = parse_index(param)
        except UserError:
            return None
        if not formula.names() <= self.plain:
            return None
        return formula.subs({n: self._symbol(info, n, None) for n in formula.names()})

    def _symbol(self, info: ValueInfoProto, param: str, fixed: int | None) -> Index:
        """The extent of a symbolic size: what the user fixed, else a symbol."""
        self.used_dims.add(param)
        if fixed is not None:
            if self.dims.setdefault(param, fixed) != fixed:
                raise UserError(
                    f"input {info.name!r}: its size {param!r} is given as {fixed}, "
                    f"and elsewhere as {self.dims[param]}"
                )
            return Index.of(fixed)
        found = self.learned.get(param)
        if isinstance(found, Index):
            return found.subs({p: self._symbol(info, p, None) for p in found.names()})
        given = self.dims.get(param, found or SYMBOL_RANGE)
        if isinstance(given, int):
            return Index.of(given)
        low, high, step = (*given, 1)[:3]
        low, high = -(-low // step), high // step
        if low > high:
            raise UserError(f"the size {param!r}: no multiple of {step} lies in its range")
        if low == high:
            return Index.of(low * step)
        name = clean_dim(param) if step == 1 else f"{clean_dim(param)}/{step}"
        symbol = self.symbols.setdefault(param, name)
        self.b.ranges[symbol] = (low, high)
        if param not in self.dims and found is None:
            self.b.open_sizes[symbol] = None
        return Index.of(symbol) * step

    def learn(self, found: SizeFoundError) -> Learned:
        """What the model says of a size, for the next import."""
        names = {symbol: param for param, symbol in self.symbols.items()}
        param = names[found.symbol]
        if found.meaning is None:
            return {param: (SYMBOL_RANGE[0], found.most)}
        return {param: found.meaning.subs({s: Index.of(p) for s, p in names.items()})}

    # -- nodes ----------------------------------------------------------------------------------
    def nodes(self, graph: GraphProto, env: Environment, wanted: Iterable[str]) -> None:
        """Imports the nodes that the wanted values need, in order."""
        names = Counter(o for n in graph.node for o in n.output if o)
        twice = sorted(o for o, count in names.items() if count > 1)
        if twice:
            raise UserError(f"the value {twice[0]!r} is computed by more than one node")
        wanted = list(wanted)
        self.sequence(_needed(graph, wanted), env, wanted)

    def sequence(self, nodes: Sequence[NodeProto], env: Environment, wanted: Sequence[str]) -> None:
        """Imports nodes in order; their values, at least the wanted ones, are entered in `env`.

        Where the branches of an if give results of different rank and an operator after it needs
        to know the rank, what follows the if is imported once for each of them:

            y = If(c, a, b);   z = f(y)        ->       z = If(c, f(a), f(b))
        """
        b = self.b
        parting: tuple[int, int, Environment, dict[tuple[Index, Index], Index]] | None = None
        for k, node in enumerate(nodes):
            before = k, len(b.nodes), dict(env), dict(b.equal)
            try:
                self.node(node, env)
            except NeedsRank:
                if parting is None:
                    raise
                break
            if parting is None and node.op_type == "If":
                parting = before if any(is_any_rank(env.get(o)) for o in node.output) else None
        else:
            return
        start, count, known, b.equal = parting
        b.restore(count)
        env.clear()
        env.update(known)
        missing = [w for w in wanted if w not in env]
        made = self.parted(nodes[start], nodes[start + 1 :], env, missing)
        env.update(zip(missing, made, strict=True))

    def parted(
        self, node: NodeProto, rest: Sequence[NodeProto], env: Environment, wanted: Sequence[str]
    ) -> tuple[Item, ...]:
        """The wanted values, computed by `rest` from the results of the branch that is taken."""

        def following(name: str) -> tuple[Item, ...]:
            (branch,) = (a.g for a in node.attribute if a.name == name)
            inner = self.constants(branch, env)
            given = [o.name for o in branch.output]
            copies = [
                helper.make_node("Identity", [i], [o])
                for i, o in zip(given, node.output, strict=False)
                if o
            ]
            # As one sequence, so that an if in the branch may part what follows, too.
            self.sequence([*_needed(branch, given), *copies, *rest], inner, wanted)
            return tuple(inner[w] for w in wanted)

        saved = self.b.origin
        if not self.inside:
            self.b.origin = (_title(node),)
        condition = env[node.input[0]]
        assert isinstance(condition, Tensor)
        try:
            if condition.array is not None:
                return following("then_branch" if condition.array.any() else "else_branch")
            return branched(
                self.b,
                self.b.nest((), self.b.read(condition, [0] * condition.rank)),
                lambda: following("then_branch"),
                lambda: following("else_branch"),
            )
        except NeedsRank:
            raise
        except OperatorError as e:
            raise UserError(
                f"{node.op_type} (node {_title(node)!r}) cannot be compiled: {e}"
            ) from e
        finally:
            self.b.origin = saved

    def node(self, node: NodeProto, env: Environment) -> None:
        """Imports one node, its outputs entered in `env`."""
        b = self.b
        inputs: list[Item | None] = []
        for i in node.input:
            if i and i not in env:
                raise UserError(f"node {_title(node)!r} reads {i!r}, which nothing computes")
            inputs.append(env[i] if i else None)
        attributes = {a.name: attribute_value(a, self.folder) for a in node.attribute}
        saved = (b.origin, b.base, b.outputs, b.scope)
        if not self.inside:
            b.origin = (_title(node),)
            b.base = next((o for o in node.output if o), _title(node))
        b.outputs = tuple(node.output)
        b.scope = env
        try:
            made = self.outputs(node, inputs, attributes)
        except OperatorError as e:
            if isinstance(e, NeedsRank) and e.__cause__ is not None:
                raise
            given = ", ".join(f"{i or '-'}: {t}" for i, t in zip(node.input, inputs, strict=True))
            tensors = [t for t in inputs if isinstance(t, Tensor)]
            sizes = sorted({n for t in tensors for x in t.shape for n in x.names()})
            hint = ""
            if sizes:
                hint = (
                    f"; fixing the symbolic sizes ({', '.join(sizes)}) may help, or narrower "
                    "ranges: --dim NAME=N, NAME=LOW..HIGH, or multiples NAME=LOW..HIGH/STEP"
                )
            kind = NeedsRank if isinstance(e, NeedsRank) else UserError
            raise kind(
                f"{node.op_type} (node {_title(node)!r}) cannot be compiled: {e} [{given}]{hint}"
            ) from e
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as e:
            _check_node(node)
            raise InternalError(
                f"{node.op_type} (node {_title(node)!r}) cannot be imported: {e!r}"
            ) from e
        finally:
            b.origin, b.base, b.outputs, b.scope = saved
        for o, t in zip(node.output, made, strict=False):
            if o:
                env[o] = t
                if not self.inside and isinstance(t, Tensor):
                    b.claim(t.name, o)

    def outputs(
        self,
        node: NodeProto,
        inputs: Sequence[Item | None],
        attributes: Mapping[str, object],
    ) -> tuple[Item, ...]:
        """The outputs of one node: known ones if they can be told, else those of new nests."""
        tensors = [t for t in inputs if t is None or isinstance(t, Tensor)]
        plain = len(tensors) == len(inputs)
        if _key(node) not in OPERATORS:
            if any(map(is_any_rank, inputs)):

                def run(given: Sequence[Item | None], _: Mapping[str, object]) -> tuple[Item, ...]:
                    return self.function(
                        node, [t for t in given if t is None or isinstance(t, Tensor)]
                    )

                return on_any_rank(self.b, node.op_type, inputs, attributes, run)
            if not plain:
                raise OperatorError("it takes tensors only")
            return self.function(node, tensors)
        if _key(node)[0] == "" and plain:
            check_types(node.op_type, tensors)
            known = folded(node.op_type, tensors, attributes, self.b.ranges)
            if known is not None:
                return (self.b.constant(*known),)
        operator = OPERATORS[_key(node)]
        if any(map(is_any_rank, inputs)) and not operator.takes_lists:
            run = partial(operator, self.b)
            return on_any_rank(self.b, node.op_type, inputs, attributes, run)
        return operator(self.b, inputs, attributes)

    def function(self, node: NodeProto, inputs: Sequence[Tensor | None]) -> tuple[Item, ...]:
        """The outputs of an operator that the standard defines by other operators."""
        body = function_body(node, inputs)
        if body is None:
            raise OperatorError("the operator is not supported")
        if len(body.input) < len(inputs):
            raise OperatorError("the standard gives no body for operands of unknown sizes")
        given = (*inputs, *[None] * (len(body.input) - len(inputs)))
        env: Environment = {}
        env.update({n: t for n, t in zip(body.input, given, strict=True) if t is not None})
        absent = {n for n, t in zip(body.input, given, strict=True) if t is None}
        graph = GraphProto(node=body.node)
        for inner in graph.node:
            for i, name in enumerate(inner.input):
                if name in absent:
                    inner.input[i] = ""
        wanted = [f for f, o in zip(body.output, node.output, strict=False) if o]
        self.inside += 1
        try:
            self.nodes(graph, env, wanted)
        finally:
            self.inside -= 1
        known = iter(env[f] for f in wanted)
        unused = next(iter(env.values()))
        return tuple(next(known) if o else unused for o in node.output)

    def subgraph(
        self, graph: GraphProto, scope: Environment, inputs: Iterable[Item] = ()
    ) -> tuple[Item, ...]:
        """Imports a nested graph whose inputs are given; it sees the values of `scope`."""
        env = self.constants(graph, scope)
        for info, t in zip(graph.input, inputs, strict=True):
            env[info.name] = t
        names = [o.name for o in graph.output]
        self.nodes(graph, env, names)
        return tuple(env[n] for n in names)

    def constants(self, graph: GraphProto, scope: Environment) -> Environment:
        """The values that a nested graph sees before its nodes, its inputs left out."""
        env = dict(scope)
        for initializer in graph.initializer:
            data = array_of(initializer, self.folder)
            env[initializer.name] = self.b.constant(data, kind_of(data), initializer.name)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            data = dense_of(sparse, self.folder)
            env[name] = self.b.constant(data, kind_of(data), name)
        return env


def _check_node(node: NodeProto) -> None:
    """Raises UserError where a node breaks the standard's rules for its attributes and arity."""
    context = checker.C.CheckerContext()
    context.ir_version = IR_VERSION
    context.opset_imports = {"": OPSET, node.domain: OPSET}
    try:
        checker.check_node(node, context)
    except checker.ValidationError as e:
        text = str(e).strip().splitlines()[0]
        raise UserError(f"{node.op_type} (node {_title(node)!r}) is malformed: {text}") from e


def _conflict(info: ValueInfoProto, given: tuple[int, ...] | None) -> UserError:
    declared = [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]
    return UserError(
        f"input {info.name!r} has the shape [{', '.join(map(str, declared))}]; "
        f"the given shape {list(given or ())} does not fit it"
    )


def _needed(graph: GraphProto, wanted: Iterable[str]) -> list[NodeProto]:
    """The nodes that the wanted values need, in order."""
    live = _live(graph, set(wanted))
    return [n for n, needed in zip(graph.node, live, strict=True) if needed]


def _live(graph: GraphProto, wanted: set[str]) -> list[bool]:
    """Which nodes the wanted values need (a Gradient names what it differentiates)."""
    live = [False] * len(graph.node)
    for k in range(len(graph.node) - 1, -1, -1):
        node = graph.node[k]
        if wanted.isdisjoint(node.output):
            continue
        live[k] = True
        wanted.update(i for i in node.input if i)
        if _key(node) == (TRAINING, "Gradient"):
            wanted.update(a.s.decode() for a in node.attribute if a.name == "y")
        for a in node.attribute:
            if a.HasField("g"):
                for g in subgraphs(a.g):
                    for inner in g.node:
                        wanted.update(i for i in inner.input if i)
                    wanted.update(o.name for o in g.output)
    return live
