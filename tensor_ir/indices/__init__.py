"""Index expressions: integers over named variables, and their ranges."""
