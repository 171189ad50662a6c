"""Slurm, spoken through its own commands (docs/slurm.md)."""

from __future__ import annotations

from medevac.adapters.schedulers.slurm.adapter import SlurmScheduler
from medevac.adapters.schedulers.slurm.commands import Commands
from medevac.adapters.schedulers.slurm.settings import SlurmSettings

__all__ = ["Commands", "SlurmScheduler", "SlurmSettings"]
