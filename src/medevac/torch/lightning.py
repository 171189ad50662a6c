"""The Guard in a Lightning `Trainer`.

    Trainer(callbacks=[MedevacCallback(checkpoint_dir=folder)])

For modules with one optimizer. Lightning's loop cannot be rewound: a bad step is skipped or stops the training
(`on_bad`), it is not rolled back.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from medevac.torch.guard import Guard


class MedevacCallback(Callback):  # type: ignore[misc]
    """Heartbeats, the check of gradients, checkpoints and requests; keywords are those of `Guard`."""

    def __init__(self, *, on_bad: str = "skip", **guard: Any) -> None:
        if on_bad == "roll-back":
            raise ValueError("on_bad='roll-back': Lightning's loop cannot go back; give 'skip' or 'stop'")
        self._options: dict[str, Any] = {"on_bad": on_bad, "save_last": False, **guard}
        self._guard: Guard | None = None
        self._steps: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # The strategy's model is the one that DDP or FSDP wrapped.
        self._guard = Guard(trainer.strategy.model, trainer.optimizers[0], **self._options)
        self._steps = self._guard.steps(trainer.global_step, 1 << 62)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        next(self._steps)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self._guard, "on_train_start comes first"
        self._guard.backward_done()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self._guard, "on_train_start comes first"
        self._guard.end_step(loss=outputs.get("loss") if isinstance(outputs, dict) else outputs)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._guard:
            self._guard.close()
