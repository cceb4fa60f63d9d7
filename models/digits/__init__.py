"""A small convolutional network for handwritten digits, trained on real images, with its held-out images."""

from pathlib import Path

FOLDER = Path(__file__).parent
MODEL = FOLDER / "digits.onnx"
IMAGES = FOLDER / "images.npz"
BATCH = 16
