"""`medevac trace DUMPS...`: who holds a stalled collective up, by the NCCL flight recorders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from medevac.cli.exits import Exit
from medevac.cli.inputs import HYPHEN, STDIN, names
from medevac.cli.output import CommandError, print_json, say_error
from medevac.core.flight_recorder import Stall, analyse
from medevac.decode.fr_dump_files import read_dumps


def trace(
    dumps: Annotated[list[str], HYPHEN],
    /,
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> Exit:
    """Say which ranks hold a stalled collective up.

    Parameters
    ----------
    dumps
        Flight-recorder dumps of the ranks (pickle or JSON), or folders of them; the set may be incomplete. `-` for one
        on standard input.
    json
        Print one JSON object.
    """
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
