"""What is out by our hand, in one file; each action counts once, however often it is repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from medevac.adapters.schedulers.local.files import Value, load, locked, make, save
from medevac.core.actions import GiveBack, HoldJob, Isolate, ReleaseJob

_REMEMBERED = 1000
"""Actions that are known to be done; a controller repeats only its last few after a crash."""


class Out(Value, frozen=True, kw_only=True):
    """A GPU (or a node) that gets no work."""

    node: str
    mode: str
    action: str


class Isolated(Value, frozen=True, kw_only=True):
    """The file: by GPU UUID or node name."""

    out: dict[str, Out] = {}
    done: tuple[str, ...] = ()


class Hold(Value, frozen=True, kw_only=True):
    """The hold on one job; `purpose` "" for none."""

    purpose: str = ""
    done: tuple[str, ...] = ()


class Isolation:
    """`isolated.json` of a state folder."""

    def __init__(self, state: Path) -> None:
        self._path = state / "isolated.json"

    def modes(self) -> dict[str, str]:
        """GPU UUID or node name -> "soft" or "hard"."""
        return {target: out.mode for target, out in (load(self._path, Isolated) or Isolated()).out.items()}

    def add(self, action: Isolate) -> None:
        """Take out; a soft order does not soften a hard one."""
        with self._changing() as now:
            if action.id in now.done:
                return
            target = action.gpu or action.node
            out = dict(now.out)
            if not (target in out and action.mode == "soft"):
                out[target] = Out(node=action.node, mode=action.mode, action=action.id)
            save(self._path, Isolated(out=out, done=_remember(now.done, action.id)))

    def remove(self, action: GiveBack) -> None:
        """Take the order back, if it was ours."""
        with self._changing() as now:
            if action.id in now.done:
                return
            target = action.gpu or action.node
            out = {name: value for name, value in now.out.items() if name != target}
            save(self._path, Isolated(out=out, done=_remember(now.done, action.id)))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Isolated]:
        make(self._path.parent)
        with locked(self._path.with_name(".isolated.lock"), wait=True):
            yield load(self._path, Isolated) or Isolated()


class Holds:
    """`hold.json` of one job."""

    def __init__(self, job_folder: Path) -> None:
        self._path = job_folder / "hold.json"

    def purpose(self) -> str:
        """Why it is held: recovery, person, or empty for not at all."""
        return (load(self._path, Hold) or Hold()).purpose

    def change(self, action: HoldJob | ReleaseJob) -> None:
        """Hold or release; a hold that waits for a person is not turned into one that does not."""
        with locked(self._path.with_name(".hold.lock"), wait=True):
            now = load(self._path, Hold) or Hold()
            if action.id in now.done:
                return
            wanted = action.purpose if isinstance(action, HoldJob) else ""
            if now.purpose == "person" and wanted == "recovery":
                wanted = "person"
            save(self._path, msgspec.structs.replace(now, purpose=wanted, done=_remember(now.done, action.id)))


def _remember(done: tuple[str, ...], action: str) -> tuple[str, ...]:
    return (*done, action)[-_REMEMBERED:]
