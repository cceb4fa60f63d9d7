"""Which outputs are inputs of the next run, as the user says: `--state "past.*=present.*"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rutc.errors import UserError
from rutc.tensor_ir.graph import Graph, Input, State
from rutc.tensor_ir.indices.ranges import CommonRange, Range, with_common
from rutc.tensor_ir.states import NoState, ends, growth

ANY = "*"
"""What stands for any text, the same in both names."""


def with_states(graph: Graph, said: Mapping[str, str]) -> Graph:
    """The graph whose states are the inputs that `said` maps to outputs.

    They are its last inputs and outputs. Sizes that grow are limited to what leaves room for a run.

    Raises:
        UserError: There is no such input or output, or it can be no state.
    """
    pairs = _pairs(graph, said)
    if not pairs:
        return graph
    if graph.interface is not None:
        raise UserError(
            "--state is for models whose inputs and outputs are all tensors: this one has "
            "sequences, optionals or maps"
        )
    taken = {n.name: n for n in graph.inputs}
    given = {o.name: o for o in graph.outputs}
    states = tuple(State(output, name) for name, output in pairs.items())
    inputs = (
        *(n for n in graph.inputs if n.name not in pairs),
        *(taken[name] for name in pairs),
    )
    others = tuple(n for n in graph.nodes if not isinstance(n, Input))
    outputs = (
        *(o for o in graph.outputs if o.name not in pairs.values()),
        *(given[output] for output in pairs.values()),
    )
    found = replace(graph, nodes=(*inputs, *others), outputs=outputs, states=states)
    return replace(found, symbols=tuple(_limited(found).items()))


def _limited(graph: Graph) -> dict[str, Range]:
    """The ranges of sizes, such that a run can append to what has a size that grows."""
    symbols = dict(graph.symbols)
    for state in graph.states:
        taken, given = ends(graph, state)
        where = f"--state {state.input}={state.output}"
        dtype, other = taken.out.dtype, graph.values[given.value].dtype
        if dtype is not other:
            raise UserError(f"{where}: the input is {dtype}, and the output {other}")
        if dtype.is_opaque:
            raise UserError(f"{where}: a state is of numbers, not of {dtype}")
        if taken.fixed is not None:
            raise UserError(f"{where}: --value says what the input holds in every run")
        try:
            how = growth(graph, state)
        except NoState as error:
            raise UserError(f"{where}: {error}") from error
        if how is None:
            continue
        (symbol,) = how.before.names()
        before = dict(graph.symbols)[symbol]
        least = how.added.bounds(dict(graph.symbols))
        assert least is not None, "what is added is bounded"
        most = min(symbols[symbol][1], before[1] - least[0])
        if most < before[0]:
            raise UserError(f"{where}: {symbol} has no room for the {least[0]} that a run adds")
        common = before.common if isinstance(before, CommonRange) else None
        symbols[symbol] = with_common((before[0], most), common)
    return symbols


def _pairs(graph: Graph, said: Mapping[str, str]) -> dict[str, str]:
    """The outputs by the inputs that they become, in the order of the inputs."""
    inputs = [n.name for n in graph.inputs]
    outputs = {o.name for o in graph.outputs}
    found: dict[str, str] = {}
    for name, output in said.items():
        for taken, given in _matching(name, output, inputs, outputs):
            if taken in found:
                raise UserError(f"--state {name}={output}: {taken!r} is a state already")
            if given in found.values():
                raise UserError(f"--state {name}={output}: {given!r} is that of another input")
            found[taken] = given
    return {name: found[name] for name in inputs if name in found}


def _matching(
    name: str, output: str, inputs: list[str], outputs: set[str]
) -> list[tuple[str, str]]:
    """The inputs and outputs that an option means."""
    where = f"--state {name}={output}"
    if name in outputs and output in inputs:
        raise UserError(f"{where}: the input comes first: write --state {output}={name}")
    if ANY not in name and ANY not in output:
        if name not in inputs and any(x.startswith(name) for x in inputs):
            return _matching(f"{name}{ANY}", f"{output}{ANY}", inputs, outputs)
        pairs = [(name, output)]
    elif name.count(ANY) != 1 or output.count(ANY) != 1:
        raise UserError(f"{where}: both names have one {ANY}, or none has")
    else:
        (begin, end), (first, last) = name.split(ANY), output.split(ANY)
        pairs = [
            (x, f"{first}{x[len(begin) : len(x) - len(end)]}{last}")
            for x in inputs
            if x.startswith(begin) and x.endswith(end) and len(x) >= len(begin) + len(end)
        ]
        if not pairs:
            raise UserError(f"{where}: no input is named so: there are {_listed(inputs)}")
    for taken, given in pairs:
        if taken not in inputs:
            raise UserError(f"{where}: there is no input {taken!r}: there are {_listed(inputs)}")
        if given not in outputs:
            raise UserError(
                f"{where}: there is no output {given!r} for the input {taken!r}: there are "
                f"{_listed(sorted(outputs))}"
            )
    return pairs


SHOWN = 12
"""Names that a message lists."""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
