"""The elements of constants: arrays that compare by content, and may be made late and forgotten."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np

from rutc.base.cached import cached_property
from rutc.base.mapped import drop_pages

T = TypeVar("T")

SAMPLES, FEW = 64, 16
"""Elements of an array by which it is told from most others, and those that text is made of."""


class Data:
    """An immutable array that compares and hashes by content.

    One that is computed of others may be forgotten by who asks for it last, and may be made no
    sooner than somebody asks for it: then it hashes by what it is computed of.
    """

    def __init__(self, array: np.ndarray, again: Callable[[], np.ndarray] | None = None) -> None:
        """Of an array, which is not to be changed; `again` makes an equal one."""
        array.flags.writeable = False
        self.__dict__["array"] = array
        self._again = again

    @classmethod
    def later(
        cls,
        name: Hashable,
        shape: tuple[int, ...],
        dtype: np.dtype,
        again: Callable[[], np.ndarray],
    ) -> Data:
        """An array of finite floats that `again` makes: another one for each other name."""
        data = cls.__new__(cls)
        known = {"shape": shape, "dtype": dtype, "is_finite": True, "_sample": (name,)}
        data.__dict__.update(known, _again=again, _name=name)
        return data

    _name: Hashable = None
    """What it is computed of, and how, where that tells it from others."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The extents of its axes."""
        return self.array.shape

    @cached_property
    def dtype(self) -> np.dtype:
        """The type of its elements."""
        return self.array.dtype

    @property
    def few(self) -> str:
        """Some of its elements as text, or its name."""
        if self._name is not None:
            return repr(hash(self._name))
        flat, size = self.array.flat, self.array.size
        few = str([flat[i] for i in range(0, size, max(1, size // FEW))])
        drop_pages(self.array)
        return few

    @cached_property
    def array(self) -> np.ndarray:
        """The elements, which are made again if they were forgotten."""
        assert self._again is not None, "what cannot be made again is not forgotten"
        array = self._again()
        array.flags.writeable = False
        return array

    def forget(self) -> None:
        """Frees the memory of an array that can be made, or read from its file, again."""
        if self._again is not None:
            self.__dict__.pop("array", None)
        elif "array" in self.__dict__:
            drop_pages(self.array)

    def __reduce__(self) -> tuple[type[Data], tuple[np.ndarray]]:
        return Data, (self.array,)

    def __repr__(self) -> str:
        return f"Data(array={self.array!r})"

    @cached_property
    def digest(self) -> str:
        """A hash of dtype, shape and bytes."""
        h = hashlib.blake2b(f"{self.array.dtype} {self.array.shape} ".encode(), digest_size=16)
        if self.array.dtype == object:
            h.update(repr(self.array.tolist()).encode())
        else:
            h.update(np.ascontiguousarray(self.array).view(np.uint8).data)
            drop_pages(self.array)
        return h.hexdigest()

    @cached_property
    def is_finite(self) -> bool:
        """Whether all elements are known to be finite numbers."""
        if self.array.dtype.kind != "f" or self.array.size == 0:
            return self.array.dtype.kind in "iub"
        found = bool(np.isfinite(self.array.min()) and np.isfinite(self.array.max()))
        drop_pages(self.array)
        return found

    @cached_property
    def largest(self) -> float:
        """The largest magnitude of the finite elements of an array of floats; 0 without any."""
        if self.is_finite and self.array.size:
            return float(max(abs(self.array.min()), abs(self.array.max())))
        finite = self.array[np.isfinite(self.array)]
        return float(np.abs(finite).max(initial=0))

    def once(self, name: Hashable, find: Callable[[np.ndarray], T]) -> T:
        """What a function finds in the array: it is called once for each name.

        Plans of one graph in several assignments ask for the same of its constants.
        """
        known: dict[Hashable, T] = self.__dict__.setdefault("_found", {})
        if name not in known:
            known[name] = find(self.array)
        return known[name]

    def rounded(self, dtype: np.dtype) -> Data:
        """The array in a type of floats with fewer bits, to the nearest, ties to even."""

        def found(array: np.ndarray) -> Data:
            with np.errstate(over="ignore"):
                made = Data(array.astype(dtype))
            # Of a type that is not numpy's own it is not known otherwise.
            made.__dict__["is_finite"] = self.is_finite and bool(np.isfinite(made.array).all())
            return made

        return self.once(("rounded", dtype), found)

    def in_steps(self, axes: tuple[int, ...]) -> tuple[Data, Data]:
        """The array as whole numbers of steps, of up to 127, and the steps' sizes along these axes.

        Numbers are rounded to the nearest, ties to even; all have to be finite.
        """

        def found(array: np.ndarray) -> tuple[Data, Data]:
            others = tuple(i for i in range(array.ndim) if i not in axes)
            low = array.min(axis=others, keepdims=True, initial=0)
            high = array.max(axis=others, keepdims=True, initial=0)
            largest = np.maximum(high, -low)
            steps = np.where(largest > 0, largest / np.float32(127), np.float32(1))
            numbers = np.clip(np.rint(array / steps), -127, 127).astype(np.int8)
            return Data(numbers), Data(steps.squeeze(others))

        return self.once(("in steps", axes), found)

    @cached_property
    def _sample(self) -> tuple[object, ...]:
        """What differs between most arrays that differ, and is read in no time."""
        flat = self.array.reshape(-1) if self.array.flags.c_contiguous else self.array.flat
        few = flat[:: max(1, self.array.size // SAMPLES)][:SAMPLES]
        elements = repr(few.tolist()) if self.array.dtype == object else np.array(few).tobytes()
        # Around every element that is read of a file the system maps those that it has.
        drop_pages(self.array)
        return str(self.array.dtype), self.array.shape, elements

    def __str__(self) -> str:
        """The elements on one line, those of a large array shortened."""
        return np.array2string(self.array, separator=", ", threshold=16, max_line_width=1 << 20)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Data):
            return self is other
        if self._name is not None and other._name is not None:
            return self._name == other._name
        alike = self._sample == other._sample
        if self._name is not None or other._name is not None:
            alike = self.shape == other.shape and self.dtype == other.dtype
        return alike and (self._is_that_of(other) or self.digest == other.digest)

    def _is_that_of(self, other: Data) -> bool:
        """Whether both have one array, and have not forgotten it."""
        own = self.__dict__.get("array")
        return own is not None and own is other.__dict__.get("array")

    def __hash__(self) -> int:
        return hash(self._sample)
