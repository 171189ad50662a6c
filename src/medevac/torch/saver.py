"""The process that writes a rank's checkpoints. It has no torch, starts in a moment, and outlives its trainer.

    python -m medevac.torch.saver FD

What the trainer captured is in shared memory; what it announced is written to the end, whatever becomes of the
trainer meanwhile. The saver ends by itself when the trainer has gone and all is written; where it is registered and the
trainer was killed, it stays with the newest checkpoint in its memory until a later one is sealed or nobody may come.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec
import xxhash

from medevac.core.seal import LATEST_CLEAN, SEAL, Seal, SealedFile, encode_seal, step_folder
from medevac.torch import lineage, memory
from medevac.torch.wire import Bye, Layout, Message, Piece, Reader, Save, Saved, Segment, send

MARK = "MEDEVAC_SAVER_MARK"
"""The environment's name for the folder of marks that spare processes when their job's attempt is ended."""

STAGING = ".saving-"
REPLACED = ".replaced-"
PARTS_SECONDS = 1800.0
"""How long the other ranks' parts are waited for: a slow shared disk, not a hang of the training."""

STALE_SECONDS = 3600.0
"""A staging folder untouched for so long belongs to nobody."""

STAY_SECONDS = 0.5
"""How often a saver that stays looks whether it is still of use."""

_LOOK_SECONDS = 0.05
_CHUNK = 8 << 20


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank's saver leaves beside its file: the file's hash, or why there is none."""

    file: SealedFile | None = None
    problem: str = ""


class Saver:
    """Writes what it is told, one after the other."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reader = Reader(link)
        self._slots: dict[int, tuple[int, mmap.mmap]] = {}
        self._layout: Layout | None = None
        self._last: Save | None = None
        self._offered: Save | None = None
        self._marks = Path(os.environ[MARK]) if os.environ.get(MARK) else None

    def run(self) -> None:
        """Until the trainer is gone and all is written. A thread listens: the trainer never waits for a disk."""
        threading.Thread(target=self._listen, daemon=True).start()
        in_order = False
        while (message := self._messages.get()) is not None:
            match message:
                case Segment():
                    self._map(message)
                case Layout():
                    self._layout = message
                case Save():
                    self._last = message
                    self._answer(message)
                case Bye():
                    in_order = True
                case Saved():
                    pass
        self._leave()
        if not in_order:
            self._stay()
        self._take_back()

    def _listen(self) -> None:
        while not self._reader.ended:
            for message in self._reader.read():
                self._messages.put(message)
        self._messages.put(None)

    def _map(self, segment: Segment) -> None:
        descriptor = self._reader.descriptors.pop(0)
        self._slots[segment.slot] = descriptor, mmap.mmap(descriptor, segment.size, prot=mmap.PROT_READ)

    def _answer(self, save: Save) -> None:
        began = time.monotonic()
        try:
            problem = self._save(save)
        except OSError as error:
            problem = f"{error.filename or save.folder}: {error.strerror or error}"
        told = Saved(step=save.step, slot=save.slot, problem=problem, seconds=time.monotonic() - began)
        with contextlib.suppress(OSError):
            send(self._link, told)

    def _save(self, save: Save) -> str:
        assert self._layout, "the layout comes before the first save"
        staging = Path(save.folder) / f"{STAGING}{step_folder(save.step)}.{save.tag}"
        staging.mkdir(parents=True, exist_ok=True)
        path = staging / self._layout.file
        try:
            self._write(path, save)
            part = check(path, self._layout.pieces, save.hashes)
        except OSError as error:
            part = Part(problem=f"{path}: {error.strerror or error}")
        if save.seal is None:
            leave(staging / f"{self._layout.file}.part", msgspec.json.encode(part))
            problem = part.problem
        else:
            problem = part.problem or finish(staging, save, self._layout.file, part)
        if not problem and part.file:
            self._offer(save, part.file)
        return problem

    def _offer(self, save: Save, file: SealedFile) -> None:
        """Let the next attempt read it from here. Not worth a failed save."""
        if self._marks and self._layout and save.slot in self._slots:
            descriptor, mapped = self._slots[save.slot]
            with contextlib.suppress(OSError):
                memory.offer(self._marks, descriptor, len(mapped), self._layout, save, file.hash)
                self._offered = save

    def _stay(self) -> None:
        """Hold what was offered as long as somebody may come for it, and nothing else."""
        save, layout, marks = self._offered, self._layout, self._marks
        if not (save and layout and marks):
            return
        for slot, (descriptor, mapped) in self._slots.items():
            if slot != save.slot:
                mapped.close()
                os.close(descriptor)
        while memory.wanted(marks, layout.file, Path(save.folder), save.step):
            time.sleep(STAY_SECONDS)

    def _take_back(self) -> None:
        if self._offered and self._layout and self._marks:
            memory.withdraw(self._marks, self._layout.file)

    def _write(self, path: Path, save: Save) -> None:
        """The file as DCP has it, synced. No bytes are copied in this process: the kernel takes them from the slot."""
        assert self._layout
        data = memoryview(self._slots[save.slot][1]) if self._layout.pieces else memoryview(b"")
        with path.open("wb") as out:
            for piece in self._layout.pieces:
                out.write(piece.head)
                out.write(data[piece.at : piece.at + piece.size])
                out.write(piece.tail)
            out.write(save.others)
            out.flush()
            os.fsync(out.fileno())

    def _leave(self) -> None:
        """Tell the others' savers that no more parts of this rank will come."""
        if self._last and self._last.seal is None and self._layout:
            with contextlib.suppress(OSError):
                leave(Path(self._last.folder) / f"{STAGING}{self._last.tag}.{self._layout.rank}.gone", b"")


