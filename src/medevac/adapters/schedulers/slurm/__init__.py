"""Slurm, spoken through its own commands (docs/slurm.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medevac.adapters.schedulers.slurm.adapter import SlurmScheduler
    from medevac.adapters.schedulers.slurm.commands import Commands
    from medevac.adapters.schedulers.slurm.settings import SlurmSettings

__all__ = ["Commands", "SlurmScheduler", "SlurmSettings"]

_HOMES = {"Commands": "commands", "SlurmScheduler": "adapter", "SlurmSettings": "settings"}


def __getattr__(name: str) -> Any:
    """Load what is asked for: `node-check` runs in each job's Prolog and needs the parsers alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
