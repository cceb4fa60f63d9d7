"""Sequences, optionals and maps of Python as the tensors that a model's library takes and gives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from rutc.runtime.boxes import check_depth
from rutc.runtime.dtypes import dtype_of_type
from rutc.runtime.errors import ModelError

Value = object
"""A numpy array, a list (a sequence), None (an empty optional) or a dict (a map)."""


@dataclass(frozen=True)
class Bundle:
    """An input or output: `kind` is tensor, sequence, optional, map or maps (one for each row).

    That of boxed, a sequence, optional or tensor of the type `contents`, is one tensor of boxes,
    whose tensors are declared to have the shape `shape` (-1: any extent).
    """

    name: str
    kind: str
    port: str
    parts: tuple["Bundle", ...]
    keys: tuple[object, ...] | None
    contents: str = ""
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, object], name: str = "") -> Self:
        """Returns the bundle that the manifest describes."""
        own = name or str(facts.get("name", ""))
        parts, keys, shape = facts.get("parts", ()), facts.get("keys"), facts.get("shape")
        if not isinstance(parts, Sequence):
            raise ModelError(f"it describes {own!r} badly")
        return cls(
            own,
            str(facts["kind"]),
            str(facts.get("port", "")),
            tuple(cls.of(p, own) for p in parts),
            tuple(keys) if isinstance(keys, list) else None,
            str(facts.get("type", "")),
            tuple(shape) if isinstance(shape, list) else (),
        )

    @property
    def ports(self) -> tuple[str, ...]:
        """The tensors that make it up."""
        inner = (p for part in self.parts for p in part.ports)
        return (self.port,) if self.port else tuple(inner)

    def spread(self, value: Value, dtypes: Mapping[str, np.dtype]) -> dict[str, Value]:
        """Returns the tensors of a value, by port.

        Raises:
            ModelError: the value is of another kind or has another number of elements.
        """
        match self.kind:
            case "tensor":
                return {self.port: value}
            case "boxed":
                return {self.port: self._items(value)}
            case "sequence":
                if not isinstance(value, list | tuple):
                    raise ModelError(f"input {self.name!r} must be a list of tensors")
                if len(value) != len(self.parts):
                    raise ModelError(
                        f"input {self.name!r} must be a list of {len(self.parts)} tensors, not of "
                        f"{len(value)}: that number is fixed when compiling"
                    )
                pairs = zip(self.parts, value, strict=True)
                return {n: t for part, v in pairs for n, t in part.spread(v, dtypes).items()}
            case "optional":
                if (value is None) is bool(self.parts):
                    must = "not be None" if self.parts else "be None"
                    raise ModelError(f"input {self.name!r} must {must}: it was compiled so")
                return self.parts[0].spread(value, dtypes) if self.parts else {}
            case _:
                port = self.parts[0].port
                return {port: self._values(value, dtypes[port])}

    def _items(self, value: Value) -> list[object]:
        """The elements of a sequence or optional, in the dtype of its type."""
        dtype = dtype_of_type(self.contents)
        if self.contents.startswith("optional("):
            found = [] if value is None else [value]
        elif not self.contents.startswith("seq("):
            found = [value]
        elif isinstance(value, list | tuple):
            found = list(value)
        else:
            raise ModelError(f"input {self.name!r} must be a list of tensors")
        _check_elements(found, dtype, self.name)
        return found

    def _unboxed(self, items: Sequence[object]) -> Value:
        """The value that boxes make up."""
        found = [_typed(i, dtype_of_type(self.contents)) for i in items]
        if self.contents.startswith("seq("):
            return found
        return found[0] if found else None

    def _values(self, value: Value, dtype: np.dtype) -> np.ndarray:
        """The values of a map in the order of the keys; 0 where one is missing."""
        if not isinstance(value, Mapping):
            raise ModelError(f"input {self.name!r} must be a dict, not {type(value).__name__}")
        strange = [k for k in value if self.keys is not None and k not in self.keys]
        if strange:
            raise ModelError(f"input {self.name!r} has the key {strange[0]!r}, which is unknown")
        empty = "" if dtype.kind == "O" else 0
        try:
            keys = self.keys if self.keys is not None else sorted(value)
            found = np.array([value.get(k, empty) for k in keys], dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(
                f"the keys of input {self.name!r} must be comparable, and its values {dtype}: "
                f"{error}"
            ) from error
        if found.ndim != 1:
            raise ModelError(f"the values of input {self.name!r} must be numbers or strings")
        return found

    def gathered(self, tensors: Mapping[str, np.ndarray]) -> Value:
        """Returns the value that tensors make up."""
        match self.kind:
            case "tensor":
                return tensors[self.port]
            case "boxed":
                return self._unboxed(list(tensors[self.port]))
            case "sequence":
                return [part.gathered(tensors) for part in self.parts]
            case "optional":
                return self.parts[0].gathered(tensors) if self.parts else None
            case _:
                values = tensors[self.parts[0].port]
                if self.kind == "maps":
                    return [self._map(row) for row in values.tolist()]
                return self._map(values.tolist())

    def _map(self, values: list[object]) -> dict[object, object]:
        keys = self.keys if self.keys is not None else range(len(values))
        return dict(zip(keys, values, strict=True))

    def type(self, types: Mapping[str, str]) -> str:
        """Returns the type as ONNX Runtime spells it: `"seq(tensor(float))"`."""
        match self.kind:
            case "tensor":
                return types[self.port]
            case "boxed":
                return self.contents
            case "sequence":
                return f"seq({self.parts[0].type(types) if self.parts else ''})"
            case "optional":
                return f"optional({self.parts[0].type(types) if self.parts else ''})"
            case _:
                value = types[self.parts[0].port]
                key = "string" if self.keys and isinstance(self.keys[0], str) else "int64"
                found = f"map({key},{value})"
                return f"seq({found})" if self.kind == "maps" else found


def _check_elements(items: Sequence[object], dtype: np.dtype, name: str, depth: int = 1) -> None:
    """Raises ModelError where an element, or an element of one, is no array of the dtype."""
    check_depth(name, depth)
    for item in items:
        if isinstance(item, list | tuple):
            _check_elements(item, dtype, name, depth + 1)
        elif not isinstance(item, np.ndarray | np.generic):
            raise ModelError(
                f"input {name!r} must be a list of numpy arrays, not of {type(item).__name__}"
            )
        elif item.dtype != dtype and not (dtype.kind == "O" and item.dtype.kind in "UST"):
            raise ModelError(f"the elements of input {name!r} must be {dtype}, not {item.dtype}")


def _typed(item: object, dtype: np.dtype) -> object:
    """An element with its dtype, which the library may know as bytes."""
    if isinstance(item, list):
        return [_typed(i, dtype) for i in item]
    return item.view(dtype) if isinstance(item, np.ndarray) and item.dtype != dtype else item


def bundles(manifest: Mapping[str, object], key: str) -> tuple[Bundle, ...] | None:
    """Returns the inputs or outputs of a model of which some are no tensors; else None."""
    interface = manifest.get("interface")
    if not isinstance(interface, Mapping):
        return None
    return tuple(Bundle.of(facts) for facts in interface[key])


def boxed(whole: Iterable[Bundle] | None) -> dict[str, Bundle]:
    """Returns bundles of the kind boxed, and those in others, by port."""
    found: dict[str, Bundle] = {}
    for bundle in whole or ():
        found.update({bundle.port: bundle} if bundle.kind == "boxed" else boxed(bundle.parts))
    return found
