"""ImageDecoder's routines against Pillow, and the operator in a compiled model."""

from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from rutc.driver.parts.build import Builder
from rutc.emit.linking.library import build_library
from rutc.emit.targets import target_named
from rutc.errors import UserError
from rutc.graph_opt import optimize
from rutc.graph_opt.decide import decide
from rutc.importer import import_model
from rutc.runtime import InferenceSession, ModelError
from rutc.tensor_ir import DType
from rutc.tensor_ir.interpreter.interpret import interpret
from rutc.tensor_ir.interpreter.routines import ROUTINES, Job, Result
from tests.machines import NATIVE

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (13, 21, 3), np.uint8)
SMOOTH = np.add.outer(np.arange(40), np.arange(30) * 3)[..., None] * [1, 2, 3] % 256


def encoded(pixels: np.ndarray, mode: str, kind: str, **options: object) -> np.ndarray:
    """An image file's bytes."""
    image = Image.fromarray(pixels.astype(np.uint8), "RGB").convert(mode)
    stream = BytesIO()
    image.save(stream, kind, **options)
    return np.frombuffer(stream.getvalue(), np.uint8)


STREAMS = {
    "png": encoded(NOISE, "RGB", "PNG"),
    "smooth png": encoded(SMOOTH, "RGB", "PNG", optimize=True),
    "stored png": encoded(NOISE, "RGB", "PNG", compress_level=0),
    "gray png": encoded(SMOOTH, "L", "PNG"),
    "palette png": encoded(SMOOTH, "P", "PNG"),
    "one bit png": encoded(NOISE, "1", "PNG"),
    "few colors png": encoded(SMOOTH, "P", "PNG", bits=2),
    "transparent png": encoded(SMOOTH, "RGBA", "PNG"),
    "bmp": encoded(NOISE, "RGB", "BMP"),
    "palette bmp": encoded(SMOOTH, "P", "BMP"),
    "wide bmp": encoded(NOISE, "RGBA", "BMP"),
    "pnm": encoded(NOISE, "RGB", "PPM"),
    "gray pnm": encoded(NOISE, "L", "PPM"),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> InferenceSession:
    """A compiled decoder of streams of any length."""
    folder = tmp_path_factory.mktemp("images")
    library = folder / "m.so"
    plan = decide(optimize(import_model(saved(folder, "RGB"))), NATIVE)
    built = Builder(plan, target_named("native").machine, "m", 1).build()
    build_library(built.program, built.objects, library, {})
    return InferenceSession(library)


def saved(folder: Path, pixel_format: str) -> Path:
    """A model of one ImageDecoder."""
    node = helper.make_node("ImageDecoder", ["x"], ["y"], "decode", pixel_format=pixel_format)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["n"])
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("name", STREAMS)
def test_pixels(name: str, session: InferenceSession) -> None:
    stream = STREAMS[name]
    wanted = np.array(Image.open(BytesIO(stream.tobytes())).convert("RGB"))
    np.testing.assert_array_equal(session.run(None, {"x": stream})[0], wanted)
    job = Job([stream], (Result(DType.U8, wanted.shape),), {}, (), 0)
    np.testing.assert_array_equal(ROUTINES["image_pixels"](job)[0], wanted)


@pytest.mark.parametrize("pixel_format", ["BGR", "Grayscale"])
def test_formats(pixel_format: str, tmp_path: Path) -> None:
    got = interpret(import_model(saved(tmp_path, pixel_format)), {"x": STREAMS["png"]})["y"]
    gray = np.array(Image.fromarray(NOISE).convert("L"))[..., None]
    np.testing.assert_array_equal(got, NOISE[..., ::-1] if pixel_format == "BGR" else gray)


def test_what_is_no_image_names_the_node(session: InferenceSession) -> None:
    for bad in (
        b"",
        b"GIF89a",
        b"P6\n# no end",
        b"BM" + bytes(60),
        b"\x89PNG\r\n\x1a\n" + bytes(30),
    ):
        stream = np.frombuffer(bad, np.uint8)
        if len(bad) > 0:
            with pytest.raises(ModelError, match="decode: the image"):
                session.run(None, {"x": stream})
        with pytest.raises(UserError, match="the image"):
            ROUTINES["image_size"](Job([stream], (), {}, ("decode",), 0))


@pytest.mark.parametrize(
    ("kind", "name"),
    [("JPEG", "JPEG"), ("JPEG2000", "JPEG 2000"), ("TIFF", "TIFF"), ("WEBP", "WebP")],
)
def test_formats_that_are_not_read_are_named(
    kind: str, name: str, session: InferenceSession
) -> None:
    stream = encoded(NOISE, "RGB", kind)
    message = rf"the image is no PNG \(without interlacing\), BMP or binary PNM, but a {name}$"
    with pytest.raises(ModelError, match=message):
        session.run(None, {"x": stream})
    with pytest.raises(UserError, match=message):
        ROUTINES["image_size"](Job([stream], (), {}, ("decode",), 0))


def constant_image(path: Path, stream: np.ndarray) -> Path:
    """A model whose image is a constant."""
    node = helper.make_node("ImageDecoder", ["c"], ["image"], "decode")
    add = helper.make_node("Add", ["image", "x"], ["y"])
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1])
    constant = onnx.numpy_helper.from_array(stream, "c")
    graph = helper.make_graph([node, add], "g", [x], [onnx.ValueInfoProto(name="y")], [constant])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path
    )
    return path


def test_constant_images(tmp_path: Path) -> None:
    """They are read when the model is compiled, which refuses other formats."""
    graph = import_model(constant_image(tmp_path / "m.onnx", STREAMS["png"]))
    got = interpret(graph, {"x": np.zeros(1, np.uint8)})["y"]
    np.testing.assert_array_equal(got, NOISE)
    photo = constant_image(tmp_path / "photo.onnx", encoded(NOISE, "RGB", "JPEG"))
    with pytest.raises(UserError, match=r"decode: the image is no PNG .* but a JPEG"):
        import_model(photo)


def test_damage_is_no_crash(session: InferenceSession) -> None:
    rng = np.random.default_rng(1)
    failures: list[str] = []
    for name in STREAMS:
        for _ in range(60):
            stream = STREAMS[name].copy()
            places = rng.integers(0, len(stream), rng.integers(1, 6))
            stream[places] = rng.integers(0, 256, len(places))
            stream = stream[: rng.integers(1, len(stream) + 1)]
            if session_size(stream) > 1 << 22:
                continue
            try:
                session.run(None, {"x": stream})
            except ModelError as error:
                failures.append(str(error))
    assert failures
    assert all("decode: the image" in text for text in failures)


def session_size(stream: np.ndarray) -> int:
    """A rough number of pixels that a stream promises, to spare the tests huge images."""
    data = stream.tobytes().ljust(40, b"\0")
    if data[:2] == b"BM":
        return abs(int.from_bytes(data[18:22], "little", signed=True)) * abs(
            int.from_bytes(data[22:26], "little", signed=True)
        )
    return int.from_bytes(data[16:20]) * int.from_bytes(data[20:24]) if data[0] == 0x89 else 0
