"""The digit network: its files, what it recognises, and how the demonstration draws it."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import rutc
from rutc.errors import UserError
from rutc.models import digits
from rutc.models.digits import demo

README = Path(__file__).parents[2] / "models" / "digits" / "README.md"


def test_the_network_is_small_and_static() -> None:
    model = onnx.load(digits.MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert digits.MODEL.stat().st_size < 200_000
    (image,) = model.graph.input
    assert [dim.dim_value for dim in image.type.tensor_type.shape.dim] == [digits.BATCH, 1, 8, 8]


def test_the_network_recognises_the_held_out_images() -> None:
    with np.load(digits.IMAGES) as stored:
        images, labels = stored["image"], stored["label"]
    assert images.shape == (digits.BATCH, 1, 8, 8)
    assert images.dtype == np.float32
    session = onnxruntime.InferenceSession(digits.MODEL, providers=["CPUExecutionProvider"])
    (scores,) = session.run(["scores"], {"image": images})
    assert np.argmax(scores, axis=1).tolist() == labels.tolist()


def test_the_onnx_file_computes_what_training_reached_on_the_whole_test_split() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from rutc.models.digits import train

    _, _, images, labels = train.split_digits()
    session = onnxruntime.InferenceSession(digits.MODEL, providers=["CPUExecutionProvider"])
    right = 0
    for first in range(0, len(images), digits.BATCH):
        batch = images[first : first + digits.BATCH]
        padded = np.zeros((digits.BATCH, 1, 8, 8), np.float32)
        padded[: len(batch)] = batch
        (scores,) = session.run(["scores"], {"image": padded})
        predicted = np.argmax(scores[: len(batch)], axis=1)
        right += int((predicted == labels[first : first + digits.BATCH]).sum())
    assert f"{right / len(images):.2%}".replace("%", " %") in README.read_text("utf-8")


def test_held_out_images_are_not_trained_on() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from rutc.models.digits import train

    train_x, _, test_x, _ = train.split_digits()
    with np.load(digits.IMAGES) as stored:
        np.testing.assert_array_equal(stored["image"], test_x[: digits.BATCH])
    assert len(train_x) + len(test_x) == 1797


def test_the_demonstration_compiles_and_recognises_every_image(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    demo.main(["--draw", "2"])
    shown = capsys.readouterr().out
    assert "16 of 16 held-out images recognised" in shown
    assert shown.count("label 0 read 0") == 2
    artifact = tmp_path / "digits.so"
    rutc.compile(digits.MODEL, artifact)
    demo.main([str(artifact), "--draw", "2"])
    assert capsys.readouterr().out == shown


def test_the_demonstration_explains_a_useless_artifact(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no compiled network at .*rutc compile"):
        demo.main([str(tmp_path / "absent.so")])
    (tmp_path / "empty.so").touch()
    with pytest.raises(UserError, match=r"empty\.so"):
        demo.main([str(tmp_path / "empty.so")])


def test_drawing_puts_the_label_beside_what_was_read() -> None:
    images = np.zeros((2, 1, 8, 8), np.float32)
    images[0, 0, 0, 0] = 1.0
    text = demo.render(images, np.array([3, 5]), np.array([3, 6]))
    lines = text.splitlines()
    assert lines[0] == "@@"
    assert lines[8] == "label 3 read 3     label 5 read 6 X"
