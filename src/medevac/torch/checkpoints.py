"""Checkpoints that cost the training one copy, and that are whole, sealed and as captured, or not there at all."""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import torch
import torch.distributed as dist

from medevac.core.events import SealRank
from medevac.core.seal import Seal, step_folder
from medevac.torch import lineage, memory
from medevac.torch.host_copy import Slot, capture, offsets
from medevac.torch.layout import (
    CannotSaveError,
    Chunk,
    Part,
    chunks_of,
    encode_others,
    file_name,
    metadata,
    parts_of,
    shell,
    unsavable,
)
from medevac.torch.lineage import Keep
from medevac.torch.place import Place, here
from medevac.torch.reader import InMemory
from medevac.torch.saver import STAGING, no_part
from medevac.torch.saver_link import SaverLink
from medevac.torch.state import Stateful, TrainingState
from medevac.torch.wire import Layout, Piece, Save, Saved, Segment

log = logging.getLogger("medevac.torch")
T = TypeVar("T")

GPU_HOURS_BETWEEN_FAILURES = 50_000.0
"""419 unexpected interruptions of 16,384 GPUs in 54 days (arXiv 2407.21783, table 5)."""

FIRST_AUTO_S = 60.0
SAVE_SECONDS = 1800.0
ENDING_SECONDS = 10.0
"""How long an idle saver may take to leave; it is only waited for so that it is not left behind in a test."""


class _Plan(msgspec.Struct, kw_only=True):
    """What all ranks write, agreed once; `mine` is what this rank's slots hold."""

    signature: object
    tag: str
    chunks: dict[int, list[Chunk]]
    places: list[Place]
    offsets: list[int]
    size: int

    @property
    def writers(self) -> tuple[int, ...]:
        return tuple(sorted({0} | {rank for rank, chunks in self.chunks.items() if chunks}))


