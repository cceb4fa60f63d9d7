"""The ways in which a test's model is compiled.

    plain      as it is, by `rutc.compile`, which is told nothing but the file
    constant   every input but the first is a constant
    dynamic    every size of every input is symbolic

A model gives one or more variants, of which the first that compiles is run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, TensorShapeProto, TypeProto, numpy_helper

from tests.conformance.suite import Case, graph_inputs

Variants = list[tuple[str, ModelProto]]
"""Models with what tells one from the others."""


def _with_extents(case: Case, model: ModelProto) -> Variants:
    if not _is_symbolic(model):
        return [("", model)]
    names = [i.name for i in graph_inputs(case.proto())]
    values = dict(zip(names, case.data_sets[0].inputs, strict=False))
    sized = ModelProto()
    sized.CopyFrom(model)
    for info in graph_inputs(sized):
        value = values[info.name]
        if isinstance(value, np.ndarray | np.generic):
            dims = info.type.tensor_type.shape.dim
            for dim, extent in zip(dims, value.shape, strict=True):
                dim.dim_value = extent
    return [("", model), ("extents given", sized)]


@dataclass(frozen=True)
class _Size:
    """One size of an input: the input's number and name, the axis, its extent as the test has it.

    `of_list`: the input has one axis and is not the first.
    """

    number: int
    input: str
    axis: int
    extent: int
    of_list: bool


Rule = Callable[[_Size], str]
"""The name of a size; "" keeps the extent."""


def plain(case: Case) -> Variants:
    """The model as it is."""
    return [("", case.proto())]


def constant(case: Case) -> Variants:
    """The model with all tensors among its inputs as initializers, the first input excepted."""
    model = case.proto()
    inputs = graph_inputs(model)
    fixed: dict[str, object] = {}
    for info, value in zip(inputs[1:], case.data_sets[0].inputs[1:], strict=False):
        if info.type.HasField("tensor_type") and isinstance(value, np.ndarray | np.generic):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), info.name))
            fixed[info.name] = value
    kept = [i for i in model.graph.input if i.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return _with_extents(case, model)


def dynamic(case: Case) -> Variants:
    """The model with symbolic sizes in several ways, the most general first.

    free          each size has a name of its own; the run tells the lengths of sequences, and
                  which optionals have an element
    shared        equal sizes have one name
    ones fixed    besides, sizes of 1 are fixed: what is broadcast is known when compiling
    lists fixed   besides, lists other than the first input have a fixed length, which may decide
                  ranks
    own           symbolic are only the first input's sizes that no other input has
    batch         symbolic are only the first axes that are as long as the first input's
    """
    first, *others = _shapes(case)
    elsewhere = {1, *(n for shape in others for n in shape)}
    rules: dict[str, Rule] = {
        "free": lambda s: f"{s.input}_{s.axis}",
        "shared": lambda s: f"n{s.extent}",
        "ones fixed": lambda s: f"n{s.extent}" if s.extent != 1 else "",
        "lists fixed": lambda s: f"n{s.extent}" if s.extent != 1 and not s.of_list else "",
        "own": lambda s: f"n{s.extent}" if s.number == 0 and s.extent not in elsewhere else "",
        "batch": lambda s: "batch" if s.axis == 0 and [s.extent] == first[:1] else "",
    }
    made = [(name, _renamed(case, rule)) for name, rule in rules.items()]
    return made[:1] + [(name, model) for name, model in made[1:] if _is_symbolic(model)]


MODES: Mapping[str, Callable[[Case], Variants]] = {
    "plain": plain,
    "constant": constant,
    "dynamic": dynamic,
}


def _shapes(case: Case) -> list[list[int]]:
    """The fixed extents of all inputs; none of those that are no tensors."""
    types = [i.type for i in graph_inputs(case.proto())] or [TypeProto()]
    dims = [t.tensor_type.shape.dim for t in types]
    return [[d.dim_value for d in shape if d.HasField("dim_value")] for shape in dims]


def _is_symbolic(model: ModelProto) -> bool:
    inputs = graph_inputs(model)
    return any(d.dim_param for i in inputs for d in i.type.tensor_type.shape.dim)


def _renamed(case: Case, rule: Rule) -> ModelProto:
    """The model with the sizes named by a rule."""
    model = case.proto()
    for number, info in enumerate(graph_inputs(model)):
        if not info.type.HasField("tensor_type"):
            continue
        dims = info.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            of_list = number > 0 and len(dims) == 1
            size = _Size(number, info.name, axis, dim.dim_value, of_list)
            # A symbolic size is at least 1.
            if dim.HasField("dim_value") and dim.dim_value > 0 and (name := rule(size)):
                dim.dim_param = name
    for output in model.graph.output:
        if output.type.HasField("tensor_type") and output.type.tensor_type.HasField("shape"):
            rank = len(output.type.tensor_type.shape.dim)
            output.type.tensor_type.shape.CopyFrom(
                TensorShapeProto(dim=[TensorShapeProto.Dimension()] * rank)
            )
    del model.graph.value_info[:]
    return model