def no_part(staging: Path, file: str, why: str) -> None:
    """Leave, for a saver that cannot, why the file of a rank will not come: rank 0 and its saver would wait for it."""
    with contextlib.suppress(OSError):
        staging.mkdir(parents=True, exist_ok=True)
        leave(staging / f"{file}.part", msgspec.json.encode(Part(problem=why)))


def check(path: Path, pieces: tuple[Piece, ...], hashes: tuple[str, ...]) -> Part:
    """Read the file back: each tensor as it was captured, and finite; the whole file's hash. Raises OSError."""
    whole = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as file:
        for piece, wanted in zip(pieces, hashes, strict=True):
            whole.update(file.read(len(piece.head)))
            problem, digest = _read_tensor(file, piece, whole)
            if digest != wanted:
                return Part(problem=f"{piece.name}: is not what was captured (hash {digest}, captured {wanted})")
            if problem:
                return Part(problem=problem)
            whole.update(file.read(len(piece.tail)))
            size += len(piece.head) + piece.size + len(piece.tail)
        while rest := file.read(_CHUNK):
            whole.update(rest)
            size += len(rest)
    return Part(file=SealedFile(size=size, hash=f"xxh3:{whole.hexdigest()}"))


def _read_tensor(file: object, piece: Piece, whole: xxhash.xxh3_128) -> tuple[str, str]:
    own, left, finite = xxhash.xxh3_64(), piece.size, True
    while left and (data := file.read(min(left, _CHUNK))):  # type: ignore[attr-defined]
        own.update(data)
        whole.update(data)
        finite = finite and is_finite(data, piece.dtype)
        left -= len(data)
    return ("" if finite else f"{piece.name}: has NaN or infinity, and is no state to go on from"), own.hexdigest()


_WORDS = {"float64": "<f8", "float32": "<f4", "float16": "<f2"}


