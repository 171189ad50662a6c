"""`medevac decode --follow`: each event as it comes, with the incident that it belongs to as far as that is known."""

from __future__ import annotations

import os
import platform
import stat
import sys
from collections.abc import Iterable, Sequence

import msgspec

from medevac.cli.decode import is_broken
from medevac.cli.decode_filters import Filters
from medevac.cli.exits import Exit
from medevac.cli.output import SEVERITY_STYLES, console, moment, on_terminal, say_error
from medevac.core.events import FaultSeen
from medevac.decode.incidents import Incidents, Membership
from medevac.decode.output import EventObject, event_object
from medevac.decode.wording import fact_words_of

KMSG = "/dev/kmsg"


def follow_log(files: Sequence[str], wanted: Filters, *, json: bool) -> Exit:
    """Until interrupted, or a pipe ends. FOUND if an event of an incident was shown."""
    from medevac.decode.follow import follow
    from medevac.decode.readers import Unreadable

    paths = list(files) or [_source()]
    try:
        return show_as_they_come(
            follow(paths, node=platform.node() if KMSG in paths else "", notice=say_error), wanted, json=json
        )
    except Unreadable as problem:
        hint = ": be root, or journalctl -kf | medevac decode --follow" if KMSG in paths else ""
        say_error(f"{problem}{hint}")
        return Exit.UNREADABLE
    except KeyboardInterrupt:
        return Exit.DONE


def _source() -> str:
    """Stdin where something is piped in, else this machine's kernel log."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    return "-" if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else KMSG


def show_as_they_come(events: Iterable[FaultSeen], wanted: Filters, *, json: bool) -> Exit:
    """Print each event at once; its role is what the events so far say."""
    collected = Incidents()
    found = Exit.DONE
    for fault in events:
        if not wanted.takes(fault):
            continue
        reading, burst = collected.add(fault)
        member = collected.membership(burst)
        if not wanted.shows(fault, reading):
            continue
        if json and is_broken(fault):
            say_error(f"{fault.file}:{fault.line}: looks like a GPU fault but cannot be read: {fault.raw[:200]}")
            continue
        event = event_object(fault, reading, member)
        if member.incident is not None:
            found = Exit.FOUND
        if json:
            sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
            sys.stdout.buffer.flush()
        elif member.incident is not None:
            _show(event, fault, member)
    return found


def _show(event: EventObject, fault: FaultSeen, member: Membership) -> None:
    where = " ".join(filter(None, (event.node, event.pci))) or "-"
    action = event.policy_action.action if event.policy_action else event.action
    words = f"{fact_words_of(event.kind, event.code)}: {event.meaning}"
    if member.role == "victim":
        words += f" (follows from incident {member.incident})"
    values = (moment(fault.at), event.severity, where, words, action or "-")
    if not on_terminal():
        print("\t".join(values), flush=True)
        return
    from rich.text import Text

    styled = [Text(value, style=SEVERITY_STYLES.get(value, "")) for value in values]
    console().print(Text("  ").join(styled))
