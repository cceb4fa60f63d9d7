"""The operators, one module per family: every module of this folder is loaded with the importer."""

from importlib import import_module
from pkgutil import walk_packages


def register_all() -> None:
    """Loads every module, so that its operators are in the registry."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
