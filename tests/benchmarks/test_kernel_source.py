"""Benchmarks look at kernels of models in several precisions."""

import pytest

from benchmarks.kernel_source import BUILDERS, PRODUCTS_IN_BF16, in_parts, kernels, sources
from benchmarks.train import family
from rutc.tensor_ir.dtype import DType
from rutc.tuner.heuristic import spaces, usual
from tests.machines import V4
from tests.tuner.subjects import AMX

PRODUCT = "MatMul 49x768x768"


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", DType.BF16), ("int8", DType.I8)], ids=["bf16", "int8"]
)
def test_kernels_of_a_precision_are_those_of_its_types(precision: str, dtype: DType) -> None:
    own: list[set[DType]] = []
    for _, kernel, constants in kernels(f"{PRODUCT} in {precision}", AMX):
        liked = usual(spaces(kernel, AMX, constants))
        if liked is not None and liked[0].template.name == "matrix":
            own.append({kernel.buffer(name).dtype for name in constants})
    assert [dtype in types for types in own] == [True]


def test_a_source_tells_its_precision() -> None:
    assert in_parts("resnet50 in int8") == ("resnet50", "int8")
    assert in_parts("a cat in a hat") == ("a cat in a hat", "fp32")
    assert family("light_resnet50 in bf16") == family("resnet50")


def test_precisions_are_looked_at_where_registers_multiply_them() -> None:
    assert not {in_parts(s)[1] for s in sources(V4)} - {"fp32"}
    found = sources(AMX)
    assert {in_parts(s)[1] for s in found} == {"fp32", "bf16", "int8"}
    assert {*BUILDERS, *PRODUCTS_IN_BF16} <= {*found}
    assert len({*found}) == len(found)
