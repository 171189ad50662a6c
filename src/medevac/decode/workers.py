"""Several files at once: one process a file, its events back over a pipe, given out in the order of the files.

A worker is `python -m medevac.decode.workers FILE NODE OFFSET`; it writes frames (length, then MessagePack). A reader
that is behind holds it up through the pipe, so memory stays small.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import IO, BinaryIO

import msgspec

from medevac.core.events import FaultSeen
from medevac.decode.readers import Progress, Unreadable

_BATCH = 512
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
    running: deque[tuple[str, subprocess.Popen[bytes]]] = deque()
    try:
        while left or running:
            while left and len(running) < jobs:
                name = left.popleft()
                running.append((name, _start(name, node, offset)))
            name, worker = running[0]
            for frame in _frames(worker.stdout):
                if frame.done and progress:
                    progress(frame.done)
                if frame.failed:
                    unreadable(Unreadable(*frame.failed))
                yield from frame.events
            running.popleft()
            if worker.wait() != 0:
                unreadable(Unreadable(name, f"its reader ended with status {worker.returncode}"))
    finally:
        for _, worker in running:
            worker.kill()
            worker.wait()


def _start(name: str, node: str, offset: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "medevac.decode.workers", name, node, str(offset)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _frames(pipe: IO[bytes] | None) -> Iterator[Frame]:
    if pipe is None:
        return
    with pipe:
        while len(size := pipe.read(4)) == 4:
            yield _decode(pipe.read(int.from_bytes(size, "little")))


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
