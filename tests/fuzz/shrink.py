"""The part of a failing model that fails by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from onnx import ModelProto, NodeProto, helper, numpy_helper

from tests.fuzz.cases import Case, DataSet
from tests.fuzz.check import Verdict
from tests.fuzz.graph import RUNS, tensor
from tests.fuzz.oracles import NoOracle, captured, evaluate, value_info
from tests.fuzz.rules import Array, operator_name

MOST_TRIES = 24

Known = Mapping[str, tuple[Array, ...]]


def cut(case: Case, verdict: Verdict, check: Callable[[Case], Verdict]) -> tuple[Case, Verdict]:
    """The fewest neighbouring nodes that fail in the same way, what they read being inputs."""
    if case.dims:
        fixed = _with_sizes(case)
        found = next(((c, v) for c in fixed if (v := check(c)).kind == verdict.kind), None)
        if found is None:
            return case, verdict
        case, verdict = found
    model = case.proto()
    for tries, (part, number) in enumerate(_parts(model, case)):
        if tries >= MOST_TRIES:
            break
        made = _case_of(case, model, part, case.sets[number])
        if made is None:
            continue
        found_verdict = check(made)
        if found_verdict.kind == verdict.kind:
            return made, found_verdict
    return case, verdict


def _with_sizes(case: Case) -> Iterator[Case]:
    """The case with the sizes of each of its data sets."""
    for data in case.sets:
        model = case.proto()
        for info in model.graph.input:
            dims = info.type.tensor_type.shape.dim
            if info.name in data.feeds:
                for dim, extent in zip(dims, data.feeds[info.name].shape, strict=True):
                    dim.dim_value = extent
        yield replace(case, model=model.SerializeToString(), dims={}, sets=(data,))


def _parts(model: ModelProto, case: Case) -> Iterator[tuple[list[NodeProto], int]]:
    nodes = list(model.graph.node)
    for length in range(1, len(nodes)):
        for start in range(len(nodes) - length + 1):
            for number in range(len(case.sets)):
                yield nodes[start : start + length], number


def _case_of(
    case: Case, model: ModelProto, part: Sequence[NodeProto], data: DataSet
) -> Case | None:
    """Some nodes of a case alone, on what they read in a run of the whole model."""
    opset = next(o.version for o in model.opset_import if not o.domain)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    known = _values(model.graph.node, opset, {**weights, **data.feeds})
    made = {o for n in part for o in n.output}
    read = dict.fromkeys(i for n in part for i in (*n.input, *captured(n)) if i and i not in made)
    if known is None or any(isinstance(known[i][0], list) for i in read):
        return None
    used = {i for n in part for i in (*n.input, *captured(n))}
    outputs = [o for n in part for o in n.output if o and o not in used]
    fixed = {i: known[i][0] for i in read}
    again = _values(part, opset, fixed)
    if again is None or not outputs:
        return None
    inputs = {i: a for i, a in fixed.items() if i not in weights}
    infos = [value_info(i, a) for i, a in fixed.items() if opset < 9 or i in inputs]
    graph = helper.make_graph(
        list(part),
        "generated",
        infos,
        [value_info(o, again[o][0], shaped=False) for o in outputs],
        [tensor(weights[i], i) for i in fixed if i in weights],
    )
    small = helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )
    sets = (DataSet(inputs, {o: again[o] for o in outputs}),)
    hostile = (inputs,) if case.hostile else ()
    return replace(case, model=small.SerializeToString(), dims={}, sets=sets, hostile=hostile)


def _values(nodes: Sequence[NodeProto], opset: int, given: Mapping[str, Array]) -> Known | None:
    known: dict[str, tuple[Array, ...]] = {n: (a,) * RUNS for n, a in given.items()}
    for node in nodes:
        read = dict.fromkeys(n for n in (*node.input, *captured(node)) if n)
        try:
            feeds = [{n: known[n][r] for n in read} for r in range(RUNS)]
            results = evaluate(node, opset, feeds)
        except NoOracle:
            return None
        known.update(zip(filter(None, node.output), results, strict=True))
    return known


def signature(case: Case, verdict: Verdict) -> str:
    """What findings of one cause share: how they fail, and the operators of their smallest part."""
    operators = ", ".join(operator_name(n) for n in case.proto().graph.node)
    reason = verdict.reason
    if verdict.kind == "wrong":
        kinds = [k for k in ("shape", "type", "missing", "sequence") if f" {k}" in reason]
        way = "interpreter" if "interpreter" in reason else "artifact"
        reason = f"{way}: {kinds[0] if kinds else 'values'}"
    else:
        stage, _, text = reason.partition("] ")
        place = re.search(r"\[[\w.]+:\d+\]$", text)
        reason = f"{stage}] {text.split(':')[0]} {place.group() if place else ''}"
    return f"{verdict.kind} {operators}: {reason}"
