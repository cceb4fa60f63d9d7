"""The fixture that compiles a model and compares it with ONNX Runtime or given values."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import helper

import rutc
from rutc.importer import import_model
from rutc.tensor_ir.graph import constants_of
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.textual.parse import parse
from rutc.verify import verify_model
from rutc.verify.feeding.ports import graph_inputs, graph_outputs, ports_of
from tests.run_time_structure.models import same


def interpreted(imported, feed, want):
    """Check that the interpreter gives the same."""
    ports = ports_of(imported)
    got = graph_outputs(ports, interpret(imported, graph_inputs(ports, feed)))
    for value, expected in zip(got.values(), want, strict=True):
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
        agreed = expected is None
        if agreed:
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
        for feed in feeds if agreed else ():
            # As after compiling, and as for a library that was there.
            for graph in (imported, None):
                found = verify_model(path, path.with_suffix(".so"), feed, graph=graph)
                assert found.passed
                assert found.with_truth
        return path.with_suffix(".so")

    return run
