"""The lock: texts that two runs agree on, and what it says where they differ."""

import json

import pytest

from tests.lock.__main__ import differences, recorded
from tests.lock.models import models
from tests.lock.texts import KINDS, TARGETS, texts_of


@pytest.mark.parametrize("target", TARGETS)
def test_texts_are_those_of_another_run(target: str) -> None:
    model = models(["operator Softmax"])[0]
    texts = texts_of(model, target)
    assert set(texts.by_kind) == set(KINDS)
    assert all(texts.by_kind.values())
    assert texts.digests() == texts_of(model, target).digests()


def test_texts_differ_between_targets() -> None:
    model = models(["kernel product"])[0]
    narrow, wide = (texts_of(model, t).digests() for t in ("x86-64-v3", "x86-64-v4"))
    assert differences({"product": narrow}, {"product": wide}) == [
        "product: program, schedules, kernels, code"
    ]


def test_differences_are_told_by_model_and_kind() -> None:
    then = {"a @ v3": dict.fromkeys(KINDS, "1"), "b @ v3": dict.fromkeys(KINDS, "1")}
    now = {"a @ v3": {**then["a @ v3"], "code": "2"}, "c @ v3": then["b @ v3"]}
    assert differences(then, now) == ["a @ v3: code", "new: c @ v3", "gone: b @ v3"]
    assert differences(then, then) == []
    assert json.loads(recorded(now)) == now


SINGLE = [m.name for m in models(["kernel ", "operator ", "layer "])]


@pytest.mark.sampled(100)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SINGLE)
def test_default_schedules_of_single_operators_apply(name: str, target: str) -> None:
    """A lock records what is refused as any other text: it would stay so unseen."""
    (model,) = (m for m in models([name]) if m.name == name)
    texts = texts_of(model, target).by_kind
    assert "refused" not in texts["plan"], texts["plan"]["refused"]
    assert texts["schedules"].keys() == texts["code"].keys()
