"""The controller's lease: `controller.lease` in the state folder says who acts, and until when.

One controller acts at a time. Its lease is valid for 30 s and renewed every 5 s, so a stall of some seconds costs
nothing and a dead controller is followed within half a minute; at once, where it is seen to be dead: its process was
on this machine and is gone. Whoever finds the lease taken over raises `FencedOff` and stops acting. A missing or
unreadable lease counts as gone. The file is replaced by rename under a lock, so a reader sees a whole one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from medevac.ports.clock import Clock
from medevac.ports.errors import FencedOff, Unavailable

VALID_S = 30.0
RENEW_S = 5.0
_LOCK_TRIES = 200
_LOCK_PAUSE_S = 0.01


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process, told from all others: a pid means something within a boot and a pid namespace only."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    """Clock ticks since boot, as /proc says: a pid that was given again has another one."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says. `expires` is unix seconds; `token` rises with each change of owner and never falls."""

    owner: str
    expires: float
    token: int
    process: Process | None = None


class Lease:
    """One controller's side of the lease. All calls are quick local file work."""

    def __init__(self, path: str | Path, *, now: Callable[[], float] = time.time, valid_s: float = VALID_S) -> None:
        self.path = Path(path)
        self._now = now
        self._valid_s = valid_s
        self._process = this_process()
        self._mine: Held | None = None

    @property
    def token(self) -> int:
        """The fencing token of the lease we hold; 0 while we hold none."""
        return self._mine.token if self._mine else 0

    def take(self) -> int:
        """Become the one who acts; returns the fencing token. Raises `FencedOff` while another is, `Unavailable`."""
        with self._locked():
            held = read(self.path)
            if held and self._is_ours(held):
                return self._write(held.token)
            if held and not self._is_over(held):
                left = held.expires - self._now()
                raise FencedOff(f"{self.path}: {held.owner} holds the lease for {left:.0f} s more; wait, or stop it")
            # From the clock, so that a lease file that somebody removed does not start the count again.
            return self._write(max(held.token if held else 0, int(self._now())) + 1)

    def renew(self) -> None:
        """Hold it for another while. Raises `FencedOff` when it is not ours any more, `Unavailable` (try again)."""
        with self._locked():
            held = read(self.path)
            if self._mine is None or held is None or not self._is_ours(held):
                self._mine = None
                raise FencedOff(f"{self.path}: {held.owner if held else 'nobody'} holds the lease now; stop acting")
            self._write(held.token)

    def check(self) -> None:
        """Ask before each step on the world. Raises as `renew`; looks at the file only when time runs short."""
        if self._mine is None or self._now() > self._mine.expires - self._valid_s / 2:
            self.renew()

    def release(self) -> None:
        """Let the next one in at once; harmless when it is not ours."""
        with self._locked():
            held = read(self.path)
            if self._mine and held and self._is_ours(held):
                self._replace(msgspec.structs.replace(held, expires=0.0))
            self._mine = None

    async def keep(self, clock: Clock) -> None:
        """Renew for ever. Raises `FencedOff` when it was lost; a full disk is outlived until the lease runs out."""
        while True:
            await clock.sleep(RENEW_S)
            try:
                self.renew()
            except Unavailable as error:
                if self._mine is None or self._now() >= self._mine.expires:
                    raise FencedOff(f"{self.path}: the lease ran out, it could not be renewed: {error}") from error

    def _is_ours(self, held: Held) -> bool:
        return self._mine is not None and (held.token, held.process) == (self._mine.token, self._process)

    def _is_over(self, held: Held) -> bool:
        return is_over(held, self._now())

    def _write(self, token: int) -> int:
        owner = f"{self._process.host}:{self._process.pid}"
        held = Held(owner=owner, expires=self._now() + self._valid_s, token=token, process=self._process)
        self._replace(held)
        self._mine = held
        return token

    def _replace(self, held: Held) -> None:
        fresh = self.path.with_name(f".{self.path.name}.new")
        try:
            with fresh.open("wb") as fh:
                fh.write(msgspec.json.encode(held))
                fh.flush()
                os.fsync(fh.fileno())
            fresh.replace(self.path)
        except OSError as error:
            raise Unavailable(f"{self.path}: cannot be written: {error.strerror}") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else reads and replaces meanwhile. The lock is a file of its own: the lease itself is replaced."""
        try:
            fd = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"{self.path}: cannot be locked: {error.strerror}") from error
        try:
            _lock(fd, self.path)
            yield
        finally:
            os.close(fd)


def read(path: str | Path) -> Held | None:
    """The lease as it stands; None where it is missing or unreadable, which counts as gone."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(Path(path).read_bytes(), type=Held)
    return None


def this_process() -> Process:
    """This process's own identity."""
    return Process(
        host=socket.gethostname(),
        boot=_first_line("/proc/sys/kernel/random/boot_id"),
        namespace=_namespace(),
        pid=os.getpid(),
        started=_started(os.getpid()),
    )


def is_over(held: Held | None, now: float) -> bool:
    """Whether nobody leads by this lease any more: there is none, it has run out, or who held it is seen to be dead."""
    return held is None or held.expires <= now or (held.process is not None and is_gone(held.process))


def is_gone(process: Process) -> bool:
    """Whether it is seen to be dead: same boot, same pid namespace, and no such process. Otherwise one cannot know."""
    here = this_process()
    if not here.boot or not here.namespace or (here.boot, here.namespace) != (process.boot, process.namespace):
        return False
    return _started(process.pid) != process.started


def _started(pid: int) -> str:
    """Field 22 of /proc/<pid>/stat, "" where there is no such process or only its corpse (a zombie)."""
    fields = _first_line(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _lock(fd: int, path: Path) -> None:
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOCK_PAUSE_S)
    raise Unavailable(f"{path}: another process has locked it")
