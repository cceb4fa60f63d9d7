"""What a model is run on to verify it: which inputs, at which sizes, drawn or from files."""
