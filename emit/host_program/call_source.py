"""The generated C of calls: the tables of operands and attributes."""

from collections.abc import Iterator, Sequence

from rutc.emit.host_program.c_text import c_integer, c_number, c_string
from rutc.emit.host_program.element_types import element_of
from rutc.emit.host_program.host_steps import Attribute, Call, Operand
from rutc.emit.host_program.size_source import SizeTable
from rutc.errors import InternalError

MAX_NDIM = 64
"""The most dimensions that the host runtime has room for."""


def routine_declarations(calls: Sequence[Call]) -> Iterator[str]:
    """Yields the declaration of every routine that is called."""
    for routine in dict.fromkeys(c.routine for c in calls):
        yield f"int rutc_routine_{routine}(const rutc_call *call);"


def call_tables(calls: Sequence[Call], sizes: SizeTable) -> Iterator[str]:
    """Yields `calls`, the table that the steps' targets number, and what it points to.

    Raises:
        InternalError: an operand has more than MAX_NDIM dimensions.
    """
    sites: list[str] = []
    for number, call in enumerate(calls):
        operands = [*call.args, *call.results]
        for i, operand in enumerate(operands):
            if len(operand.shape) > MAX_NDIM:
                raise InternalError(f"{call} has an operand of more than {MAX_NDIM} dimensions")
            shape = ", ".join(str(sizes.code(x)) for x in operand.shape) or "0"
            yield f"static const int64_t call_{number}_shape_{i}[] = {{{shape}}};"
        for i, (_, value) in enumerate(call.attributes):
            integers = ", ".join(map(c_integer, _integers(value))) or "0"
            yield f"static const int64_t call_{number}_integers_{i}[] = {{{integers}}};"
        yield f"static const rutc_operand call_{number}_operands[] = {{"
        yield from (f"    {_operand(number, i, o)}," for i, o in enumerate(operands))
        yield "};"
        yield f"static const rutc_attribute call_{number}_attributes[] = {{"
        yield from (f"    {_attribute(number, i, *a)}," for i, a in enumerate(call.attributes))
        yield "    {0},"
        yield "};"
        sites.append(
            f"{{rutc_routine_{call.routine}, {len(call.args)}, {len(call.results)}, "
            f"call_{number}_operands, call_{number}_attributes, {len(call.attributes)}}}"
        )
    yield "static const rutc_call_site calls[] = {"
    yield from (f"    /* {number} */ {site}," for number, site in enumerate(sites or ["{0}"]))
    yield "};"


def _operand(number: int, i: int, operand: Operand) -> str:
    element = element_of(operand.dtype)
    kind = f"{{{element.code}, {element.bits}, 1}}"
    return f"{{{kind}, {len(operand.shape)}, call_{number}_shape_{i}}}"


def _integers(value: Attribute) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return value
    return (int(value),) if isinstance(value, int) else ()


def _attribute(number: int, i: int, name: str, value: Attribute) -> str:
    text = c_string(value) if isinstance(value, str) else "NULL"
    real = c_number(float(value)) if isinstance(value, int | float) else "0.0"
    integers = f"call_{number}_integers_{i}"
    return f"{{{c_string(name)}, {integers}, {len(_integers(value))}, {real}, {text}}}"
