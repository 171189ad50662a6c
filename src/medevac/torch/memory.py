"""The newest checkpoint in the memory of the process that wrote it: where the next attempt loads from first.

A saver offers what it has written as a small file beside its registration. Taken is only what the seal on disk names,
and only after its hashes: the offer says which bytes the saver holds, the seal says whether they are the checkpoint.
Needs no torch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import xxhash

from medevac.core.seal import SEAL, Seal, decode_seal, step_of
from medevac.torch.wire import Layout, Save

SUFFIX = ".memory"
_LEASE = "controller.lease"
_CHECKED = 16


class Region(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tensor's bytes: where they begin in the file and in the memory, how many, and their xxh3_64."""

    in_file: int
    at: int
    size: int
    hash: str


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of process `pid`, which began at `started` (ticks since boot), that holds the tensors of `file`.

    `hash` is the seal's for that file; `others` is what follows the tensors in it.
    """

    pid: int
    started: str
    descriptor: int
    size: int
    step: int
    file: str
    hash: str
    regions: tuple[Region, ...]
    others: bytes = b""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Until when a controller acts."""

    expires: float


def offer(marks: Path, descriptor: int, size: int, layout: Layout, save: Save, sealed: str) -> None:
    """Say what this process holds, in place of who did before. Raises OSError."""
    regions, end = [], 0
    for piece, digest in zip(layout.pieces, save.hashes, strict=True):
        regions.append(Region(in_file=end + len(piece.head), at=piece.at, size=piece.size, hash=digest))
        end += len(piece.head) + piece.size + len(piece.tail)
    made = Offer(
        pid=os.getpid(),
        started=started(os.getpid()),
        descriptor=descriptor,
        size=size,
        step=save.step,
        file=layout.file,
        hash=sealed,
        regions=tuple(regions),
        others=save.others,
    )
    body = msgspec.msgpack.encode(made)
    staged = marks / f".{layout.file}.{os.getpid()}"
    staged.write_bytes(xxhash.xxh3_128_digest(body) + body)
    staged.replace(marks / f"{layout.file}{SUFFIX}")


def withdraw(marks: Path, file: str) -> None:
    """Take our own offer back."""
    path = marks / f"{file}{SUFFIX}"
    made = read(path)
    if made and made.pid == os.getpid():
        path.unlink(missing_ok=True)


def offers(marks: Path) -> dict[str, Offer]:
    """What living savers hold, by file name. What cannot be read is not there."""
    found = {}
    with contextlib.suppress(OSError):
        for path in marks.glob(f"*{SUFFIX}"):
            made = read(path)
            if made and made.file == path.name.removesuffix(SUFFIX) and started(made.pid) == made.started:
                found[made.file] = made
    return found


def read(path: Path) -> Offer | None:
    """An offer as it was written, None for anything else."""
    try:
        data = path.read_bytes()
        body = data[_CHECKED:]
        return msgspec.msgpack.decode(body, type=Offer) if xxhash.xxh3_128_digest(body) == data[:_CHECKED] else None
    except (OSError, msgspec.DecodeError):
        return None


class Held:
    """The memory of one offer, mapped for reading."""

    def __init__(self, made: Offer) -> None:
        """Raises OSError when the saver is gone, ValueError for memory of another size."""
        self.offer = made
        descriptor = os.open(f"/proc/{made.pid}/fd/{made.descriptor}", os.O_RDONLY)
        try:
            if os.fstat(descriptor).st_size != made.size or started(made.pid) != made.started:
                raise ValueError("not the memory that was offered")
            self._memory = mmap.mmap(descriptor, made.size, access=mmap.ACCESS_COPY)
        finally:
            os.close(descriptor)
        self._regions = {region.in_file: region for region in made.regions}

    def verify(self, part: int, parts: int) -> bool:
        """Whether every `parts`-th tensor from `part` is as it was captured."""
        view = memoryview(self._memory)
        return all(
            xxhash.xxh3_64_hexdigest(view[one.at : one.at + one.size]) == one.hash
            for one in self.offer.regions[part::parts]
        )

    def tensor(self, in_file: int, size: int) -> memoryview:
        """The bytes of the tensor that begins there in the file. Raises KeyError where none does."""
        region = self._regions[in_file]
        if region.size != size:
            raise KeyError(in_file)
        return memoryview(self._memory)[region.at : region.at + size]

    def rest(self, in_file: int, size: int, end: int) -> bytes:
        """Bytes behind the tensors, in a file that is `end` long."""
        at = in_file - (end - len(self.offer.others))
        if at < 0:
            raise KeyError(in_file)
        return self.offer.others[at : at + size]


def held(path: Path, seal: Seal, marks: Path | None) -> dict[str, Held] | None:
    """All data files of this sealed checkpoint in savers' memory; None if one of them is not."""
    if marks is None:
        return None
    known, found = offers(marks), {}
    for name, file in seal.files.items():
        if name.startswith("."):
            continue
        made = known.get(name)
        if made is None or made.step != step_of(path.name) or made.hash != file.hash:
            return None
        try:
            found[name] = Held(made)
        except (OSError, ValueError):
            return None
    return found or None


def marks_of(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where a job's savers are registered; None without a supervisor."""
    state, job = environ.get("MEDEVAC_STATE_DIR"), environ.get("MEDEVAC_JOB_ID")
    return Path(state) / "jobs" / job / "savers" if state and job and Path(state).is_dir() else None


def wanted(marks: Path, file: str, folder: Path, step: int) -> bool:
    """Whether an attempt may still come for this offer of ours: a controller acts, nobody has offered that file anew,
    and no later checkpoint is sealed.
    """
    made = read(marks / f"{file}{SUFFIX}")
    return bool(made and made.pid == os.getpid()) and _watched(marks.parents[2]) and not _later(folder, step)


def _watched(state: Path) -> bool:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((state / _LEASE).read_bytes(), type=Lease).expires > time.time()
    return False


def _later(folder: Path, step: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        for name in os.listdir(folder):  # noqa: PTH208 - names are enough
            number = step_of(name)
            if number is not None and number > step:
                return decode_seal((folder / name / SEAL).read_bytes()).step == number
    return False


def started(pid: int) -> str:
    """When a process began, in ticks since boot (field 22 of /proc/<pid>/stat); "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
