"""What both languages mean, computed with numpy: the oracle of every test."""
