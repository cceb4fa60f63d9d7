"""Lists and maps of Python that make up no input: what the user is told."""

from typing import Any

import numpy as np
import pytest

from rutc.runtime import ModelError
from rutc.runtime.boxes import MOST_DEPTH, BoxSlot
from rutc.runtime.bundles import Bundle
from rutc.runtime.tensors import TensorInfo

X = np.zeros(2, np.float32)


def slot(role: str = "input") -> BoxSlot:
    return BoxSlot(role, TensorInfo("s", ("n",), np.dtype(object), "tensor"))


def sequence() -> Bundle:
    return Bundle.of({"name": "s", "kind": "boxed", "port": "s", "type": "seq(tensor(float))"})


def nested(depth: int) -> list[Any]:
    """A list in so many lists less one."""
    found: list[Any] = [X]
    for _ in range(depth - 1):
        found = [found]
    return found


def in_itself() -> list[Any]:
    found: list[Any] = [X]
    found.append([found])
    return found


@pytest.mark.parametrize("items", [in_itself(), nested(MOST_DEPTH + 1), nested(5000)])
def test_lists_without_an_end(items: list[Any]) -> None:
    with pytest.raises(ModelError, match="input 's' has lists in lists more than 32 deep, or one"):
        slot().describe(items)
    with pytest.raises(ModelError, match="input 's' has lists in lists more than 32 deep, or one"):
        sequence().spread(items, {})


def test_lists_in_lists_up_to_the_limit() -> None:
    assert slot().describe(nested(MOST_DEPTH))
    assert sequence().spread(nested(MOST_DEPTH), {}) == {"s": nested(MOST_DEPTH)}


def test_surrogates_in_lists() -> None:
    with pytest.raises(ModelError, match="input 's' must be text"):
        slot().describe([np.array(["a\ud800"], object)])


@pytest.mark.parametrize("value", [3, None, np.array(X, object)[:1].reshape(()), {"a": X}])
def test_what_is_no_list(value: object) -> None:
    with pytest.raises(ModelError, match="'s' must be a list of n tensors"):
        slot().describe(value)


def test_places_of_lists_are_rows_of_objects() -> None:
    room = np.empty(3, object)
    assert slot("output").describe(room[::-1])
    locked = room.copy()
    locked.flags.writeable = False
    for other in ([None] * 3, np.zeros(3), np.empty((3, 2), object), locked):
        with pytest.raises(ModelError, match="output 's' must be a writeable row of objects"):
            slot("output").describe(other)


def a_map(keys: list[Any] | None) -> Bundle:
    part = {"kind": "tensor", "port": "m"}
    facts: dict[str, object] = {"name": "m", "kind": "map", "parts": [part]}
    return Bundle.of(facts if keys is None else {**facts, "keys": keys})


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["a", "b"], {"a": "one"}, "its values float32: could not convert"),
        (["a", "b"], {"a": [1.0, 2.0]}, "its values float32: "),
        (["a"], {"a": [1.0, 2.0]}, "the values of input 'm' must be numbers or strings"),
        (["a"], {"b": 1.0}, "has the key 'b', which is unknown"),
        (None, {1: 1.0, "a": 2.0}, "keys of input 'm' must be comparable"),
        (None, [1.0], "'m' must be a dict, not list"),
    ],
)
def test_maps_of_other_values(keys: list[Any] | None, value: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        a_map(keys).spread(value, {"m": np.dtype(np.float32)})


def test_maps_of_numbers() -> None:
    dtypes = {"m": np.dtype(np.float32)}
    assert a_map(["a", "b"]).spread({"b": 2}, dtypes)["m"].tolist() == [0, 2]
    assert a_map(None).spread({7: 1.0, -1: 2.0}, dtypes)["m"].tolist() == [2, 1]
