"""The decoder that `benchmarks.decoders` measures: one network, as every peer takes it."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from benchmarks import llama
from benchmarks.decoder_models import BLOCK, Sizes, onnx_model, quantised, weights_of, write_gguf
from benchmarks.decoders import (
    GROUPED,
    LLAMA,
    MEMORY,
    PASTS,
    SPELLED_OUT,
    Step,
    decoder,
    jobs,
    page,
    tokens,
)
from benchmarks.machine import provenance
from benchmarks.peers import run_in_one_buffer
from benchmarks.store import Entry
from rutc.verify.interleaved import take_turns
from tests.close import assert_close

SMALL = Sizes(words=96, width=128, layers=2, heads=4, groups=2, hidden=256, longest=64)
Caches = Mapping[str, np.ndarray]


@cache
def weights() -> dict[str, np.ndarray]:
    return weights_of(SMALL)


def session(kind: str, *, grouped: bool) -> ort.InferenceSession:
    model = onnx_model(SMALL, weights(), kind, grouped=grouped)
    return ort.InferenceSession(model.SerializeToString())


def empty(kind: str) -> dict[str, np.ndarray]:
    shape = (1, SMALL.groups, 0, SMALL.head)
    dtype = np.float16 if kind == "f16" else np.float32
    names = [f"past.{k}.{n}" for k in range(SMALL.layers) for n in ("key", "value")]
    return {name: np.zeros(shape, dtype) for name in names}


def logits(kind: str, read: list[int]) -> np.ndarray:
    """The logits after a prompt, of ONNX Runtime."""
    feed = {"input_ids": np.array([read]), "attention_mask": np.ones((1, len(read)), np.int64)}
    found: Any = session(kind, grouped=True).run(["logits"], {**feed, **empty(kind)})[0]
    return np.asarray(found[0, -1], np.float32)


@pytest.mark.parametrize("kind", ["f32", "f16", "int8", "int4"])
def test_attention_that_is_spelled_out_is_the_same(kind: str) -> None:
    read, caches, results = tokens(SMALL, 6), empty(kind), []
    plain = session(kind, grouped=False)
    for position, token in enumerate(read):
        feed = {"input_ids": np.array([[token]]), "position_ids": np.array([[position]])}
        results = plain.run(None, {**feed, **caches})
        caches = dict(zip(caches, results[1:], strict=True))
    found = np.asarray(results[0][0, -1], np.float32)
    tolerance = {"f32": 1e-5, "f16": 1e-2}.get(kind, 2e-2)
    np.testing.assert_allclose(found, logits(kind, read), atol=tolerance, rtol=0)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "int8", "int4"])
def test_llama_cpp_has_the_same_weights(kind: str, tmp_path: Path) -> None:
    if llama.folder() is None:
        pytest.skip(llama.MISSING)
    write_gguf(tmp_path / "m.gguf", SMALL, weights(), kind)
    read = tokens(SMALL, 32)
    model = llama.Llama(tmp_path / "m.gguf", 1, 64)
    model.read(read)
    want = logits("f32" if kind == "bf16" else kind, read)
    error = np.linalg.norm(model.logits(SMALL.words) - want) / np.linalg.norm(want)
    assert error < (5e-3 if kind in ("f32", "f16") else 5e-2)
    model.shorten(20)
    model.read(read[20:])
    again = np.linalg.norm(model.logits(SMALL.words) - want) / np.linalg.norm(want)
    assert again == pytest.approx(error, rel=0.2)


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_weights_are_within_half_a_step(bits: int) -> None:
    w = weights()["output"]
    codes, scales = quantised(w, bits)
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], BLOCK)
    values = (codes.astype(np.float32) - (1 << (bits - 1))) * scales[..., None]
    steps = np.abs(values.reshape(w.shape) - w) / np.abs(scales).repeat(BLOCK, 1)
    # The largest of 4 bits is one step less than the largest of the other sign.
    assert steps.max() < (1.01 if bits == 4 else 0.6)
    assert np.median(steps) < 0.3


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_decoder_is_measured_beside_its_peers(kind: str, tmp_path: Path) -> None:
    made = decoder(tmp_path, SMALL, kind)
    assert made.facts["agrees"]
    assert made.facts["bound"]
    past = PASTS[0]
    todo = jobs(made, Step(kind, past, 1, 1), (LLAMA, GROUPED, SPELLED_OUT))
    found = take_turns(todo, 0.01)
    assert not any(m.failed for m in found.values())
    expected = {"rutc", MEMORY, GROUPED, SPELLED_OUT}
    assert all(job.prepare.__module__ != decoder.__module__ for job in todo.values()), "is __main__"
    assert set(found) == expected | ({LLAMA} if llama.folder() is not None else set())
    # What it appends to one buffer changes nothing of what it computes.
    inputs = made.inputs(past)
    result: Any = run_in_one_buffer(made.model, 1, inputs, SMALL.longest)()
    got = result[0].copy_outputs_to_cpu()[-1]
    want = ort.InferenceSession(str(made.model)).run(["logits"], inputs)[0]
    assert_close(got, want, reduction=1024)


def test_a_prompt_is_read_beside_those_that_take_one(tmp_path: Path) -> None:
    made = decoder(tmp_path, SMALL, "f32")
    step = Step("f32", 0, 20, 1)
    found = take_turns(jobs(made, step, (LLAMA, GROUPED, SPELLED_OUT)), 0.01)
    assert not any(m.failed for m in found.values())
    assert set(found) == {"rutc", GROUPED} | ({LLAMA} if llama.folder() is not None else set())
    inputs = made.inputs(0, 20)
    assert inputs["input_ids"].tolist() == [tokens(SMALL, 0, 20)]
    result: Any = run_in_one_buffer(made.model, 1, inputs, SMALL.longest)()
    want = ort.InferenceSession(str(made.model)).run(["logits"], inputs)[0]
    assert_close(result[0].copy_outputs_to_cpu()[-1], want, reduction=1024)


def test_llama_cpp_gives_the_logits_after_every_token(tmp_path: Path) -> None:
    if llama.folder() is None:
        pytest.skip(llama.MISSING)
    write_gguf(tmp_path / "m.gguf", SMALL, weights(), "f32")
    read = tokens(SMALL, 7)
    model: Any = llama.prepare_llama(tmp_path / "m.gguf", 1, read[:5], read[5:], 64)()
    for place, want in ((0, logits("f32", read[:6])), (2, logits("f32", read))):
        got = model.logits(SMALL.words, place)
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < 5e-3


def measured(case: str, ms: dict[str, float]) -> Entry:
    """The entry of a case on this machine."""
    return {
        "case": case,
        "ms": ms,
        "agrees": True,
        "runs": {"rutc": 9},
        **{k: getattr(provenance(), k) for k in ("cpu", "processor", "features", "cpus")},
        "commit": "abc",
        "versions": {},
        "date": "2026-01-02",
    }


def test_the_page_has_a_share_of_the_memory_bandwidth() -> None:
    entry = measured("int4 after 32 tokens, 1 thread", {"rutc": 2.0, MEMORY: 1.5, GROUPED: 4.0})
    (row,) = [line for line in page([entry]).splitlines() if "int4 after" in line]
    assert row == "| int4 after 32 tokens, 1 thread | 2.0 | - | 4.0 | - | 1.5 | 75 % | abc: 9 |"


def test_the_page_has_prompts_apart() -> None:
    ms = {"rutc": 57.0, LLAMA: 117.0, GROUPED: 124.0}
    entry = measured("int4 prompt of 128 tokens, 2 threads", ms)
    (row,) = [line for line in page([entry]).splitlines() if "prompt of" in line]
    assert row == "| int4 prompt of 128 tokens, 2 threads | 57.0 | 117.0 | 124.0 | abc: 9 |"


def test_what_a_token_reads_is_counted() -> None:
    whole = Sizes()
    count = sum(n * k for n, k in whole.matrices().values()) - whole.words * whole.width
    assert 97e6 < count < 103e6
    assert whole.read_bytes("f32") == 4 * count
    assert whole.read_bytes("int4") == count // 2 + 4 * count // BLOCK
    assert replace(whole, layers=1).cache_bytes(10, 4) == 2 * 4 * 64 * 10 * 4
