"""The files of a job's checkpoint folder: the seal of one checkpoint, the verdicts on all of them, and their names.

<checkpoint_dir>/step_00000040/<the job's own files>
<checkpoint_dir>/step_00000040/medevac.json     the seal, renamed into place last
<checkpoint_dir>/medevac-lineage.jsonl          verdicts, one a line, appended
<checkpoint_dir>/latest_clean                   relative symlink to a step folder, replaced by rename
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from medevac.core.events import SealRank

SEAL = "medevac.json"
LINEAGE = "medevac-lineage.jsonl"
LATEST_CLEAN = "latest_clean"

CheckpointState: TypeAlias = Literal["clean", "suspect", "condemned"]

_STEP = re.compile(r"step_([0-9]{8,})")
_HASH = re.compile(r"xxh3:(?:[0-9a-f]{16}|[0-9a-f]{32})|sha256:[0-9a-f]{64}")


class SealedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and content hash of one file: "xxh3:<16 or 32 hex>" (XXH3 of 64 or 128 bits) or "sha256:<64 hex>"."""

    size: int
    hash: str


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """Who made a checkpoint, from what, and what its files hold.

    `at` is unix seconds; `parent` the step that the attempt had resumed from or sealed before, None for the first.
    `files` are named relative to the step folder, with "/" between folders.
    """

    job: str
    attempt: int
    step: int
    parent: int | None = None
    at: float = 0.0
    ranks: tuple[SealRank, ...] = ()
    files: dict[str, SealedFile] = {}
    schema: Literal[1] = 1


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the lineage file. `event` is the id of what caused it, `at` unix seconds.

    `by` names the store that wrote it, empty for a person's own line.
    """

    step: int
    state: CheckpointState
    why: str = ""
    event: str = ""
    at: float = 0.0
    by: str = ""


def step_folder(step: int) -> str:
    """The name of a step's folder: step_ and the step in 8 digits (more where it needs more)."""
    return f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder's name stands for, None for any other name."""
    match = _STEP.fullmatch(name)
    step = int(match[1]) if match else -1
    return step if step_folder(step) == name else None


def encode_seal(seal: Seal) -> bytes:
    """The seal as the bytes of its file; equal seals give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(seal, order="sorted"), indent=1) + b"\n"


def decode_seal(raw: bytes) -> Seal:
    """Read a seal. Raises ValueError with the reason, also for a file name that would leave the step folder."""
    seal = msgspec.json.decode(raw, type=Seal)
    problem = next(filter(None, (_file_problem(name, file) for name, file in seal.files.items())), "")
    if problem:
        raise ValueError(problem)
    return seal


def _file_problem(name: str, file: SealedFile) -> str:
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        return f"file name {name!r} does not stay inside the step folder"
    if name == SEAL:
        return f"{SEAL} cannot seal itself"
    if file.size < 0:
        return f"file {name!r} has a negative size"
    if not _HASH.fullmatch(file.hash):
        return f"file {name!r} has a hash that is not xxh3:<hex> or sha256:<hex>"
    return ""
