"""The trainer's end of its saver process."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from medevac.torch.memory import marks_of, started
from medevac.torch.saver import MARK
from medevac.torch.wire import Bye, Message, Reader, Saved, readable, send

log = logging.getLogger("medevac.torch")


class SaverLink:
    """One saver process of its own session. Raises OSError where it cannot be started."""

    def __init__(self, folder: Path, rank: int, environ: Mapping[str, str] = os.environ) -> None:
        ours, theirs = socket.socketpair()
        logs = folder / ".medevac"
        logs.mkdir(parents=True, exist_ok=True)
        marks = marks_of(environ)
        command = [sys.executable, "-P", "-m", "medevac.torch.saver", str(theirs.fileno())]
        with (logs / f"saver-{rank}.log").open("ab") as errors, theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env={**environ, MARK: str(marks)} if marks else dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        if marks:
            _register(marks / str(self._process.pid), self._process.pid)
        self._socket = ours
        self._reader = Reader(ours, wait=False)
        self._sending = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def gone(self) -> bool:
        return self._reader.ended or self._process.poll() is not None

    def send(self, message: Message, descriptor: int | None = None) -> None:
        """Raises OSError when the saver is gone. It always listens: this does not wait for a disk."""
        with self._sending:
            send(self._socket, message, descriptor)

    def replies(self, wait_s: float = 0.0) -> list[Saved]:
        """What it has saved since the last call; waits up to `wait_s` for the first answer."""
        if wait_s > 0:
            readable(self._socket, wait_s)
        return [message for message in self._reader.read() if isinstance(message, Saved)]

    def close(self, wait_s: float) -> None:
        """Say that nothing more comes, and give it up to `wait_s` to finish; it finishes anyway."""
        with contextlib.suppress(OSError):
            self.send(Bye())
            self._socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(wait_s, 0.1))
        self._socket.close()
        if self._process.poll() is None:
            log.warning("the saver (process %d) still writes, and will finish by itself", self._process.pid)
            self._process.returncode = 0  # left on purpose: no warning of an abandoned child


def _register(mark: Path, pid: int) -> None:
    """By pid and start time, so that a later process of that pid is no saver."""
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        staged = mark.with_name(f".{mark.name}")
        staged.write_text(started(pid), encoding="ascii")
        staged.replace(mark)
