"""`medevac trace DUMPS...`: who holds a stalled collective up; `medevac trace GPU`: what a faulty GPU has touched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from medevac.cli.exits import Exit
from medevac.cli.inputs import HYPHEN, STDIN, names
from medevac.cli.output import CommandError, print_json, say_error
from medevac.core.flight_recorder import Stall, analyse
from medevac.decode.fr_dump_files import read_dumps

_PART = re.compile(r"GPU-[0-9A-Za-z-]+|[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(\.[0-7])?")
"""What is a GPU and no file."""


def trace(
    dumps: Annotated[list[str], HYPHEN],
    /,
    *,
    since: str | None = None,
    checkpoint_dir: Path | None = None,
    state_dir: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Say who holds a stalled collective up; or, of a GPU, which steps, ranks, checkpoints and exports it touched.

    Parameters
    ----------
    dumps
        Flight-recorder dumps of the ranks (pickle or JSON), or folders of them; the set may be incomplete. `-` for one
        on standard input. Or one GPU (UUID or PCI address) or node, by the seals of the checkpoints.
    since
        Of a GPU: from when on it may have been wrong; 2026-03-01T10:00, unix seconds, or 15m, 6h, 2d. Else from ever.
    checkpoint_dir
        Of a GPU: look into this folder only. Else into all jobs of the state folder.
    state_dir
        The state folder, or the file of a store.
    json
        Print one JSON object.
    """
    if since is not None or checkpoint_dir is not None or state_dir is not None or _PART.fullmatch(dumps[0]):
        if len(dumps) > 1:
            raise CommandError("--since, --checkpoint-dir and --state-dir: name one GPU or node, and no dumps")
        return _of_part(dumps[0], since, checkpoint_dir, state_dir, json=json)
    paths = [Path(name) for name in names(dumps, "trace")]
    gone = next((path for path in paths if str(path) != STDIN and not path.exists()), None)
    if gone is not None:
        raise CommandError(f"{gone}: no such file or folder")
    read = read_dumps(paths)
    for message in read.unread:
        say_error(message)
    if not read.traces:
        return Exit.UNREADABLE
    stall = analyse(read.traces)
    if json:
        print_json({**msgspec.structs.asdict(stall), "dumps": sorted(read.traces), "unread": read.unread})
    else:
        print(story(stall, len(read.traces)), end="")
    if read.unread:
        return Exit.UNREADABLE
    return Exit.DONE if stall.held == "none" else Exit.FOUND


def _of_part(part: str, since: str | None, folder: Path | None, state: Path | None, *, json: bool) -> Exit:
    """Loads the store and the checkpoints' reader, which no dump needs."""
    from medevac.cli.audit import moment_of
    from medevac.cli.trace_part import trace_part

    return trace_part(part, moment_of(since) if since else 0.0, folder, state, json=json)


def story(stall: Stall, dumps: int) -> str:
    """The finding for a person."""
    lines = [f"{dumps} dump{'' if dumps == 1 else 's'} read."]
    if stall.held == "none":
        lines.append(f"No stall: {stall.why}.")
    else:
        where = f" ({stall.place})" if stall.place else ""
        lines.append(f"Stalled in group {stall.group}: {stall.op} number {stall.seq}{where}.")
        who = ", ".join(f"rank {rank}" for rank in stall.ranks) or "No rank to blame"
        lines.append(f"{who}: {stall.why}.")
    if stall.missing:
        lines.append(f"Without a dump: {', '.join(map(str, stall.missing))}.")
    return "\n".join(lines) + "\n"
