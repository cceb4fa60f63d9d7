"""Names that a growing table had earlier."""

from collections.abc import Iterator

from rutc.base.earlier import Earlier


class Unsought(dict[str, int]):
    """A table whose names nobody may look through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("looked through")


def test_later_names_are_not_among_them() -> None:
    table = {"a": 0, "b": 1}
    earlier = Earlier(table)
    table["a"] = 2
    table["c"] = 3
    assert {"a", "b"} == set(earlier)
    assert frozenset({"a"}) <= earlier
    assert not frozenset({"a", "c"}) <= earlier
    assert "c" not in earlier


def test_no_names_are_among_them_without_a_search() -> None:
    table = Unsought(a=0)
    earlier = Earlier(table)
    assert frozenset[str]() <= earlier
    assert len(earlier) == 1
