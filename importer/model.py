"""Import of a whole model: inputs, nodes in order, outputs, names."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from onnx import GraphProto, NodeProto, helper

from rutc.errors import InternalError, UserError
from rutc.importer import ops
from rutc.importer.any_rank import NeedsRank, is_any_rank, on_any_rank
from rutc.importer.assembly import assembled
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import KnownSizesError, OperatorError
from rutc.importer.building.nest_builder import Place
from rutc.importer.building.tensor import Item, Tensor
from rutc.importer.bundles import bundled_output
from rutc.importer.declared import (
    check_declared,
    check_node,
    given_text,
    has_more_axes,
    needed,
)
from rutc.importer.dims import clean_dim
from rutc.importer.free_sizes.common_sizes import with_common_sizes
from rutc.importer.free_sizes.fixed import fixed_elements, kind_of
from rutc.importer.free_sizes.inputs import Inputs, Learned, Shapes
from rutc.importer.free_sizes.open_sizes import SizeFoundError, end_if_told
from rutc.importer.free_sizes.possible_sizes import sizes_hint, with_possible_sizes
from rutc.importer.free_sizes.relations import Dims
from rutc.importer.functions import function_body, is_function
from rutc.importer.ops.control import branched
from rutc.importer.opsets.convert import prepare
from rutc.importer.opsets.order import title
from rutc.importer.reading.external import ModelFolder
from rutc.importer.reading.proto import (
    ElementTypeError,
    array_of,
    attribute_value,
    dense_of,
    load,
    subgraphs,
)
from rutc.importer.reading.wellformed import check_model
from rutc.importer.registry import OPERATORS, Key
from rutc.importer.shapes import folded
from rutc.importer.types import check_types
from rutc.tensor_ir import Graph
from rutc.tensor_ir.interface import Bundle, Interface

Values = Mapping[str, np.ndarray]
Environment = ChainMap[str, Item]
"""The values that a graph sees, by their names: its own, then those of the graphs around it."""

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
            range may have a step, of which all sizes are multiples, and after it the size that
            is the most common one. A text is a formula of other sizes.
        values: Fixed elements of inputs, by the input's name. They are constants to the import,
            and a run fails where such an input holds anything else.
        folder: Where external data lies, if the caller asks which files were read.

    Raises:
        UserError: The file is no acceptable model, uses what is not supported (all of it is
            listed), or contradicts `shapes`, `dims` or `values`.
    """
    folder = folder or ModelFolder(path.parent)
    model = load(path, folder)
    check_model(model)
    name = clean_dim(path.stem)
    graph, weights = prepare(model, folder)
    _check_supported(graph, path)
    fixed = fixed_elements([i for i in graph.input if i.name not in weights], values or {})
    given = {**(shapes or {}), **{n: array.shape for n, array in fixed.items()}}

    def of_sizes(dims: Dims) -> Graph:
        learned: Learned = {}
        least = 0
        known: Graph | None = None
        while True:
            b = Builder(any_ranks=known is not None)
            inputs = Inputs(b, dict(dims), given, fixed, learned, least)
            importer = _Importer(folder, b)
            try:
                made = importer.run(graph, weights, inputs, name)
                if b.any_ranks or not (b.kept_axes and importer.longer):
                    return made
                # Runs may be meant in which there are fewer axes; if so, the run decides.
                known = made
            except SizeFoundError as found:
                learned = {**learned, **inputs.learn(found)}
            except UserError:
                if known is not None:
                    return known
                # What an operator computes of a size may have a meaning only where there is
                # something.
                if least or not b.open_sizes:
                    raise
                learned, least = {}, 1
            finally:
                # It and the importer hold each other, which nothing looks for while one compiles.
                b.run_graph = None

    try:
        return of_sizes(dims or {})
    except UserError as error:
        raise with_possible_sizes(error, dims or {}, of_sizes) or error from None


_OF_ONE_PROCESSOR = "com.microsoft.nchwc"
"""The domain of convolutions whose weights ONNX Runtime laid out for the processor it ran on."""


def _key(node: NodeProto) -> Key:
    return node.domain, node.op_type


def _cannot(node: NodeProto, why: object) -> str:
    return f"{node.op_type} (node {title(node)!r}) cannot be compiled: {why}"