def is_finite(data: bytes, dtype: str) -> bool:
    """False for floats with a NaN or an infinity among them. Without numpy nothing is looked at."""
    try:
        import numpy as np
    except ImportError:
        return True
    if dtype in _WORDS:
        return bool(np.isfinite(np.frombuffer(data, _WORDS[dtype])).all())
    if dtype == "bfloat16":
        return not bool((np.frombuffer(data, "<u2") & 0x7F80 == 0x7F80).any())
    return True


def finish(staging: Path, save: Save, own: str, part: Part) -> str:
    """Wait for the other ranks' files, seal all and put it in its place; the problem, "" for none. Raises OSError."""
    assert save.seal, "rank 0's saver finishes"
    parts = {own: part, **_others(staging, save, own)}
    problem = next((f"{name}: {one.problem}" for name, one in parts.items() if one.problem), "")
    if problem:
        shutil.rmtree(staging, ignore_errors=True)
        return problem
    leave(staging / ".metadata", save.metadata)
    files = {name: one.file for name, one in parts.items() if one.file}
    size, digest = lineage.hash_file(staging / ".metadata")
    files[".metadata"] = SealedFile(size=size, hash=f"xxh3:{digest}")
    for path in staging.glob("*.part"):
        path.unlink()
    made: Seal = msgspec.structs.replace(save.seal, at=time.time(), files=files)
    leave(staging / SEAL, encode_seal(made))
    lineage.carry_doubts(Path(save.folder), save.seal.at, made)
    publish(staging, Path(save.folder) / step_folder(save.step))
    _afterwards(save)
    return ""


def _others(staging: Path, save: Save, own: str) -> dict[str, Part]:
    found: dict[str, Part] = {}
    wanted = {rank: f"__{rank}_0.distcp" for rank in save.writers}
    missing = {rank: name for rank, name in wanted.items() if name != own}
    deadline = time.monotonic() + PARTS_SECONDS
    while missing:
        for rank, name in list(missing.items()):
            # In this order: the mark of a rank that ended is written after all of its parts.
            gone = (staging.parent / f"{STAGING}{save.tag}.{rank}.gone").exists()
            with contextlib.suppress(FileNotFoundError, ValueError):
                found[name] = msgspec.json.decode((staging / f"{name}.part").read_bytes(), type=Part)
            if name not in found and (gone or time.monotonic() > deadline):
                found[name] = Part(problem=f"rank {rank} {'ended before it was saved' if gone else 'is too slow'}")
            if name in found:
                del missing[rank]
        if missing:
            time.sleep(_LOOK_SECONDS)
    return found


def _afterwards(save: Save) -> None:
    """Old checkpoints go; without a supervisor the newest one is pointed at. Neither is worth a failed save."""
    folder = Path(save.folder)
    with contextlib.suppress(OSError):
        if save.keep:
            lineage.prune(folder, save.keep)
        if save.point:
            fresh = folder / f".{LATEST_CLEAN}.{os.getpid()}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(step_folder(save.step))
            fresh.replace(folder / LATEST_CLEAN)


def leave(path: Path, data: bytes) -> None:
    """Write a small file by rename, durable on return. Raises OSError."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with staged.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    staged.replace(path)
    sync_folder(path.parent)


def publish(staging: Path, target: Path) -> None:
    """Put a finished folder in its place; one of the same step, of an attempt that was given up, is replaced."""
    old = target.with_name(f"{REPLACED}{target.name}.{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what killed saves left: at an attempt's start, by rank 0. A saver that still writes is left alone."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name.startswith((STAGING, REPLACED)) and time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True) if path.is_file() else None


def sync_folder(path: Path) -> None:
    """Make the names in a folder outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> int:
    """Serve the trainer at the other end of the descriptor."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the trainer: the saver ends with its work
    with contextlib.suppress(OSError):
        os.nice(5)
    try:
        Saver(socket.socket(fileno=int(sys.argv[1]))).run()
    finally:
        if mark := os.environ.get(MARK):
            (Path(mark) / str(os.getpid())).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
