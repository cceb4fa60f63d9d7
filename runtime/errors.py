"""The error of the runtime."""


class ModelError(ValueError):
    """A model cannot be loaded or run as asked; the message says what, where and what to do."""
