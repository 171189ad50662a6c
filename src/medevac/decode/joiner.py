"""Lines of one fact become one event: continuation lines join their parent, which waits for them a moment.

SXid `Severity` and `Data` lines join the text line of the same switch and code; registers and bit names the AER report
of the same device; RPC history the Xid 119 or 120 before it; `CPU: .. Comm: ..` the panic. A line whose parent is not
in the log stands for itself, by its own kind (`CPU: .. Comm: ..` only where the log begins with it, cut off from it).
"""

from __future__ import annotations

from collections import deque

from medevac.core.events import FaultSeen

_PARENTS = {"sxid": "sxid", "aer": "aer", "panic": "panic"}
_CHILDREN = {"sxid_continuation": "sxid", "aer_continuation": "aer", "panic_continuation": "panic"}
_HISTORY = {119, 120}
WAIT_LINES = 24  # how many lines after it a parent waits for the rest of its fact

Key = tuple[str, str, str | None, int | None]


class Joiner:
    """Takes the events of one log in order, gives them back in order, joined."""

    def __init__(self) -> None:
        self._waiting: deque[FaultSeen] = deque()
        self._parents: dict[Key, FaultSeen] = {}
        self._history: set[str] = set()

    def add(self, event: FaultSeen) -> list[FaultSeen]:
        """Take the next event; gives those that wait for nothing any more."""
        kind = event.kind
        if kind in _CHILDREN:
            parent = self._parents.get(_key(_CHILDREN[kind], event))
            if parent is not None:
                absorb(parent, event)
                return []
            if kind == "panic_continuation" and event.line > 1:  # the same words stand in every call trace
                return []
        elif kind == "nvrm_continuation":
            if event.node in self._history:
                return []
        elif kind in _PARENTS:
            self._parents[_key(kind, event)] = event
            self._waiting.append(event)
            return self.passed(event.line)
        elif event.code in _HISTORY:
            self._history.add(event.node)
        if not self._waiting:
            return [event]
        self._waiting.append(event)
        return self.passed(event.line)

    def passed(self, line: int) -> list[FaultSeen]:
        """The events that line `line` has left too far behind for any more of their lines to come."""
        waiting = self._waiting
        done = []
        while waiting and (waiting[0].line + WAIT_LINES < line or waiting[0].kind not in _PARENTS):
            done.append(self._release())
        return done

    def flush(self) -> list[FaultSeen]:
        """All that still waits."""
        return [self._release() for _ in range(len(self._waiting))]

    def _release(self) -> FaultSeen:
        event = self._waiting.popleft()
        if event.kind in _PARENTS and self._parents.get(key := _key(event.kind, event)) is event:
            del self._parents[key]
        return event


def _key(kind: str, event: FaultSeen) -> Key:
    return kind, event.node, event.pci, event.code


def absorb(parent: FaultSeen, child: FaultSeen) -> None:
    """Add to the details of `parent`, not given out yet, what the line of `child` says."""
    details = parent.details
    said = child.details
    if child.kind == "aer_continuation" and "name" in said:
        bits = f"{said['bit']} {said['name']}"
        details["bits"] = f"{details['bits']}, {bits}" if "bits" in details else bits
        if "first" in said:
            details["first"] = said["name"]
        return
    if child.kind == "panic_continuation":
        details.update(cpu=said["cpu"], pid=child.pid, process=child.process)
        return
    for name, value in said.items():
        details.setdefault("severity_level" if name == "severity" else name, value)
