"""The inputs of a model: their tensors, and what their symbolic sizes are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from onnx import GraphProto, TypeProto, ValueInfoProto

from rutc.errors import UserError
from rutc.importer.building.builder import Builder
from rutc.importer.building.expressions import OperatorError
from rutc.importer.building.nest_builder import MAX_ELEMENTS
from rutc.importer.building.tensor import Axis, Item, Tensor
from rutc.importer.bundles import bundled_input, keys_asked_for
from rutc.importer.dims import clean_dim, unused
from rutc.importer.free_sizes.open_sizes import SizeFoundError
from rutc.importer.free_sizes.overflow import LONGEST
from rutc.importer.free_sizes.relations import relations
from rutc.importer.free_sizes.solutions import Solutions
from rutc.importer.reading.proto import dtype_of, shape_of
from rutc.tensor_ir import Data, DType, Index, Input, Value
from rutc.tensor_ir.indices.affine import ONE, ZERO, Range
from rutc.tensor_ir.indices.ranges import (
    COMMON_SIZE,
    MOST_SIZE,
    multiple,
    range_text,
    stepped,
    with_common,
)
from rutc.tensor_ir.interface import Bundle
from rutc.tensor_ir.textual.parse import parse_index

LONGEST_FORMULA = 200
"""The characters of a size's name that is read as a formula."""

Shapes = Mapping[str, tuple[int, ...]]
Learned = Mapping[str, Index | tuple[int, ...]]
"""What the model's symbolic sizes are, in terms of others of its names, or their ranges."""


