"""Several files at once: one process a file, its events back over a pipe, given out in the order of the files.

A worker is `python -m medevac.decode.workers FILE NODE OFFSET`; it writes frames (length, then MessagePack). While an
earlier file is given out, frames of the later ones wait in a queue; a full queue holds its worker up, so memory stays
small.
"""

from __future__ import annotations

import contextlib
import gc
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import msgspec

from medevac.core.events import FaultSeen
from medevac.decode.readers import Progress, Unreadable

_BATCH = 512
_WAITING = 256  # frames that wait in all queues together, at most
_TELL_EVERY = 4 << 20  # bytes between two words of progress


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says: events, bytes done, or an input that could not be read ([name, why])."""

    events: list[FaultSeen] = []
    done: int = 0
    failed: tuple[str, str] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def in_parallel(
    names: Sequence[str],
    jobs: int,
    node: str,
    offset: float,
    progress: Progress | None,
    unreadable: Callable[[Unreadable], None],
) -> Iterator[FaultSeen]:
    """The events of `names`, `jobs` files at a time."""
    left = deque(names)
    running: deque[_Worker] = deque()
    try:
        while left or running:
            while left and len(running) < jobs:
                running.append(_Worker(left.popleft(), node, offset, max(4, _WAITING // jobs)))
            worker = running[0]
            for frame in worker.frames():
                if frame.done and progress:
                    progress(frame.done)
                if frame.failed:
                    unreadable(Unreadable(*frame.failed))
                yield from frame.events
            running.popleft()
            if status := worker.end():
                unreadable(Unreadable(worker.name, f"its reader ended with status {status}"))
    finally:
        for worker in running:
            worker.kill()


class _Worker:
    """A process that reads one file, and the thread that takes its frames so that it need not wait for us."""

    def __init__(self, name: str, node: str, offset: float, waiting: int) -> None:
        self.name = name
        command = [sys.executable, "-m", "medevac.decode.workers", name, node, str(offset)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._queue: queue.Queue[bytes] = queue.Queue(waiting)
        self._dropped = False
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def frames(self) -> Iterator[Frame]:
        """What it says, to its end."""
        while body := self._queue.get():
            yield _decode(body)

    def end(self) -> int:
        """Its exit status."""
        self._thread.join()
        return self._process.wait()

    def kill(self) -> None:
        """Nobody wants the rest."""
        self._dropped = True
        self._process.kill()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=0.05)
        self._process.wait()

    def _take(self) -> None:
        pipe = self._process.stdout
        if pipe is not None:
            with pipe:
                while not self._dropped and len(size := pipe.read(4)) == 4:
                    self._queue.put(pipe.read(int.from_bytes(size, "little")))
        self._queue.put(b"")


class _Teller:
    """Writes frames, with progress in coarse steps."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._done = 0

    def tell(self, frame: Frame) -> None:
        body = _encode(frame)
        self._out.write(len(body).to_bytes(4, "little") + body)

    def progress(self, count: int) -> None:
        self._done += count
        if self._done >= _TELL_EVERY:
            self.flush()

    def flush(self) -> None:
        if self._done:
            self.tell(Frame(done=self._done))
            self._done = 0
        self._out.flush()


def main(name: str, node: str, offset: str) -> None:
    """Decode one file and write its frames to stdout."""
    from medevac.decode.files import Options, decode_input

    gc.set_threshold(100_000)  # events have no cycles
    teller = _Teller(sys.stdout.buffer)

    def failed(problem: Unreadable) -> None:
        teller.tell(Frame(failed=(problem.name, problem.why)))

    options = Options(node=node, offset=float(offset), progress=teller.progress, unreadable=failed)
    batch: list[FaultSeen] = []
    for event in decode_input(name, options):
        batch.append(event)
        if len(batch) >= _BATCH:
            teller.tell(Frame(events=batch))
            batch.clear()
    teller.tell(Frame(events=batch))
    teller.flush()


if __name__ == "__main__":
    main(*sys.argv[1:4])
