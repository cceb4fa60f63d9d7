"""Targets: each one file that describes a processor family; chosen by name or by CPU features."""

from rutc.emit.targets.select import (
    TARGETS,
    Target,
    native_target,
    target_named,
    targets_named,
)

__all__ = ["TARGETS", "Target", "native_target", "target_named", "targets_named"]
