"""Whether two strided tensors share memory, compared with numpy's answer."""

import ctypes
import subprocess

import numpy as np
import pytest

from rutc.emit.linking.host_runtime import HOST_SOURCES
from rutc.runtime.c_interface import CPU, DLTensor


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The host runtime's sources that look at tensors."""
    path = tmp_path_factory.mktemp("overlap") / "overlap.so"
    sources = [HOST_SOURCES / name for name in ("overlap.c", "tensor.c", "error.c")]
    subprocess.run(["cc", "-std=c11", "-shared", "-fPIC", *sources, "-o", path], check=True)
    return ctypes.CDLL(str(path))


def described(array: np.ndarray) -> DLTensor:
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
    dense = None if array.flags.c_contiguous else strides
    return DLTensor(array.ctypes.data, CPU, 0, array.ndim, 0, 8, 1, shape, dense, 0)


def overlap(library: ctypes.CDLL, a: np.ndarray, b: np.ndarray) -> bool:
    first, second = described(a), described(b)
    return bool(
        library.rutc_tensors_overlap(
            ctypes.byref(first), a.itemsize, ctypes.byref(second), b.itemsize
        )
    )


def view(memory: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Some elements of a matrix or of a block of three axes, in any order of axes."""
    shape = ((24, 30), (6, 12, 10))[rng.integers(2)]
    found = memory.reshape(shape)
    ends = [sorted(rng.integers(0, extent + 1, 2)) for extent in shape]
    steps = [int(rng.choice([-3, -2, -1, 1, 1, 2, 3])) for _ in shape]
    found = found[tuple(slice(begin, end) for begin, end in ends)]
    found = found[tuple(slice(None, None, step) for step in steps)]
    return found.transpose(rng.permutation(found.ndim))


def test_the_answer_is_numpys(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(5)
    memory = np.zeros(720 * 8, np.uint8)
    answers = []
    for _ in range(3000):
        kinds = rng.choice(["i2", "i4", "i8"], 2)
        a, b = (view(memory.view(kind)[:720], rng) for kind in kinds)
        answers.append(np.shares_memory(a, b))
        assert overlap(library, a, b) == answers[-1], (a.__array_interface__, b.__array_interface__)
    assert 200 < sum(answers) < 2800


def test_elements_that_share_memory(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(6)
    memory = np.zeros(1000, np.int16)
    answers = []
    for _ in range(2000):
        shape = rng.integers(0, 6, rng.integers(1, 4))
        strides = 2 * rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 10, 20, 30], len(shape))
        a = np.lib.stride_tricks.as_strided(memory, shape, strides)
        places = sum(np.ogrid[tuple(map(slice, shape))][i] * s for i, s in enumerate(strides))
        answers.append(len(np.unique(places)) < a.size)
        found = library.rutc_tensor_overlaps_itself(ctypes.byref(described(a)), a.itemsize)
        assert bool(found) == answers[-1], (shape, strides)
        # In the other direction along some axes.
        a = a[tuple(slice(None, None, int(rng.choice([-1, 1]))) for _ in shape)]
        assert found == library.rutc_tensor_overlaps_itself(ctypes.byref(described(a)), a.itemsize)
    assert 200 < sum(answers) < 1800


def test_what_takes_too_long_counts_as_shared(library: ctypes.CDLL) -> None:
    """A knapsack without a solution, as only the parity of the sum tells."""
    memory = np.zeros(1 << 22, np.uint8)
    shape = (2,) * 22
    strides = [2 * (1000 + 37 * i) for i in range(22)]
    a = np.lib.stride_tricks.as_strided(memory, shape, strides)
    b = np.lib.stride_tricks.as_strided(memory[1:], shape, [s + 2 for s in strides])
    assert overlap(library, a, b)
