"""A small network trained on real handwritten digits, and the images held out from training."""

from pathlib import Path

FOLDER = Path(__file__).parent
MODEL = FOLDER / "digits.onnx"
IMAGES = FOLDER / "images.npz"
BATCH = 16
