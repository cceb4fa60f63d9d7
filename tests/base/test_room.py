"""Calls find room for their frames wherever they are made (`rutc.base.room`)."""

import resource

from rutc.base.room import with_room

CALLS = 200
DEPTHS = 300


def test_no_call_maps_memory_for_its_frame() -> None:
    """Without room, each call at the end of a chunk of frames is a page fault."""
    assert max(faults_by_depth()) < CALLS // 2


def test_a_function_with_room_is_called_as_before() -> None:
    @with_room
    def joined(first: str, *others: str, end: str = ".") -> str:
        """Joins."""
        return " ".join((first, *others)) + end

    assert joined("a", "b", end="!") == "a b!"
    assert joined.__doc__ == "Joins."


@with_room
def faults_by_depth() -> list[int]:
    """The page faults of so many calls, made in each of many depths of a recursion."""
    found: list[int] = []

    def descend(depth: int) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(CALLS):
            called()
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        if depth:
            descend(depth - 1)

    descend(DEPTHS)
    return found


def called() -> None:
    """A function that does nothing."""