@dataclass
class Inputs:
    """The inputs of one import: what the user fixed, what the model says, and what was read so.

    `least` is the least that a size may be which nothing fixes. `plain` has the names of sizes that
    the model declares, `nameless` those of axes without one, by input and number. `shown` has what
    each size of the model is named by in symbols, which spell fewer letters than models do;
    `symbols` the symbol of each symbolic size that is left, by its name in the model; `common` what
    symbols are told to be commonly, `usual` what those that the model takes in steps only are where
    nothing tells more.
    """

    b: Builder
    dims: dict[str, int | tuple[int, ...] | str]
    shapes: Shapes
    fixed: Mapping[str, np.ndarray]
    learned: Learned
    least: int = 0
    shown: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    common: dict[str, int] = field(default_factory=dict)
    usual: dict[str, int] = field(default_factory=dict)
    ports: list[Input] = field(default_factory=list)
    relations: Mapping[str, Index] = field(default_factory=dict)
    used_dims: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)
    nameless: dict[tuple[str, int], str] = field(default_factory=dict)

    def read(
        self, given: Iterable[ValueInfoProto], graph: GraphProto
    ) -> tuple[dict[str, Item], tuple[tuple[str, Bundle], ...]]:
        """The items of all inputs, and of which tensors each of them is made.

        Raises:
            UserError: A shape or size was given that no input has, or that does not fit.
        """
        given = list(given)
        self.plain.update(
            d.dim_param for i in given for d in i.type.tensor_type.shape.dim if d.dim_param
        )
        self._name_sizes(given)
        self.relations = relations(self.dims, {p for i in given for p in self._params(i) if p})
        items: dict[str, Item] = {}
        takes = tuple((i.name, self._bundle(i, graph, items)) for i in given)
        self._check_names()
        return items, takes

    def _name_sizes(self, given: Sequence[ValueInfoProto]) -> None:
        """Names the sizes that are told as the model does: they may be named as they are shown.

        `p2o_Dynamic_0` is shown of `p2o.Dynamic.0`, which is no name of a symbol.

        Raises:
            UserError: A size has both names.
        """
        names = list(dict.fromkeys(p for i in given for p in self._params(i) if p))
        # A name that can be a symbol's stays, whatever else looks like it.
        shown = {self._shown(n): n for n in sorted(names, key=lambda n: clean_dim(n) != n)}
        told: dict[str, int | tuple[int, ...] | str] = {}
        for name, size in self.dims.items():
            own = name if name in names else shown.get(name, name)
            if own in told:
                raise UserError(f"the size {own!r} is given twice, once as {self._shown(own)!r}")
            told[own] = size
        self.dims = told

    def _params(self, info: ValueInfoProto) -> list[str]:
        """The names of an input's sizes, "" for those that are numbers.

        One that the model does not name has a name that no other size has: `x_0`, `x_0_2`, ..
        """
        names: list[str] = []
        for i, d in enumerate(info.type.tensor_type.shape.dim):
            if d.HasField("dim_value") and d.dim_value >= 0:
                names.append("")
            elif any(c.isalpha() or c == "_" for c in d.dim_param):
                names.append(d.dim_param)
            else:
                if (info.name, i) not in self.nameless:
                    taken = {*self.plain, *self.nameless.values()}
                    self.nameless[info.name, i] = unused(f"{clean_dim(info.name)}_{i}", taken)
                names.append(self.nameless[info.name, i])
        return names

    def _shown(self, size: str) -> str:
        """What the symbol of a size is named by: each size of the model has another name."""
        if size not in self.shown:
            self.shown[size] = unused(clean_dim(size), set(self.shown.values()))
        return self.shown[size]

    def learn(self, found: SizeFoundError) -> Learned:
        """What the model says of sizes, for the next import."""
        names = {symbol: param for param, symbol in self.symbols.items()}
        learned: dict[str, Index | tuple[int, ...]] = {}
        for symbol, meaning in found.told.items():
            param, step = names[symbol], multiple(symbol)[1]
            if isinstance(meaning, Solutions):
                s = meaning
                learned[param] = (
                    Index.of(s.least * step)
                    if s.least == s.most
                    else (s.least * step, s.most * step, s.step * step)
                )
            else:
                sizes = {s: Index.of(p) // multiple(s)[1] for s, p in names.items()}
                learned[param] = meaning.subs(sizes) * step
        return learned

    def _check_names(self) -> None:
        inputs = [port.name for port in self.ports]
        unknown = sorted(set(self.shapes) - set(inputs))
        sizes = self.used_dims | set(self.symbols)
        if unknown:
            size = f" but a size (--dim {unknown[0]}=1..8)" if unknown[0] in sizes else ""
            raise UserError(
                f"a shape is given for {unknown[0]!r}, which is no input{size}; "
                f"the inputs are {', '.join(inputs) or 'none'}"
            )
        unknown = sorted(set(self.dims) - self.used_dims)
        if unknown:
            port = f": it is an input (--shape {unknown[0]}=...)" if unknown[0] in inputs else ""
            raise UserError(
                f"a size is given for {unknown[0]!r}, which no input has{port}; "
                f"the symbolic sizes are {', '.join(sorted(sizes)) or 'none'}"
            )

    def _bundle(self, info: ValueInfoProto, graph: GraphProto, items: dict[str, Item]) -> Bundle:
        """A model input of any type, its item entered in `items`."""

        def read(part: ValueInfoProto) -> Tensor:
            self.ports.append(self._input(part, items))
            made = items[part.name]
            assert isinstance(made, Tensor)
            return made

        def read_boxes(name: str, size: str, limits: Range) -> Tensor:
            symbol = self._shown(size)
            self.symbols[size] = symbol
            self.b.ranges[symbol] = limits
            axis = self.b.dim(Index.of(symbol), f"!{symbol}_i")
            value = Value(self.b.fresh(name), DType.TENSOR, (axis,))
            self.ports.append(Input(value, name, (axis,), (name,)))
            return Tensor(value.name, DType.TENSOR, (Axis(axis, Index.of(symbol)),))

        keys = keys_asked_for(info.name, graph)
        item, bundle = bundled_input(
            info.name, info.type, read, read_boxes, self._count, self.shapes, keys
        )
        items[info.name] = item
        return bundle

    def _count(self, name: str, default: int | Range | None) -> int | Range | None:
        """The given number of elements of an input that is no tensor, or its range."""
        if name not in self.dims:
            return default
        self.used_dims.add(name)
        found = self.dims[name]
        if isinstance(found, str):
            raise UserError(f"{name!r} is a number of elements, which is no formula of sizes")
        if isinstance(found, int):
            return found
        if len(found) > 2:
            raise UserError(
                f"{name!r} is a number of elements, of which a range has "
                "neither a step nor a common size"
            )
        return found[0], found[1]

    def _input(self, info: ValueInfoProto, items: dict[str, Item]) -> Input:
        """A model input, its tensor entered in `items`."""
        b = self.b
        kind, extents, params = self._declared(info)
        axes: list[str] = []
        kept: list[Axis] = []
        units: list[str] = []
        for extent, param in zip(extents, params, strict=True):
            role = f"!{self._shown(param)}{'' if extent.is_const else '_i'}" if param else ""
            try:
                d = b.dim(extent, role)
            except OperatorError as e:
                raise UserError(f"input {info.name!r}: {e}") from e
            axes.append(d)
            kept.append(Axis(None if extent == ONE else d, extent))
            if extent == ONE:
                units.append(d)
        value = Value(b.fresh(info.name), kind, tuple(sorted(axes)))
        known = None
        if any(e == ZERO for e in extents) and all(e.is_const for e in extents):
            known = np.empty([e.const for e in extents], kind.numpy)
        tensor = Tensor(value.name, kind, tuple(kept), known, tuple(units))
        items[info.name] = (
            replace(tensor, name=b.fresh(info.name), units=()) if known is not None else tensor
        )
        fixed = self.fixed.get(info.name)
        if fixed is None:
            return Input(value, info.name, tuple(axes), (info.name,))
        items[info.name] = b.constant(fixed, kind, info.name)
        return Input(value, info.name, tuple(axes), (info.name,), Data(np.array(fixed)))

    def _declared(self, info: ValueInfoProto) -> tuple[DType, list[Index], list[str]]:
        """An input's type, extents and the names of its symbolic sizes ("" for none)."""
        tensor: TypeProto.Tensor = info.type.tensor_type
        kind = dtype_of(tensor.elem_type, f"input {info.name!r}")
        given = self.shapes.get(info.name)
        if not tensor.HasField("shape"):
            if given is None:
                raise UserError(
                    f"input {info.name!r} has no declared shape; give one, with "
                    f"--shape {info.name}=..., one number for each axis"
                )
            shape_of(given, f"input {info.name!r}", MAX_ELEMENTS)
            return kind, [Index.of(n) for n in given], [""] * len(given)
        declared = tensor.shape.dim
        if given is not None and len(given) != len(declared):
            raise _conflict(info, given)
        extents: list[Index] = []
        params: list[str] = []
        for i, (d, param) in enumerate(zip(declared, self._params(info), strict=True)):
            fixed = given[i] if given is not None else None
            if fixed is not None and fixed < 0:
                raise UserError(f"input {info.name!r}: the given extent {fixed} is negative")
            if not param:
                if fixed is not None and fixed != d.dim_value:
                    raise _conflict(info, given, i)
                extents.append(Index.of(d.dim_value))
                params.append("")
                continue
            formula = self._formula(info, param) if fixed is None else None
            extents.append(self._symbol(info, param, fixed) if formula is None else formula)
            params.append(param if formula is None else "")
        size = prod(e.const for e in extents if e.is_const and e != ZERO)
        if size > MAX_ELEMENTS:
            raise UserError(
                f"input {info.name!r}: its extents make {size} elements; at most {MAX_ELEMENTS} "
                "can be: give smaller sizes, with --dim or --shape where the model leaves them open"
            )
        return kind, extents, params

    def _formula(self, info: ValueInfoProto, param: str) -> Index | None:
        """What a name like "past + seq" says, where inputs have the sizes in it."""
        if param in self.dims or param in self.relations or len(param) > LONGEST_FORMULA:
            return None
        if not re.fullmatch(r"[\w.\s]+([+*-][\w.\s]+)+", param):
            return None
        try:
            formula = parse_index(param)
        except (UserError, ValueError):
            return None
        if not formula.names() <= self.plain:
            return None
        return formula.subs({n: self._symbol(info, n, None) for n in formula.names()})

    def _symbol(self, info: ValueInfoProto, param: str, fixed: int | None) -> Index:
        """The extent of a symbolic size: what the user fixed, else a symbol."""
        self.used_dims.add(param)
        if param in self.relations:
            told = self.relations[param]
            formula = told.subs({p: self._symbol(info, p, None) for p in told.names()})
            if fixed is not None and formula != Index.of(fixed):
                raise UserError(
                    f"input {info.name!r}: its size {param!r} is given as {fixed}, "
                    f"and told to be {told}, which is {formula}"
                )
            return formula
        if fixed is not None:
            if self.dims.setdefault(param, fixed) != fixed:
                raise UserError(
                    f"input {info.name!r}: its size {param!r} is given as {fixed}, "
                    f"and elsewhere as {_told(self.dims[param])}"
                )
            return Index.of(fixed)
        found = self.learned.get(param)
        if isinstance(found, Index):
            return found.subs({p: self._symbol(info, p, None) for p in found.names()})
        given = self.dims.get(param)
        stated = given is not None and not isinstance(given, str)
        if given is None or isinstance(given, str):
            given = found or (self.least, MOST_SIZE)
        if isinstance(given, int):
            return Index.of(given)
        low, high, step = (*given, 1)[:3]
        common = given[3] if len(given) > 3 else None
        if low < 0 or high > LONGEST:
            raise UserError(
                f"the size {param!r}: {low}..{high} are no sizes, which are 0 to {LONGEST}"
            )
        low, high = -(-low // step), high // step
        if low > high:
            raise UserError(f"the size {param!r}: no multiple of {step} lies in its range")
        if low == high:
            return Index.of(low * step)
        name = stepped(self._shown(param), step)
        symbol = self.symbols.setdefault(param, name)
        self.b.ranges[symbol] = (low, high)
        if common is not None:
            self.common[symbol] = min(max(common // step, low), high)
        elif not stated and step > 1:
            self.usual[symbol] = min(max(COMMON_SIZE // step, low), high)
        if not stated:
            self.b.open_sizes[symbol] = None
        return Index.of(symbol) * step


def _told(size: int | tuple[int, ...] | str) -> str:
    """A size as an option tells it: `8`, `total`, `0..64`, `32..640/32`, `1..64@8`."""
    if isinstance(size, int | str):
        return str(size)
    step = size[2] if len(size) > 2 else 1
    common = size[3] if len(size) > 3 else None
    return range_text(with_common((size[0], size[1]), common), step)


def _conflict(
    info: ValueInfoProto, given: tuple[int, ...] | None, axis: int | None = None
) -> UserError:
    dims = info.type.tensor_type.shape.dim
    declared = [d.dim_param or (d.dim_value if d.HasField("dim_value") else "?") for d in dims]
    if given is None or axis is None:
        axes = "1 axis" if len(declared) == 1 else f"{len(declared)} axes"
        why = f"it has {axes}, and {len(given or ())} are given"
    else:
        why = f"axis {axis} is {declared[axis]} in every run, and {given[axis]} is given"
    return UserError(
        f"input {info.name!r} has the shape [{', '.join(map(str, declared))}]; "
        f"the given shape {list(given or ())} does not fit it: {why}"
    )
