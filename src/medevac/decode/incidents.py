"""From single events to incidents: what has one cause, which fact is the root, and which part is to blame.

`Incidents` takes events one by one in bounded memory and tells the incidents when asked:

    incidents = Incidents()
    for fault in decode_files(paths):
        incidents.add(fault)
    for story in incidents.stories(): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from medevac.decode.annotate import Annotation, Annotator
from medevac.decode.incidents_bursts import Burst, Bursts
from medevac.decode.incidents_join import DAY_S, join
from medevac.decode.incidents_story import Blamed, Fact, Incident, Role, Root, Story, tell

if TYPE_CHECKING:
    from medevac.core.events import FaultSeen

__all__ = ["Blamed", "Burst", "Fact", "Incident", "Incidents", "Membership", "Role", "Root", "Story"]

FOLLOWED_S = DAY_S + 3600.0
"""How far back a followed log is joined: as long as a fault can explain another."""


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """Which incident an event belongs to, None for one that is no fault; and its role there."""

    incident: str | None = None
    role: Role = "alone"


NOWHERE = Membership()


class Incidents:
    """Collects events and tells what belongs together."""

    def __init__(self, annotator: Annotator | None = None) -> None:
        self.annotator = annotator or Annotator()
        self.bursts = Bursts()
        self._joined: tuple[int, dict[int, Membership]] = (-1, {})

    def add(self, fault: FaultSeen) -> tuple[Annotation, Burst]:
        """Take one event; gives its reading and the burst that it is counted in."""
        reading = self.annotator.annotate(fault)
        return reading, self.bursts.add(fault, reading)

    def stories(self) -> list[Story]:
        """All incidents so far, in order of time."""
        return list(tell(join(self.bursts.all, self.bursts.loads), self.annotator.catalog))

    def memberships(self, stories: list[Story]) -> dict[int, Membership]:
        """By index of a burst; a burst that is missing belongs to no incident."""
        return {
            burst.index: Membership(incident=story.incident.incident, role=story.role(burst))
            for story in stories
            for burst in story.bursts
        }

    def membership(self, burst: Burst) -> Membership:
        """Of one burst as things stand now, for a log that is followed: forgets what is older than a day."""
        if burst.quiet:
            return NOWHERE
        newest, known = self._joined
        if newest < self.bursts.begun or burst.index not in known:
            self.bursts.forget(burst.last - FOLLOWED_S)
            known = self.memberships(self.stories())
            self._joined = (self.bursts.begun, known)
        return known.get(burst.index, NOWHERE)
