"""What the values behind outputs are like."""

import pytest

from rutc.tensor_ir import DType
from rutc.tensor_ir.textual.parse import parse
from rutc.verify.judging.traits import Traits, output_traits

GRAPHS = {
    "plain": (
        """
        graph "plain"
        dims n = 4
        %x : f32{n} = input "x" [n]
        %y : f32{n} = %x[n] * 2.0
        output "y" [n] = %y
        """,
        Traits(varies=True),
    ),
    "constant": (
        """
        graph "constant"
        dims n = 4
        %x : f32{n} = input "x" [n]
        %y : f32{n} = 2.0
        output "y" [n] = %y
        """,
        Traits(),
    ),
    "narrow on the way": (
        """
        graph "narrow"
        dims n = 4
        %x : f32{n} = input "x" [n]
        %h : f16{n} = f16(%x[n])
        %y : f32{n} = f32(%h[n])
        output "y" [n] = %y
        """,
        Traits(varies=True, narrow=frozenset({DType.F16})),
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_traits_come_from_all_that_is_read(name: str) -> None:
    text, traits = GRAPHS[name]
    assert output_traits(parse(text)) == {"y": traits}
