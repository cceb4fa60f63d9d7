"""A model as ONNX Runtime is to run it, where that is not as it is written."""

from __future__ import annotations

import locale
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, helper

from rutc.importer.opsets.scopes import name_outputs
from rutc.importer.quantised import leave, nodes_of
from rutc.importer.reading.proto import load

_LOCALE = "locale"
_USUAL = "en_US.UTF-8"
"""The locale in which ONNX Runtime changes cases where a model names none."""

_EVERYWHERE = ("C.UTF-8", "C")
"""Locales of every machine, those first in which letters beyond ASCII have cases."""


def restated(path: Path, *, exact: bool) -> bytes | None:
    """The model to load instead of a file; None where the file will do.

    Cases are changed in a locale that this machine has. Containers mostly lack the usual one,
    without which ONNX Runtime loads no `StringNormalizer` that changes cases. Outputs that are
    listed again have the names that artifacts give them. External weights stay where they are.

    Args:
        path: The file.
        exact: Whether it gives no leave to round operands (see `quantised.leave`).

    Raises:
        UserError: The file is no model.
    """
    model = load(path)
    renamed = name_outputs(model.graph)
    if not renamed and not _foreign(model) and not (exact and leave(model)):
        return None
    whole = onnx.load_model(path, load_external_data=False)
    name_outputs(whole.graph)
    if exact:
        for n, a in leave(whole):
            n.attribute.remove(a)
    for n in _foreign(whole):
        kept = [a for a in n.attribute if a.name != _LOCALE]
        del n.attribute[:]
        here = next(filter(_has, _EVERYWHERE))
        n.attribute.extend([*kept, helper.make_attribute(_LOCALE, here)])
    return whole.SerializeToString()


def _foreign(model: ModelProto) -> list[NodeProto]:
    """Nodes that name a locale that this machine lacks, or default to such a one."""
    normalisers = (n for n in nodes_of(model) if n.op_type == "StringNormalizer")
    return [n for n in normalisers if not _has(_name(n))]


def _name(n: NodeProto) -> str:
    return next((a.s.decode() for a in n.attribute if a.name == _LOCALE), _USUAL)


def _has(name: str) -> bool:
    """Whether this machine has a locale."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except (locale.Error, ValueError):
        return False
    locale.setlocale(locale.LC_CTYPE, before)
    return True
