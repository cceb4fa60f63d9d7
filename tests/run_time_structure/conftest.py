"""The fixture that compiles a model and compares it with ONNX Runtime or given values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import rutc
from rutc.importer import import_model
from rutc.tensor_ir.interpret import interpret
from rutc.tensor_ir.parse import parse
from rutc.tensor_ir.routines import Box
from rutc.tensor_ir.text import constants_of
from tests.run_time_structure.models import same


def in_box(value):
    """An array, or a list of arrays, as the content of a box."""
    if not isinstance(value, list):
        return Box(np.asarray(value))
    content = np.empty(len(value), object)
    content[:] = [in_box(v) for v in value]
    return Box(content)


def unboxed(boxes, kind):
    """A value of a type as a session gives it, from the boxes of a sequence or optional."""
    level, _, inner = kind.partition("(")
    if level == "tensor":
        return boxes.item().array
    sequences = inner.startswith("seq(")
    found = [unboxed(b.array, inner) if sequences else b.array for b in boxes]
    return found if level == "seq" else found[0] if found else None


def interpreted(imported, feed, want):
    """Check that the interpreter gives the same, where inputs and outputs are no static lists."""
    whole = imported.interface
    takes = dict(whole.inputs) if whole else {}
    gives = dict(whole.outputs) if whole else {}
    if any(b.kind not in ("tensor", "boxed") for b in (*takes.values(), *gives.values())):
        return
    inputs = {}
    for name, value in feed.items():
        if name in takes and takes[name].kind == "boxed":
            inner = takes[name].type.startswith("seq(")
            inputs[name] = in_box(value if inner else [] if value is None else [value]).array
        else:
            inputs[name] = np.asarray(value)
    got = interpret(imported, inputs)
    for (name, value), expected in zip(got.items(), want, strict=True):
        if name in gives and gives[name].kind == "boxed":
            value = unboxed(value, gives[name].type)
        same(value, expected)


@pytest.fixture
def check(tmp_path):
    """`check(graph, feeds, expected)`: expected of ONNX Runtime unless given."""

    def run(inner, feeds, expected=None, opset=20, **options):
        imports = [helper.make_opsetid("", opset)]
        model = inner
        if isinstance(inner, onnx.GraphProto):
            model = helper.make_model(inner, opset_imports=imports, ir_version=9)
        path: Path = tmp_path / "m.onnx"
        onnx.save(model, path)
        if expected is None:
            quiet = onnxruntime.SessionOptions()
            quiet.log_severity_level = 4
            oracle = onnxruntime.InferenceSession(path, quiet)
            expected = [oracle.run(None, feed) for feed in feeds]
        imported = import_model(path, **options)
        assert parse(str(imported), constants_of(imported)) == imported
        for feed, want in zip(feeds, expected, strict=True):
            interpreted(imported, feed, want)
        rutc.compile(path, path.with_suffix(".so"), verify=False, **options)
        for threads in (1, 2):
            with rutc.load(path.with_suffix(".so"), threads=threads) as session:
                for feed, want in zip(feeds, expected, strict=True):
                    for a, b in zip(session.run(None, feed), want, strict=True):
                        same(a, b)
        return path.with_suffix(".so")

    return run
