"""The page of products that registers for matrices take."""

import numpy as np
import onnx
import pytest

from benchmarks import matrices
from benchmarks.matrix_peak import matrix_flops, matrix_peak
from tests.machines import NATIVE, TILES, needs


@pytest.mark.parametrize("name", ["MatMul 49x768x768", "Conv 3x3 7x7 512->512", "197 sums of 197"])
def test_cases_are_models_of_their_sizes(name: str) -> None:
    case = matrices.BY_NAME[name]
    model = onnx.shape_inference.infer_shapes(case.build(), strict_mode=True)
    (out,) = model.graph.output
    size = np.prod([d.dim_value for d in out.type.tensor_type.shape.dim])
    lengths = {"MatMul 49x768x768": 768, "Conv 3x3 7x7 512->512": 9 * 512, "197 sums of 197": 197}
    assert case.operations == 2 * size * lengths[name]


@needs(TILES)
@pytest.mark.skipif("amx-bf16" not in NATIVE.features, reason="no registers for matrices")
@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_the_loop_of_products_runs(kind: str) -> None:
    loop = matrix_peak(kind)
    loop.run()
    assert loop.flops == matrix_flops(kind)


def test_rows_have_the_share_of_the_loop_and_the_time_beside_openvino() -> None:
    entry = {
        "case": "MatMul 256x256x256",
        "operations": 2 * 256**3,
        "peak_gops": 2000,
        "rutc_us": 33.554432,
        "openvino_us": 67.108864,
        "agrees": True,
        "bound": True,
        "cpu": "some CPU",
        "processor": "some",
        "features": ["amx-bf16"],
        "cpus": 2,
        "date": "2026-01-01",
        "commit": "abc",
        "versions": {},
        "runs": {"rutc": 7, "openvino": 9},
        "protocol": "some way",
    }
    text = matrices.page([entry])
    assert (
        "| MatMul 256x256x256 | 33.554432 | 67.108864 | 0.50 | 1000 | 50 % | abc: 7 to 9 |" in text
    )