class CheckpointManager:
    """Saves and loads the state of `model`, `optimizer` and `extra` (a name and a thing with a state_dict each).

    `every_steps` or `interval`: when a checkpoint is due; seconds, or "auto" (docs/torch.md derives it). `overlap`:
    what a due one does while the one before is still being written, "drop" it or "wait"; it never tears. `keep`: how
    many clean ones stay, 0 for all; or a `lineage.Keep`, by age and spacing too.

    On all ranks alike; where a rank has nothing to write it costs nothing.
    """

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        folder: str | os.PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        extra: Mapping[str, Stateful] | None = None,
        every_steps: int | None = None,
        interval: float | Literal["auto"] = 300.0,
        overlap: Literal["drop", "wait"] = "drop",
        slots: int = 2,
        keep: int | Keep = 3,
        mtbf_s: float | None = None,
        job: str = "",
        attempt: int = 0,
        place: Place | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.parent: int | None = None
        """The step that the next checkpoint continues: loaded or captured last."""
        self.stall_s = self.save_s = 0.0
        """How long the last capture held the training up, and how long the last save took to be sealed."""
        self.failed: dict[int, str] = {}
        """Why checkpoints of this process were not saved, by step."""
        self.sealed: int | None = None
        """The newest step that this rank's saver has answered for (rank 0: that is sealed)."""
        self.loaded_from: Literal["", "memory", "disk"] = ""
        """Where the last load took its tensors from."""
        self.state = TrainingState(model, optimizer, extra or {})
        self._place = place or here()
        self._job, self._attempt = job, attempt
        self._every_steps, self._interval, self._overlap = every_steps, interval, overlap
        self._mtbf_s = mtbf_s or GPU_HOURS_BETWEEN_FAILURES * 3600 / self._place.world
        self._wanted_slots, self._keep = max(slots, 1), Keep(count=keep) if isinstance(keep, int) else keep
        self._plan: _Plan | None = None
        self._slots: dict[int, Slot] = {}
        self._kept: int | None = None
        self._held: tuple[Path, dict[str, InMemory]] | None = None
        self._busy: dict[int, int] = {}
        self._link: SaverLink | None = None
        self._saved_at = time.monotonic()
        self._asked: int | None = None
        self._parents: dict[int, int | None] = {}
        self._captured: deque[tuple[int, float]] = deque(maxlen=self._wanted_slots + 1)

    # --- when -------------------------------------------------------------------------------------------------------

    def due(self, step: int) -> bool:
        """Whether a checkpoint of `step` is due now and there is room for it: for rank 0 to decide and to tell."""
        self.poll()
        if self._every_steps is not None:
            due = step % self._every_steps == 0
        else:
            due = time.monotonic() - self._saved_at >= self.interval_s()
        if due and self._overlap == "drop" and len(self._busy) >= self._wanted_slots:
            log.warning("checkpoint of step %d dropped: the ones before it are still being written", step)
            return False
        return due

    def interval_s(self) -> float:
        """Seconds between checkpoints, as configured or as computed from what was measured so far."""
        if self._interval != "auto":
            return self._interval
        if not self.save_s:
            return FIRST_AUTO_S
        return optimal_interval(self.stall_s, self.save_s, self._mtbf_s)

    # --- saving -----------------------------------------------------------------------------------------------------

    def save(self, step: int, *, wait: bool = False, ecc: Sequence[int | None] = ()) -> bool:
        """Capture the state as the checkpoint of `step`; with `wait` until it is on disk. True if so far all is well.

        On all ranks together. A machine that refuses memory or disk costs the checkpoint, not the training.
        Raises TypeError, on all ranks, where at the first save the state of rank 0 cannot be pickled.
        """
        began = time.monotonic()
        try:
            self._capture(step, ecc)
        except OSError as problem:
            self._fail(step, f"{problem.filename or self.folder}: {problem.strerror or problem}")
        except CannotSaveError as problem:
            self._fail(step, str(problem))
        self._saved_at = time.monotonic()
        self.stall_s = self._saved_at - began
        return (self.wait() if wait else True) and step not in self.failed

    def _capture(self, step: int, ecc: Sequence[int | None]) -> None:
        flat, mapping = self.state.flat()
        parts, others = parts_of(flat, self._place.rank)
        plan = self._agree(flat, parts, others)
        self._asked = step
        self._captured.append((step, time.time()))
        parent, self.parent = self.parent, step
        self._parents = {step: parent}
        if self._place.rank not in plan.writers:
            return
        link, slot = self._ready(plan, parts)
        self._busy[slot.number] = step
        blob, places = encode_others(others)
        save = Save(
            step=step,
            slot=slot.number,
            folder=str(self.folder),
            tag=plan.tag,
            hashes=(),
            others=blob,
            metadata=metadata(plan.chunks, places, mapping) if self._place.rank == 0 else b"",
            seal=self._draft(plan, step, parent, ecc) if self._place.rank == 0 else None,
            writers=plan.writers,
            keep=None if self._keep == Keep(count=0) else self._keep,
            point=not self._job,
        )

        def announce(hashes: list[str]) -> None:
            try:
                link.send(msgspec.structs.replace(save, hashes=tuple(hashes)))
            except OSError:
                self._fail(step, "its saver is gone")

        capture([part.local for part in parts], plan.offsets, slot, announce)

    def _draft(self, plan: _Plan, step: int, parent: int | None, ecc: Sequence[int | None]) -> Seal:
        counts = [*ecc, *[None] * len(plan.places)]
        ranks: list[SealRank] = [place.sealed(counts[place.rank]) for place in plan.places]
        draft = Seal(job=self._job, attempt=self._attempt, step=step, parent=parent, ranks=tuple(ranks))
        return msgspec.structs.replace(draft, at=time.time())  # of the capture, until it is sealed

    def _agree(self, flat: Mapping[str, Any], parts: Sequence[Part], others: Mapping[str, Any]) -> _Plan:
        """Who writes what: gathered once, and again when the state has got another shape."""
        signature = [(name, tuple(value.shape), value.dtype) for name, value in flat.items() if torch.is_tensor(value)]
        if self._plan and self._plan.signature == signature:
            return self._plan
        gathered = self._gathered((self._place, chunks_of(parts), secrets.token_hex(4), unsavable(others)))
        if problem := next(filter(None, (problem for *_, problem in gathered)), ""):
            raise TypeError(problem)
        sizes = [part.local.numel() * part.local.element_size() for part in parts]
        at, size = offsets(sizes)
        self._let_go()
        self._plan = _Plan(
            signature=signature,
            tag=f"{self._attempt}-{gathered[0][2]}",
            chunks={place.rank: chunks for place, chunks, *_ in gathered},
            places=[place for place, *_ in gathered],
            offsets=at,
            size=size,
        )
        return self._plan

    def _ready(self, plan: _Plan, parts: Sequence[Part]) -> tuple[SaverLink, Slot]:
        """The saver, and a slot that it is done with. Raises OSError."""
        if self._link is None or self._link.gone:
            self._let_go()
            self._link = SaverLink(self.folder, self._place.rank)
            self._link.send(_layout(plan, parts, self._place.rank))
        deadline = time.monotonic() + SAVE_SECONDS
        while len(self._busy) >= self._wanted_slots:
            self.poll(1.0)
            if self._link.gone or time.monotonic() > deadline:
                self._let_go()
                raise OSError(f"{self.folder}: the saver of rank {self._place.rank} does not finish")
        free = [n for n in range(self._wanted_slots) if n not in self._busy]
        number = min(free, key=lambda n: n == self._kept)  # the newest one in memory stays as long as it can
        if number not in self._slots:
            slot = Slot(f"medevac-{self._job}-{self._place.rank}-{number}", number, plan.size)
            self._slots[number] = slot
            self._link.send(Segment(slot=number, size=slot.size), slot.descriptor)
        return self._link, self._slots[number]

    def _let_go(self, wait_s: float = 0.0) -> None:
        """Start over with a new saver; the old one finishes what it was told."""
        if self._link:
            self.poll()
            self._link.close(wait_s)
        for step in self._busy.values():
            log.info("checkpoint of step %d is left to its saver", step)
        for slot in self._slots.values():
            slot.close()
        self._link, self._slots, self._busy, self._kept = None, {}, {}, None

    def captured_since(self, at: float) -> list[int]:
        """Steps captured from `at` on (unix seconds) that may still be on their way to disk; on all ranks alike."""
        return [step for step, captured_at in self._captured if captured_at >= at]

    # --- waiting ----------------------------------------------------------------------------------------------------

    def poll(self, wait_s: float = 0.0) -> None:
        """Take note of what the saver has finished."""
        if self._link is None:
            return
        for reply in self._link.replies(wait_s):
            self._note(reply)
        if self._link.gone:
            for step in self._busy.values():
                self._fail(step, "its saver ended before it was written")
            self._busy = {}

    def _note(self, reply: Saved) -> None:
        self._busy.pop(reply.slot, None)
        self.save_s = reply.seconds
        if reply.problem:
            self._fail(reply.step, reply.problem, told=True)
        else:
            self.sealed, self._kept = reply.step, reply.slot

    def _fail(self, step: int, why: str, *, told: bool = False) -> None:
        """`told`: this rank's saver lives, and has said so to the others."""
        self.failed[step] = why
        if self.parent == step:
            self.parent = self._parents.get(step)
        self._busy = {slot: at for slot, at in self._busy.items() if at != step}
        log.error("checkpoint of step %d not saved: %s", step, why)
        if self._plan and self._place.rank and not told:
            no_part(self.folder / f"{STAGING}{step_folder(step)}.{self._plan.tag}", file_name(self._place.rank), why)

    def wait(self, seconds: float = SAVE_SECONDS) -> bool:
        """Until all that was captured is on disk, or the time is up. False if something of it is not."""
        deadline = time.monotonic() + seconds
        while self._busy and time.monotonic() < deadline:
            self.poll(0.5)
        return not self._busy and self._asked not in self.failed

    def close(self, wait_s: float = SAVE_SECONDS) -> None:
        """Finish what is being written, and end the saver."""
        self.wait(wait_s)
        self._let_go(wait_s=ENDING_SECONDS)

    # --- loading ----------------------------------------------------------------------------------------------------

    def newest_clean(self, before_step: int | None = None) -> Path | None:
        """The step folder to resume from (see `medevac.torch.lineage`)."""
        return lineage.newest_clean(self.folder, before_step)

    def verify(self, path: Path) -> str:
        """Compare a checkpoint with its seal, each rank its share of it; the first problem in words.

        What savers on this machine hold of it is compared instead, and loaded next, where all ranks find all of it
        there as it was captured. On all ranks together; all get the same answer, or OSError where one cannot read it.
        """
        try:
            seal = next(known.seal for known in lineage.survey(path.parent) if known.path.name == path.name)
        except (OSError, StopIteration):
            seal = None
        held = self._in_memory(path, seal) if seal else {}
        seen = self._gathered((bool(held), bool(seal)))
        held = held if all(one for one, _ in seen) else {}
        self._held = (path, held) if held else None
        if any(sealed for _, sealed in seen):
            return self._compared(path, seal, held)
        return f"{path}: has no seal that can be read"

    def _compared(self, path: Path, seal: Seal | None, held: Mapping[str, InMemory]) -> str:
        found, unread = "", "" if seal else f"{path} is not to be seen by {self._place}"
        if seal:
            rest = {name: file for name, file in seal.files.items() if name not in held}
            left = msgspec.structs.replace(seal, files=rest)
            try:
                found = lineage.verify(path, left, part=self._place.rank, parts=self._place.world)
            except OSError as problem:
                unread = f"{problem.filename}: {problem.strerror} ({self._place})"
        told = self._gathered((found, unread))
        if problems := [why for _, why in told if why]:
            raise OSError(problems[0])
        return next(filter(None, (why for why, _ in told)), "")

    def _in_memory(self, path: Path, seal: Seal) -> dict[str, InMemory]:
        """All data files as savers hold them, this rank's share of them compared; empty where one of them is not."""
        held = memory.held(path, seal, memory.marks_of()) or {}
        if not all(one.verify(self._place.rank, self._place.world) for one in held.values()):
            log.warning("%s: the copy in memory is not what was captured: the files are read", path)
            return {}
        return {name: InMemory(one, seal.files[name].size) for name, one in held.items()}

    def _gathered(self, mine: T) -> list[T]:
        found: list[Any] = [mine] * self._place.world
        if self._place.world > 1:
            dist.all_gather_object(found, mine)
        return found

    def load(self, path: Path) -> int:
        """Load a step folder into the state, in place; returns its step. On all ranks together.

        Raises what DCP raises for a checkpoint of another model, on all ranks if it is raised on one.
        """
        held = self._held[1] if self._held and self._held[0] == path else None
        self._held = None
        problem = f"on rank {self._place.rank}"
        try:
            self.state.load(path, held)
            problem = ""
        finally:
            others = next(filter(None, self._gathered(problem)), "")
        if others:
            raise RuntimeError(f"{path} cannot be loaded {others}")
        step = int(path.resolve().name.removeprefix("step_"))
        self.parent = step
        self.loaded_from = "memory" if held else "disk"
        self._saved_at = time.monotonic()
        return step


def _layout(plan: _Plan, parts: Sequence[Part], rank: int) -> Layout:
    pieces = []
    for part, chunk, at in zip(parts, plan.chunks[rank], plan.offsets, strict=True):
        around = shell(tuple(part.local.shape), part.local.dtype)
        size = part.local.numel() * part.local.element_size()
        pieces.append(Piece(name=chunk.name, dtype=chunk.dtype, at=at, size=size, head=around.head, tail=around.tail))
    return Layout(rank=rank, file=file_name(rank), pieces=tuple(pieces))


def optimal_interval(stall_s: float, save_s: float, mtbf_s: float) -> float:
    """Seconds between checkpoints that lose the least: sqrt(2 x stall x time between failures), never less than a
    save takes. Save time and detection delay shift what is lost, not where the least of it is (docs/torch.md).
    """
    return max(math.sqrt(2 * stall_s * mtbf_s), 1.5 * save_s, 1.0)
