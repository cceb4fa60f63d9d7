"""Register tiles: their shape, what they cost, and the loops and memory around them."""
