"""Which events and incidents of a log are wanted: time, node, code, severity."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING

import msgspec

from medevac.cli.output import CommandError
from medevac.decode.incidents_story import SEVERITIES

if TYPE_CHECKING:
    from medevac.catalog.schema import Severity
    from medevac.core.events import FaultSeen
    from medevac.decode.annotate import Annotation
    from medevac.decode.incidents import Incident

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_AGO = re.compile(r"(\d{1,6})([smhdw])")


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Empty values let everything through. An event without a time passes no filter of time."""

    since: float | None = None
    until: float | None = None
    nodes: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    severity: Severity = "info"

    def takes(self, fault: FaultSeen) -> bool:
        """Is the event within the times and nodes? The rest is asked later: a root must not get lost."""
        if self.nodes and fault.node not in self.nodes:
            return False
        if self.since is None and self.until is None:
            return True
        late_enough = self.since is None or fault.at >= self.since
        return bool(fault.at) and late_enough and (self.until is None or fault.at <= self.until)

    def shows(self, fault: FaultSeen, reading: Annotation) -> bool:
        """Is the event printed?"""
        return (not self.codes or fault.code in self.codes) and self.severe(reading.severity)

    def tells(self, incident: Incident) -> bool:
        """Is the incident printed?"""
        found = not self.codes or any(fact.code in self.codes for fact in incident.facts)
        return found and self.severe(incident.severity)

    def severe(self, severity: Severity) -> bool:
        """At least as severe as asked; unknown stands between info and warning."""
        return SEVERITIES.index(severity) >= SEVERITIES.index(self.severity)


def moment_of(text: str | None, option: str) -> float | None:
    """Unix seconds of `2026-03-01`, `2026-03-01T10:00+01:00` (UTC where no zone is named), or `2h`: two hours ago."""
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip())
    if ago:
        return time.time() - int(ago[1]) * UNITS[ago[2]]
    try:
        read = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandError(
            f"{option}: {text!r} is no time: write 2026-03-01T10:00 (UTC) or 2h for two hours ago"
        ) from None
    return (read if read.tzinfo else read.replace(tzinfo=dt.UTC)).timestamp()
