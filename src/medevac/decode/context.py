"""What earlier lines of a log said that later ones need: who a GPU is, which driver, when the kernel's second 0 was."""

from __future__ import annotations

from medevac.decode.clock import Clock


class Context:
    """The memory of one log, given to `decode_line` line by line.

    `reference`: unix time before which the log was written (a file's mtime), for dates without a year; now if None.
    `node`: the host of lines that name none. `offset`: seconds that local times of the log are ahead of UTC.
    `near`: a full date of another log of the same archive.
    """

    __slots__ = ("clock", "dated_from", "drivers", "gpus", "injectors", "node", "previous_boot")

    def __init__(
        self, *, reference: float | None = None, node: str = "", offset: float = 0.0, near: float = 0.0
    ) -> None:
        self.clock = Clock(reference, offset, near)
        self.dated_from = 0
        """The first line whose date had a year, 0 before there was one."""
        self.node = node
        self.gpus: dict[tuple[str, str], str] = {}
        self.drivers: dict[str, str] = {}
        self.injectors: set[str] = set()
        self.previous_boot: dict[str, float] = {}
