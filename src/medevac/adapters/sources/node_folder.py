"""A node as files: `env.jsonl` (power, fans, inlets) and `gpu<i>.json` (error counters), as simulated nodes are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from medevac.adapters.clock import SystemClock
from medevac.adapters.sources.tail import Line, Tail
from medevac.core.events import EccCounted, EnvironmentSeen
from medevac.core.stacks import Load
from medevac.ports.clock import Clock
from medevac.ports.errors import Unavailable

POLL_SECONDS = 0.25
Seen: TypeAlias = EnvironmentSeen | EccCounted


class _Sensor(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    rack: str
    component: Literal["psu", "fan", "inlet", "feed"]
    state: str
    text: str = ""
    node: str = ""
    feed: str = ""


class _Gpu(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    pci: str = ""
    sbe: int = 0
    dbe: int = 0
    remapped_rows: int = 0
    temperature: float | None = None


class _Busy(msgspec.Struct, frozen=True, kw_only=True):
    uuid: str
    utilization: float | None = None
    power_w: float | None = None


class NodeFolder:
    """Sensors as they change; counters of each GPU when they change and every `period_s`.

    `unread` counts what could not be read: it is no reading, neither good nor bad.
    """

    def __init__(self, folder: Path, node: str, *, period_s: float = 2.0, clock: Clock | None = None) -> None:
        self.name = f"{node}/folder"
        self.unread = 0
        self._folder = folder
        self._node = node
        self._period_s = period_s
        self._clock = clock or SystemClock()
        self._told: dict[str, tuple[_Gpu, float]] = {}

    def loads(self) -> dict[str, tuple[Load, ...]]:
        """How busy each GPU is now, by UUID, where its file says so (percent, Watts)."""
        found: dict[str, tuple[Load, ...]] = {}
        for path in sorted(self._folder.glob("gpu[0-9]*.json")):
            try:
                gpu = msgspec.json.decode(path.read_bytes(), type=_Busy)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue
            if gpu.utilization is not None:
                found[gpu.uuid] = (Load(utilization=gpu.utilization, power_w=gpu.power_w),)
        return found

    async def follow(self, cursor: str) -> AsyncIterator[tuple[Seen, str]]:
        """The cursor is the place in `env.jsonl`."""
        if not self._folder.is_dir():
            raise Unavailable(f"{self._folder}: no such folder; a node's files are looked for there")
        tail = Tail(self._folder / "env.jsonl", cursor)
        try:
            while True:
                for line in tail.read():
                    cursor = line.cursor
                    if sensed := self._sensed(line):
                        yield sensed, cursor
                for counted in self._counted():
                    yield counted, cursor
                await self._clock.sleep(POLL_SECONDS)
        except OSError as problem:
            raise Unavailable(f"{problem.filename or self._folder}: {problem.strerror}") from problem
        finally:
            tail.close()

    def _sensed(self, line: Line) -> EnvironmentSeen | None:
        try:
            sensor = msgspec.json.decode(line.text, type=_Sensor)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.unread += 1
            return None
        return EnvironmentSeen(
            at=sensor.at,
            seen_at=self._clock.now(),
            id=f"{self._node}/env:{line.key}",
            source=self.name,
            rack=sensor.rack,
            component=sensor.component,
            state=sensor.state,
            node=sensor.node,
            feed=sensor.feed,
            text=sensor.text,
        )

    def _counted(self) -> Iterator[EccCounted]:
        for path in sorted(self._folder.glob("gpu[0-9]*.json")):
            gpu, now = self._gpu(path), self._clock.now()
            if gpu is None:
                continue
            known, told_at = self._told.get(path.name, (None, 0.0))
            if gpu != known or now - told_at >= self._period_s:
                self._told[path.name] = gpu, now
                yield self._event(gpu, now)

    def _gpu(self, path: Path) -> _Gpu | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Gpu)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.unread += 1
            return None

    def _event(self, gpu: _Gpu, now: float) -> EccCounted:
        return EccCounted(
            at=now,
            id=f"{self._node}/ecc:{gpu.uuid}:{now:.3f}",
            source=self.name,
            node=self._node,
            gpu=gpu.uuid,
            pci=gpu.pci,
            sbe=gpu.sbe,
            dbe=gpu.dbe,
            remapped_rows=gpu.remapped_rows,
            temperature=gpu.temperature,
        )
