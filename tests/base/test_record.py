"""Records are frozen dataclasses: the same behaviour, made later."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from rutc.base.record import record


@record
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list, compare=False)
    note: str = field(default="", repr=False)


@dataclass(frozen=True)
class Plain:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list, compare=False)
    note: str = field(default="", repr=False)


@record
class Child(Point):
    z: int = 1


@record
class Checked:
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", abs(self.n))


@record
class Parity:
    n: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parity) and self.n % 2 == other.n % 2

    def __hash__(self) -> int:
        return self.n % 2


@record
class Loose:
    n: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loose)


@record(eq=False)
class Identity:
    n: int


@record
class Empty:
    pass


NAN = math.nan


@pytest.mark.parametrize(
    "values", [(1,), (1, 2), (NAN,), (1, 2, ["a"]), (1, 2, [], "n"), (float("inf"), -0.0)]
)
def test_like_a_dataclass(values: tuple[object, ...]) -> None:
    ours, theirs = Point(*values), Plain(*values)  # type: ignore[arg-type]
    assert repr(ours) == repr(theirs).replace("Plain", "Point")
    assert hash(ours) == hash(theirs)
    assert asdict(ours) == asdict(theirs)
    assert (ours == Point(*values)) == (theirs == Plain(*values))  # type: ignore[arg-type]
    assert ours != theirs
    assert replace(ours, y=5.0).y == 5.0


def test_only_what_is_compared_makes_a_difference() -> None:
    assert Point(1, tags=["a"]) == Point(1, tags=["b"])
    assert Point(1, note="a") != Point(1, note="b")
    assert Point(1) != Point(2)
    assert Child(1) != Point(1)
    assert Child(1, z=2) != Child(1)


def test_every_object_has_a_default_of_its_own() -> None:
    assert Point(1).tags is not Point(1).tags


def test_fields_keep_their_order() -> None:
    assert [f.name for f in fields(Child)] == ["x", "y", "tags", "note", "z"]
    match Child(1, 2):
        case Child(x, y, _, _, z):
            assert (x, y, z) == (1, 2, 1)


@pytest.mark.parametrize("arguments", [(), (1, 2, [], "", 3), (None,) * 6])
def test_wrong_arguments_are_errors(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        Point(*arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Point(1, w=3)  # type: ignore[call-arg]


def test_nothing_changes() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    with pytest.raises(FrozenInstanceError):
        point.other = 2  # type: ignore[attr-defined]
    assert point == Point(1)


def test_own_methods_stay() -> None:
    assert Checked(-3) == Checked(3)
    assert Parity(1) == Parity(3)
    assert len({Parity(1), Parity(3), Parity(2)}) == 2
    assert Loose(1) == Loose(2)
    assert hash(Loose(1)) == hash(Loose(1))


def test_without_eq_objects_are_their_own() -> None:
    one = Identity(1)
    assert one == one
    assert one != Identity(1)
    assert len({one, Identity(1)}) == 2
    assert repr(one) == "Identity(n=1)"


def test_no_fields() -> None:
    assert Empty() == Empty()
    assert repr(Empty()) == "Empty()"


@pytest.mark.parametrize("copied", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_equal(copied: Callable[[Point], Point]) -> None:
    assert copied(Point(1, 2, ["a"])) == Point(1, 2, ["a"])
