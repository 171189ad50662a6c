"""How a rank leaves its training by order or by policy."""

from __future__ import annotations

DRAINED = 83
"""A checkpoint was saved as asked."""
HARDWARE = 84
"""This rank's hardware is suspect."""
ROLL_BACK = 85
"""Wants to be started again from an earlier checkpoint."""
SUSPECT = 86
"""What it was told to load is not what was sealed."""
TERMINATED = 143
"""Left without saving, as asked."""


class Stop(SystemExit):
    """Ends the training with an exit code that Medevac understands (docs/exit-codes.md).

    A BaseException, so that a loop's `except Exception` does not train on. Let it pass.
    """

    def __init__(self, code: int, why: str) -> None:
        super().__init__(code)
        self.why = why

    def __str__(self) -> str:
        return f"{self.why} (exit code {self.code})"
