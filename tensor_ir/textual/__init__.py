"""The text forms of both languages: written, and parsed."""
