"""The Guard in a `transformers.Trainer`.

    trainer = Trainer(model, args, train_dataset=data)
    trainer.add_callback(MedevacCallback(checkpoint_dir=folder))

The Trainer calls its callbacks after clipping and before `optimizer.step()`, which is where a bad step is dropped. The
Trainer's own loop cannot be rewound: a bad step is skipped or stops the training (`on_bad`), it is not rolled back.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from medevac.torch.guard import Guard


class MedevacCallback(TrainerCallback):  # type: ignore[misc]
    """Heartbeats, the check of gradients, checkpoints and requests; keywords are those of `Guard`."""

    def __init__(self, *, on_bad: str = "skip", **guard: Any) -> None:
        if on_bad == "roll-back":
            raise ValueError("on_bad='roll-back': the Trainer cannot go back; give 'skip' or 'stop'")
        self._options: dict[str, Any] = {"on_bad": on_bad, "save_last": False, **guard}
        self._guard: Guard | None = None
        self._steps: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard = Guard(kwargs["model"], kwargs["optimizer"], **self._options)
        self._steps = self._guard.steps(state.global_step, 1 << 62)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        next(self._steps)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self._guard, "on_train_begin comes first"
        self._guard.backward_done()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self._guard, "on_train_begin comes first"
        losses = [entry["loss"] for entry in state.log_history[-1:] if "loss" in entry]
        self._guard.end_step(loss=losses[0] if losses else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._guard:
            self._guard.close()
