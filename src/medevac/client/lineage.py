"""Which sealed checkpoints of a folder are doubted, and the verdicts that say so. Needs msgspec only.

A checkpoint is clean when its seal can be read, no newer verdict of `medevac-lineage.jsonl` doubts it, and none doubts
one that it continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from medevac.core.seal import LINEAGE, SEAL, CheckpointState, Seal, Verdict, decode_seal, step_folder, step_of

WRITER = "medevac.client"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed checkpoint and what is thought of it."""

    step: int
    path: Path
    seal: Seal
    state: CheckpointState = "clean"
    why: str = ""


def survey(folder: Path) -> list[Known]:
    """All sealed checkpoints of the folder, oldest step first. Raises OSError."""
    verdicts = read_verdicts(folder)
    found: dict[int, Known] = {}
    for step, path, seal in sorted(_sealed(folder), key=lambda one: one[0]):
        verdict = verdicts.get(step)
        parent = found.get(seal.parent) if seal.parent is not None else None
        state: CheckpointState = "clean"
        why = ""
        if verdict and verdict.at >= seal.at:
            state, why = verdict.state, verdict.why
        elif parent and parent.state != "clean":
            state, why = "suspect", f"it continues step {parent.step}"
        found[step] = Known(step=step, path=path, seal=seal, state=state, why=why)
    return list(found.values())


def read_verdicts(folder: Path) -> dict[int, Verdict]:
    """The last verdict on each step; lines that are none are passed over."""
    found = {}
    try:
        lines = (folder / LINEAGE).read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    for line in lines:
        with contextlib.suppress(ValueError):
            verdict = msgspec.json.decode(line, type=Verdict)
            found[verdict.step] = verdict
    return found


def judge(folder: Path, steps: Iterable[int], state: CheckpointState, why: str) -> None:
    """Append a verdict on each step, durable on return. Raises OSError."""
    lines = [msgspec.json.encode(Verdict(step=step, state=state, why=why, at=time.time(), by=WRITER)) for step in steps]
    if not lines:
        return
    fd = os.open(folder / LINEAGE, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks; O_APPEND alone keeps lines apart
            fcntl.flock(fd, fcntl.LOCK_EX)
        end = os.fstat(fd).st_size
        torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
        os.write(fd, (b"\n" if torn else b"") + b"".join(line + b"\n" for line in lines))
        os.fsync(fd)
    finally:
        os.close(fd)


def keep_doubts(folder: Path, known: list[Known], going: set[int]) -> None:
    """Write down what would be forgotten with the ones that go, or that others of the same step replace: doubt that a
    staying one only inherits. Raises OSError.
    """
    heirs = [one for one in known if one.step not in going and one.state != "clean" and one.seal.parent in going]
    for one in heirs:
        judge(folder, [one.step], one.state, one.why)


def carry_doubts(folder: Path, captured_at: float, made: Seal) -> None:
    """Before `made` is put in its place. A verdict that came while it was being written is on it, so it is given again,
    now later than the seal; one on a checkpoint that it replaces lives on in those that continued that. Raises OSError.
    """
    told = read_verdicts(folder).get(made.step)
    if told and told.state != "clean" and captured_at <= told.at < made.at:
        judge(folder, [made.step], told.state, told.why)
    if (folder / step_folder(made.step)).exists():
        keep_doubts(folder, survey(folder), {made.step})


def _sealed(folder: Path) -> Iterable[tuple[int, Path, Seal]]:
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        step = step_of(path.name)
        if step is None:
            continue
        with contextlib.suppress(OSError, ValueError):
            seal = decode_seal((path / SEAL).read_bytes())
            if seal.step == step:
                yield step, path, seal
