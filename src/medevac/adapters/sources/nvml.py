"""GPUs of this machine by NVML, from a child process with a deadline: a hung driver is `Unavailable`, not a hang."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec

from medevac.adapters.clock import SystemClock
from medevac.adapters.sources.nvml_child import Reading
from medevac.core.events import EccCounted, Gpu
from medevac.core.stacks import Load
from medevac.ports.clock import Clock
from medevac.ports.errors import BadReply, Unavailable

DEADLINE_SECONDS = 15.0
"""NVML takes seconds to start on a node of 8 GPUs without the persistence daemon; then it answers in milliseconds."""

LAST = 3
"""Readings that are kept of how busy a GPU is."""

_CHILD = (sys.executable, "-P", "-m", "medevac.adapters.sources.nvml_child")


class NvmlChild:
    """A child process that reads NVML, started when it is first asked."""

    def __init__(self, command: Sequence[str] = _CHILD, deadline_s: float = DEADLINE_SECONDS) -> None:
        self._command = command
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self) -> tuple[Reading, ...]:
        """All GPUs now, none where there is no NVML. Raises `Unavailable` when the child ends or does not answer in
        time, `BadReply` when its answer cannot be read; the next call starts another.
        """
        process = self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(b"\n")
            process.stdin.flush()
            return msgspec.json.decode(self._line(process), type=tuple[Reading, ...])
        except BrokenPipeError as problem:
            self.close()
            raise Unavailable("NVML: the process that reads it has ended") from problem
        except msgspec.DecodeError as problem:
            self.close()
            raise BadReply(f"NVML: {problem}") from problem

    def close(self) -> None:
        """Kill the child. One that hangs in the driver cannot die yet; it is not waited for."""
        if self._process is None:
            return
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=1.0)
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        answer, deadline = b"", time.monotonic() + self._deadline_s
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
            part = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not part:
                self.close()
                why = "the process that reads it has ended" if ready else f"no answer within {self._deadline_s:g} s"
                raise Unavailable(f"NVML: {why}")
            answer += part
        return answer


def read_gpus(child: NvmlChild | None = None) -> tuple[Gpu, ...]:
    """The GPUs of this machine, none where there is no NVML. Raises as `NvmlChild.ask`."""
    child = child or NvmlChild()
    try:
        return tuple(Gpu(index=reading.index, uuid=reading.uuid, pci=reading.pci) for reading in child.ask())
    finally:
        child.close()


class NvmlSource:
    """`EccCounted` of each GPU whose counters can be read, every `period_s`; waits for ever where there is no NVML."""

    def __init__(
        self, node: str, *, period_s: float = 2.0, clock: Clock | None = None, child: NvmlChild | None = None
    ) -> None:
        self.name = f"{node}/nvml"
        self._node = node
        self._period_s = period_s
        self._clock = clock or SystemClock()
        self._child = child or NvmlChild()
        self._recent: deque[tuple[Reading, ...]] = deque(maxlen=LAST)

    def loads(self) -> dict[str, tuple[Load, ...]]:
        """How busy each GPU was in the last readings, by UUID."""
        found: dict[str, tuple[Load, ...]] = {}
        for reading in (one for readings in self._recent for one in readings if one.utilization is not None):
            load = Load(utilization=reading.utilization or 0.0, power_w=reading.power_w)
            found[reading.uuid] = (*found.get(reading.uuid, ()), load)
        return found

    async def follow(self, cursor: str) -> AsyncIterator[tuple[EccCounted, str]]:
        """The cursor is the time of the last reading; there is nothing to go back to."""
        try:
            while True:
                readings = await asyncio.to_thread(self._child.ask)
                at = self._clock.now()
                self._recent.append(readings)
                for reading in readings:
                    if event := self._counted(reading, at):
                        yield event, f"{at:.3f}"
                await self._clock.sleep(self._period_s)
        finally:
            self._child.close()

    def _counted(self, reading: Reading, at: float) -> EccCounted | None:
        if reading.sbe is None or reading.dbe is None:
            return None  # without ECC there is nothing to know, and 0 would be a claim
        return EccCounted(
            at=at,
            id=f"{self.name}:{reading.uuid}:{at:.3f}",
            source=self.name,
            node=self._node,
            gpu=reading.uuid,
            pci=reading.pci,
            sbe=reading.sbe,
            dbe=reading.dbe,
            remapped_rows=reading.remapped_rows or 0,
            temperature=reading.temperature,
        )
