"""Random operators: their distribution, their seeds, and numpy's numbers for training dropout."""

import numpy as np
import onnx
import pytest

from rutc.importer import import_model
from rutc.tensor_ir.interpreter.interpret import interpret


@pytest.fixture
def outputs(tmp_path, make_model):
    """`outputs(nodes, inputs, constants, names)`: what a model gives, by name."""

    def run(nodes, inputs, constants=None, names=("y",)):
        model = make_model(nodes, inputs, names, constants or {}, 22)
        onnx.save(model, tmp_path / "m.onnx")
        return interpret(import_model(tmp_path / "m.onnx"), inputs)

    return run


def test_distributions(outputs, make_node):
    nodes = [
        make_node("RandomUniform", [], ["u"], shape=[90, 90], low=-2.0, high=4.0),
        make_node("RandomNormal", [], ["n"], shape=[9000], mean=3.0, scale=2.0, dtype=11),
        make_node("RandomUniformLike", ["x"], ["ul"], high=0.5),
        make_node("RandomNormalLike", ["x"], ["nl"], dtype=10),
        make_node("Bernoulli", ["p"], ["b"], dtype=9),
    ]
    inputs = {"x": np.zeros((50, 1, 60)), "p": np.full((2, 4000), [[0.0], [0.25]], np.float32)}
    got = outputs(nodes, inputs, names=("u", "n", "ul", "nl", "b"))
    kinds = {name: a.dtype for name, a in got.items()}
    assert kinds == {"u": "f4", "n": "f8", "ul": "f8", "nl": "f2", "b": "?"}
    assert got["u"].min() >= -2
    assert got["u"].max() < 4
    assert got["u"].mean() == pytest.approx(1, abs=0.1)
    assert got["n"].mean() == pytest.approx(3, abs=0.1)
    assert got["n"].std() == pytest.approx(2, abs=0.1)
    assert abs(np.corrcoef(got["n"][:-1], got["n"][1:])[0, 1]) < 0.04
    assert 2 < (np.abs(got["n"] - 3) > 4).mean() * 100 < 7
    assert got["ul"].shape == (50, 1, 60)
    assert got["ul"].max() < 0.5
    assert got["nl"].std(dtype="f8") == pytest.approx(1, abs=0.1)
    assert not got["b"][0].any()
    assert got["b"][1].mean() == pytest.approx(0.25, abs=0.03)


def test_multinomial_draws_by_log_probability(outputs, make_node):
    x = np.log(np.array([[1, 2, 5, 0], [0, 0, 0, 3], [4, 4, 4, 4]], np.float32) + 1e-30)
    node = make_node("Multinomial", ["x"], sample_size=4000, dtype=7)
    y = outputs([node], {"x": x})["y"]
    assert y.shape == (3, 4000)
    assert y.dtype == np.int64
    shares = np.stack([np.bincount(row, minlength=4) / 4000 for row in y])
    wanted = np.array([[0.125, 0.25, 0.625, 0], [0, 0, 0, 1], [0.25] * 4])
    np.testing.assert_allclose(shares, wanted, atol=0.04)
    one = make_node("Multinomial", ["x"], sample_size=3)
    assert outputs([one], {"x": x[:, :1]})["y"].tolist() == [[0] * 3] * 3


def test_seeds_decide(outputs, make_node):
    def pair(**seeds):
        nodes = [
            make_node("RandomNormal", [], [name], shape=[8], **({} if s is None else {"seed": s}))
            for name, s in seeds.items()
        ]
        got = outputs(nodes, {}, names=tuple(seeds))
        return np.array_equal(*got.values())

    assert pair(a=1.5, b=1.5)
    assert not pair(a=1.5, b=2.5)
    assert not pair(a=None, b=None)


@pytest.mark.parametrize("ratio", [None, 0.0, 0.75])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_training_dropout_drops_what_numpy_would(ratio, training, fixed, outputs, make_node, rng):
    x = rng.standard_normal((3, 4, 5)).astype("f4")
    operands = {"t": np.array(training)}
    if ratio is not None:
        operands["r"] = np.array(ratio, np.float32)
    names = ["x", "" if ratio is None else "r", "t"]
    node = make_node("Dropout", names, ["y", "mask"], seed=5)
    inputs = {"x": x} if fixed else {"x": x, **operands}
    got = outputs([node], inputs, operands if fixed else {}, ("y", "mask"))
    np.random.seed(5)
    share = 0.5 if ratio is None else ratio
    kept = np.random.uniform(0, 1.0, x.shape) >= (share if training else 0)
    np.testing.assert_array_equal(got["mask"], kept)
    scaled = np.float32(1 / (1 - share)) * x if training else x
    np.testing.assert_array_equal(got["y"], np.where(kept, scaled, 0))


def test_dropout_without_a_seed_drops_its_share(outputs, make_node):
    x = np.ones((100, 100), np.float32)
    constants = {"r": np.array(0.2, np.float32), "t": np.array(True)}
    y = outputs([make_node("Dropout", ["x", "r", "t"])], {"x": x}, constants)["y"]
    assert (y == 0).mean() == pytest.approx(0.2, abs=0.02)
    assert np.unique(y).tolist() == [0, 1.25]


@pytest.mark.parametrize("dtype", [10, 16])
def test_uniform_numbers_of_few_bits_are_below_the_limit(outputs, make_node, dtype):
    """Also where numbers of more bits would be rounded to it."""
    node = make_node("RandomUniform", [], ["y"], shape=[300, 300], dtype=dtype)
    y = outputs([node], {})["y"].astype(np.float64)
    assert y.max() < 1
    assert len(np.unique(y)) == (2048 if dtype == 10 else 256)
