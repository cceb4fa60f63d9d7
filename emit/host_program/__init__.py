"""The host program of an artifact: what one run does, as tables and entry points in C."""
