"""What a model computes in float64: the truth beside which results are judged."""
