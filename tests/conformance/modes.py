"""The ways in which a test's model is compiled.

    plain      as it is
    constant   every input but the first is a constant
    dynamic    every size of every input is symbolic

A model gives one or more variants, of which the first that compiles is run.
"""

from collections.abc import Callable, Mapping

import numpy as np
from onnx import ModelProto, TensorShapeProto, numpy_helper

from tests.conformance.suite import Case, graph_inputs

Variants = list[tuple[str, ModelProto]]
"""Models with what tells one from the others."""


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
    return [("", model)]


def dynamic(case: Case) -> Variants:
    """The model with symbolic sizes in three ways, the most general first.

    Each size has a name of its own; then equal sizes have one name; then, besides, sizes of 1 are
    fixed, so that what is broadcast is known when compiling.
    """
    free = _renamed(case, lambda name, axis, _: f"{name}_{axis}")
    shared = _renamed(case, lambda name, axis, extent: f"n{extent}")
    fixed = _renamed(case, lambda name, axis, extent: "" if extent == 1 else f"n{extent}")
    return [("free", free), ("shared", shared), ("ones fixed", fixed)]


MODES: Mapping[str, Callable[[Case], Variants]] = {
    "plain": plain,
    "constant": constant,
    "dynamic": dynamic,
}


def _renamed(case: Case, rule: Callable[[str, int, int], str]) -> ModelProto:
    """The model with `rule(input, axis, extent)` as name of each size; "" keeps the extent."""
    model = case.proto()
    for info in graph_inputs(model):
        if not info.type.HasField("tensor_type"):
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and (name := rule(info.name, axis, dim.dim_value)):
                dim.dim_param = name
    for output in model.graph.output:
        if output.type.HasField("tensor_type") and output.type.tensor_type.HasField("shape"):
            rank = len(output.type.tensor_type.shape.dim)
            output.type.tensor_type.shape.CopyFrom(
                TensorShapeProto(dim=[TensorShapeProto.Dimension()] * rank)
            )
    del model.graph.value_info[:]
    return model
