"""The embedded scheduler: this machine's processes, as one node or as a simulated cluster (docs/local-scheduler.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medevac.adapters.schedulers.local.files import socket_path
from medevac.adapters.schedulers.spec import JobSpec

if TYPE_CHECKING:
    from medevac.adapters.schedulers.local.scheduler import LocalScheduler

__all__ = ["JobSpec", "LocalScheduler", "socket_path"]


def __getattr__(name: str) -> object:
    """Load the scheduler when it is asked for: the keeper is in this package too, and starts faster without it."""
    if name == "LocalScheduler":
        from medevac.adapters.schedulers.local.scheduler import LocalScheduler

        return LocalScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
