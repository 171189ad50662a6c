"""Inside a PyTorch training: who produced the NaN, checkpoints that are known clean, and a way back to them.

    guard = medevac.torch.Guard(model, optimizer, checkpoint_dir=folder)
    state = guard.resume()                                  # the newest clean checkpoint, verified; else step 0
    for step in guard.steps(state.step, total):
        loss = ...; loss.backward()
        guard.backward_done(); optimizer.step(); guard.end_step(loss=loss)

Works alone; under `medevac run` or an agent it also talks with them (docs/torch.md). Names are imported when first
asked for, so that the saver process, which lives here too, starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medevac.torch.batches import GlobalBatches
    from medevac.torch.checkpoints import CheckpointManager
    from medevac.torch.checks import Check, Finding
    from medevac.torch.gradient_crc import GradientCrc
    from medevac.torch.guard import Guard
    from medevac.torch.history import Resumed
    from medevac.torch.lineage import newest_clean
    from medevac.torch.links import Link
    from medevac.torch.replica_check import ReplicaCheck
    from medevac.torch.robust import RobustHook
    from medevac.torch.sketch import SketchWatch
    from medevac.torch.stop import Stop

__all__ = [
    "Check",
    "CheckpointManager",
    "Finding",
    "GlobalBatches",
    "GradientCrc",
    "Guard",
    "Link",
    "ReplicaCheck",
    "Resumed",
    "RobustHook",
    "SketchWatch",
    "Stop",
    "newest_clean",
]

_HOMES = {
    "Check": "checks",
    "CheckpointManager": "checkpoints",
    "Finding": "checks",
    "GlobalBatches": "batches",
    "GradientCrc": "gradient_crc",
    "Guard": "guard",
    "Link": "links",
    "ReplicaCheck": "replica_check",
    "Resumed": "history",
    "RobustHook": "robust",
    "SketchWatch": "sketch",
    "Stop": "stop",
    "newest_clean": "lineage",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