def _check_supported(graph: GraphProto, path: Path) -> None:
    """Raises UserError naming every operator that is not supported."""
    missing: dict[Key, list[str]] = {}
    for g in subgraphs(graph):
        for node in g.node:
            domain, op = _key(node)
            if (domain, op) not in OPERATORS and not is_function(op, domain):
                missing.setdefault((domain, op), []).append(title(node))
    if not missing:
        return
    lines = []
    for (domain, op), where in sorted(missing.items(), key=lambda kv: (-len(kv[1]), kv[0])):
        shown = ", ".join(where[:3]) + (", ..." if len(where) > 3 else "")
        lines.append(f"  {domain + '.' if domain else ''}{op} ({len(where)}): {shown}")
    if any(domain == _OF_ONE_PROCESSOR for domain, _ in missing):
        lines.append(
            "  ONNX Runtime wrote the model for one processor, whose blocks its weights are in; "
            "compile the model it was made of, or let ONNX Runtime write it at a "
            "graph_optimization_level of at most ORT_ENABLE_EXTENDED"
        )
    raise UserError(f"{path.name}: operators that are not supported:\n" + "\n".join(lines))


@dataclass
class _Importer:
    """One import: where external data lies, the builder, and how deep in functions it is.

    An output is `longer` than declared if it has more axes.
    """

    folder: ModelFolder
    b: Builder
    inside: int = 0
    longer: bool = False

    def run(
        self, graph: GraphProto, weights: Mapping[str, np.ndarray], inputs: Inputs, name: str
    ) -> Graph:
        """The whole model's graph."""
        b = self.b
        b.run_graph = self.subgraph
        read, takes = inputs.read([i for i in graph.input if i.name not in weights], graph)
        env = Environment(read)
        for initializer, data in weights.items():
            env[initializer] = b.constant(data, kind_of(data), initializer)
        try:
            self.nodes(graph, env, [o.name for o in graph.output])
        except NeedsRank as e:
            raise UserError(str(e)) from e
        gives, outputs = self.outgoing(graph, env)
        ranges = [*((s, b.ranges[s]) for s in inputs.symbols.values()), *b.bound.items()]
        made = assembled(name, b, inputs.ports, outputs, ranges)
        params = {symbol: param for param, symbol in inputs.symbols.items()}
        alike = {symbol: size for symbol, (size, _) in b.alike.items()}
        computed = {**b.usual, **b.longest_of, **alike}
        equal = tuple(b.alike.values())
        made = with_common_sizes(made, inputs.common, inputs.usual, params, computed, equal)
        interface = Interface(takes, gives)
        return made if interface.is_plain else replace(made, interface=interface)

    def outgoing(
        self, graph: GraphProto, env: Environment
    ) -> tuple[tuple[tuple[str, Bundle], ...], list[tuple[str, Tensor]]]:
        """The model's outputs, and the tensors that they are made of."""
        bundles: list[tuple[str, Bundle]] = []
        ports: list[tuple[str, Tensor]] = []
        for o in graph.output:
            if o.name not in env:
                raise UserError(f"output {o.name!r} is not computed by any node")
            check_declared(o, env[o.name])
            self.longer = self.longer or has_more_axes(o, env[o.name])
            bundle, made = bundled_output(o.name, env[o.name], o.type, self.b)
            if o.type.WhichOneof("value") == "optional_type" and bundle.kind != "optional":
                bundle = Bundle("optional", parts=(bundle,))
            bundles.append((o.name, bundle))
            ports += made
        return tuple(bundles), ports

    def nodes(self, graph: GraphProto, env: Environment, wanted: Iterable[str]) -> None:
        """Imports the nodes that the wanted values need, in order."""
        names = Counter(o for n in graph.node for o in n.output if o)
        twice = sorted(o for o, count in names.items() if count > 1)
        if twice:
            raise UserError(f"the value {twice[0]!r} is computed by more than one node")
        wanted = list(wanted)
        self.sequence(needed(graph, wanted), env, wanted)

    def sequence(self, nodes: Sequence[NodeProto], env: Environment, wanted: Sequence[str]) -> None:
        """Imports nodes in order; their values, at least the wanted ones, are entered in `env`.

        Where the branches of an if give results of different rank and an operator after it needs
        to know the rank, what follows the if is imported once for each of them:

            y = If(c, a, b);   z = f(y)        ->       z = If(c, f(a), f(b))
        """
        b = self.b
        parting: tuple[int, Place, dict[str, Item]] | None = None
        for k, node in enumerate(nodes):
            before: Place | None = None
            hidden: dict[str, Item] = {}
            if parting is None and node.op_type == "If":
                before = b.place()
                hidden = {o: env.maps[0][o] for o in node.output if o in env.maps[0]}
            try:
                self.node(node, env)
            except NeedsRank:
                if parting is None:
                    raise
                break
            if before is not None and any(is_any_rank(env.get(o)) for o in node.output):
                own = {o: t for o, t in env.maps[0].items() if o not in node.output}
                parting = k, before, own | hidden
        else:
            return
        start, place, known = parting
        b.restore(place)
        env.maps[0] = known
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
            self.sequence([*needed(branch, given), *copies, *rest], inner, wanted)
            return tuple(inner[w] for w in wanted)

        saved = self.b.origin
        if not self.inside:
            self.b.origin = (title(node),)
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
            raise UserError(_cannot(node, e)) from e
        finally:
            self.b.origin = saved

    def node(self, node: NodeProto, env: Environment) -> None:
        """Imports one node, its outputs entered in `env`."""
        b = self.b
        inputs: list[Item | None] = []
        for i in node.input:
            if i and i not in env:
                raise UserError(f"node {title(node)!r} reads {i!r}, which nothing computes")
            inputs.append(env[i] if i else None)
        attributes = self.attributes(node)
        saved = (b.origin, b.base, b.outputs, b.scope)
        if not self.inside:
            b.origin = (title(node),)
            b.base = next((o for o in node.output if o), title(node))
        b.outputs = tuple(node.output)
        b.scope = env
        try:
            made = self.finished(node, inputs, attributes)
        except OperatorError as e:
            if isinstance(e, NeedsRank) and e.__cause__ is not None:
                raise
            given = given_text(node, inputs)
            tensors = [t for t in inputs if isinstance(t, Tensor)]
            known = isinstance(e, KnownSizesError)
            sizes = sorted({n for t in tensors for x in t.shape for n in x.names() if not known})
            kind = NeedsRank if isinstance(e, NeedsRank) else UserError
            raise kind(_cannot(node, f"{e} [{given}]{sizes_hint(sizes)}")) from e
        except ElementTypeError as e:
            raise UserError(_cannot(node, e)) from e
        except ZeroDivisionError as e:
            check_node(node, inputs)
            why = f"an extent or an attribute by which it divides is 0 [{given_text(node, inputs)}]"
            raise UserError(_cannot(node, why)) from e
        except RecursionError as e:
            why = (
                "its sizes follow from others in too many steps; fix the symbolic sizes with --dim"
            )
            raise UserError(_cannot(node, why)) from e
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as e:
            check_node(node, inputs)
            raise InternalError(
                f"{node.op_type} (node {title(node)!r}) cannot be imported: {e!r}"
            ) from e
        finally:
            b.origin, b.base, b.outputs, b.scope = saved
        for o, t in zip(node.output, made, strict=False):
            if o:
                env[o] = t
                if not self.inside and isinstance(t, Tensor):
                    b.claim(t.name, o)

    def attributes(self, node: NodeProto) -> dict[str, object]:
        """The values of a node's attributes."""
        try:
            return {a.name: attribute_value(a, self.folder) for a in node.attribute}
        except UserError as e:
            raise UserError(f"{node.op_type} (node {title(node)!r}): {e}") from e

    def finished(
        self,
        node: NodeProto,
        inputs: Sequence[Item | None],
        attributes: Mapping[str, object],
    ) -> tuple[Item, ...]:
        """The outputs of one node, if it tells nothing of sizes.

        Raises:
            SizeFoundError: It does, whatever else is wrong with it at other sizes.
        """
        try:
            found = self.outputs(node, inputs, attributes)
        except Exception:
            end_if_told(self.b)
            raise
        end_if_told(self.b)
        return found

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
        domain, _ = _key(node)
        if plain:
            check_types(node.op_type, domain, tensors)
        if domain == "" and plain:
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
        env = Environment()
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
        given = tuple(inputs)
        if len(given) != len(graph.input):
            raise OperatorError(
                f"the nested graph {graph.name!r} has {len(graph.input)} inputs; "
                f"{len(given)} are given"
            )
        for info, t in zip(graph.input, given, strict=True):
            env[info.name] = t
        names = [o.name for o in graph.output]
        self.nodes(graph, env, names)
        for name in names:
            if name not in env:
                raise OperatorError(f"no node of the nested graph computes its output {name!r}")
        return tuple(env[n] for n in names)

    def constants(self, graph: GraphProto, scope: Environment) -> Environment:
        """The values that a nested graph sees before its nodes, its inputs left out."""
        env = scope.new_child()
        for initializer in graph.initializer:
            data = array_of(initializer, self.folder)
            env[initializer.name] = self.b.constant(data, kind_of(data), initializer.name)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            data = dense_of(sparse, self.folder)
            env[name] = self.b.constant(data, kind_of(data), name)
        return env
