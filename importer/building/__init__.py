"""What the operator functions build graphs with."""
