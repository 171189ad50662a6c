"""Uncorrected errors of this rank's GPU, read by a process that may hang without harm."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

CHILD = (sys.executable, "-P", "-m", "medevac.adapters.sources.nvml_child")
"""Answers each line with one line of JSON: a list of GPUs."""

DEADLINE_S = 10.0
RETRY_S = 60.0


class _Gpu(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    pci: str = ""
    dbe: int | None = None


class EccWatch:
    """Asks now and then, and takes the answer when it is there: no call waits.

    `count` is the newest total of uncorrected errors over the GPU's life (NVML's aggregate: it outlasts resets and
    reboots), None while unknown; `rose` how many came since the first reading of this process; `sound_at` when the
    last reading without a new one was asked for (unix seconds).
    """

    def __init__(self, gpu: str, command: Sequence[str] = CHILD) -> None:
        self._gpu = gpu
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_at = 0.0
        self._retry_at = 0.0
        self._data = b""
        self.first: int | None = None
        self.count: int | None = None
        self.sound_at = time.time()

    @property
    def rose(self) -> int:
        return 0 if self.count is None or self.first is None else max(self.count - self.first, 0)

    def ask(self) -> None:
        """Ask for a reading, unless one is on its way. A child that did not answer in time is ended."""
        if not self._gpu or time.monotonic() < self._retry_at:
            return
        if self._asked_at:
            if time.monotonic() - self._asked_at > DEADLINE_S:
                self._give_up()
            return
        try:
            process = self._running()
            assert process.stdin
            os.write(process.stdin.fileno(), b"\n")
            self._asked_at = time.monotonic()
        except OSError:
            self._give_up()

    def look(self) -> int:
        """Errors since the first reading, by the newest answer."""
        if self._asked_at and self._process and self._process.stdout:
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    self._give_up()
                self._data += data
            line, newline, rest = self._data.partition(b"\n")
            if newline:
                asked_at = time.time() - (time.monotonic() - self._asked_at)
                self._data, self._asked_at = rest, 0.0
                self._take(line, asked_at)
        return self.rose

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
            assert self._process.stdout
            os.set_blocking(self._process.stdout.fileno(), False)
        return self._process

    def _take(self, line: bytes, asked_at: float) -> None:
        try:
            gpus = msgspec.json.decode(line, type=list[_Gpu])
        except ValueError:
            return
        mine = next((gpu for gpu in gpus if gpu.uuid == self._gpu), None)
        if mine is None or mine.dbe is None:
            return
        if self.first is None:
            self.first = mine.dbe
        elif self.count is not None and mine.dbe < self.count:  # it was reset (a new board, an order): all of it is new
            self.first = 0
        self.count = mine.dbe
        if not self.rose:
            self.sound_at = asked_at

    def _give_up(self) -> None:
        """Hung or gone: unknown, not healthy; tried again later."""
        self._asked_at, self._data = 0.0, b""
        self._retry_at = time.monotonic() + RETRY_S
        if self._process:
            self._process.kill()
            # A process stuck in the driver cannot be waited for.
            self._process.poll()
            self._process = None
