"""The meaning of the host runtime's routines."""

import numpy as np
import pytest

from rutc.errors import UserError
from rutc.tensor_ir import DType
from rutc.tensor_ir.interpreter.routines import ROUTINES, Job, Result
from rutc.tensor_ir.interpreter.routines.random import philox


def _call(routine, args, results, **attributes):
    return ROUTINES[routine](Job(args, tuple(results), attributes, ("n",), 0))


@pytest.mark.parametrize("largest", [0, 1])
def test_topk_is_the_front_of_a_stable_order(largest):
    x = np.array([[2, np.nan, -1, 2, np.inf, -0.0, 0.0, np.nan]], np.float32)
    results = [Result(DType.F32, (1, 8)), Result(DType.I64, (1, 8))]
    values, at = _call("topk", [x], results, axis=1, largest=largest)
    order = [1, 7, 4, 0, 3, 5, 6, 2] if largest else [2, 5, 6, 0, 3, 4, 1, 7]
    assert at.tolist() == [order]
    np.testing.assert_array_equal(values, x[:, order])


def test_topk_of_the_widest_integers():
    x = np.array([0, 2**64 - 1, 2**63, 1], np.uint64)
    results = [Result(DType.U64, (2,)), Result(DType.I64, (2,))]
    assert _call("topk", [x], results, axis=0, largest=1)[1].tolist() == [1, 2]
    y = x.view(np.int64)
    assert _call("topk", [y], results, axis=0, largest=1)[1].tolist() == [3, 0]
    with pytest.raises(UserError, match="n: k = 2 of 1 elements along axis 0"):
        _call("topk", [x[:1]], results, axis=0, largest=1)


def test_philox_gives_the_published_words():
    # The known answers that come with the paper's library, for the counter 0 and key 0.
    words = philox(0, 0, 1)[0]
    assert [hex(w) for w in words] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    high = philox((0x299F31D0 << 32) | 0xA4093822, (0x03707344 << 32) | 0x13198A2E, 1)
    assert not np.array_equal(high[0], words)


def test_random_numbers_have_their_distribution():
    (u,) = _call("uniform", [], [Result(DType.F64, (40000,))], seed=1)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(u.std() - 12**-0.5) < 0.01
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.02
    again = ROUTINES["uniform"](Job([], (Result(DType.F64, (5,)),), {"seed": 1}, (), 1))[0]
    assert not np.array_equal(again, u[:5])
