"""Models of strings and of other domains that the generator found, which once failed."""

from __future__ import annotations

import numpy as np

from tests.fuzz.test_found import gives


def test_strings_of_nothing_put_together() -> None:
    text = "g (string[2, 0] x, string[1] y) => (string[2, 0] z) { z = StringConcat (x, y) }"
    nothing, one = np.zeros((2, 0), object), np.array(["a"], object)
    gives(text, [nothing], opset=21, x=nothing, y=one)
