"""Whether what an artifact tells of itself is what runs on generated inputs go by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rutc.runtime import ModelError
from rutc.runtime.tensors import TensorInfo
from rutc.tensor_ir.textual.lexer import ParseError
from rutc.tensor_ir.textual.parse import parse_index

SHOWN = 60
"""Characters of what is none of its kind."""
Kind = Callable[[object], bool]


def check_told(manifest: Mapping[str, object], inputs: Iterable[TensorInfo]) -> None:
    """Looks at all that inputs are drawn by, and how large runs are. What is not told is null.

    Raises:
        ModelError: something is no such thing, or the range of a size of inputs is missing.
    """
    for name, is_one in _TOLD.items():
        found = manifest.get(name)
        if found is not None and not is_one(found):
            text = repr(found)
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}.."
            raise ModelError(f"its {name} cannot be {shown}")
    ranges = manifest.get("symbols")
    known = ranges.keys() if isinstance(ranges, dict) else set[str]()
    for info in inputs:
        for extent in filter(_is_text, info.shape):
            for name in sorted(parse_index(str(extent)).names() - known):
                raise ModelError(f"it has no range of the size {name!r} of input {info.name!r}")


def _is_text(x: object) -> bool:
    return isinstance(x, str)


def _is_extent(x: object) -> bool:
    return type(x) is int and 0 <= x < 1 << 63


def _is_size(x: object) -> bool:
    """Whether it is an extent or a formula of such."""
    if not isinstance(x, str):
        return _is_extent(x)
    try:
        parse_index(x)
    except ParseError:
        return False
    return True


def _is_range(x: object) -> bool:
    return _list_of(_is_extent)(x) and isinstance(x, list) and len(x) == 2 and x[0] <= x[1]


def _is_algorithm(x: object) -> bool:
    if not isinstance(x, dict):
        return False
    lists = (x.get(name) for name in ("outputs", "taps", "reach"))
    return (
        all(_list_of(_is_extent)(each) for each in lists)
        and _list_of(_is_text)(x.get("origin"))
        and _is_text(x.get("sum"))
        and type(x.get("typical")) in (int, float)
    )


def _list_of(is_one: Kind) -> Kind:
    return lambda x: isinstance(x, list) and all(map(is_one, x))


def _map_of(is_one: Kind) -> Kind:
    return lambda x: isinstance(x, dict) and all(map(is_one, x.values()))


_TOLD: Mapping[str, Kind] = {
    "symbols": _map_of(_is_range),
    "common_sizes": _map_of(_is_extent),
    "arena_bytes": _is_size,
    "divisors": _list_of(_is_text),
    "texts": _map_of(_list_of(_is_text)),
    "rows": _map_of(_list_of(_is_size)),
    "algorithms": _list_of(_is_algorithm),
}
