"""What Medevac writes into Slurm so that anyone can see whose doing it is: the mark of a hold in a job's AdminComment,
the tag of a drain in a node's Reason (DESIGN: we undo only what is ours).
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec

from medevac.adapters.schedulers.slurm.values import BETWEEN, WAITS, SlurmJob, SlurmNode, Value

KEY = "medevac"


class HoldMark(Value, frozen=True, kw_only=True):
    """`hold` names the incident or action; `by` what put it there: a stop, whose hold the next start takes off, or an
    order to hold. `was` is text that stood in AdminComment before; `theirs`: a person's hold stood there already;
    `run`: the restart count of the run that a stop ends.
    """

    hold: str
    at: float
    purpose: Literal["recovery", "person"] = msgspec.field(name="for")
    by: Literal["stop", "hold"] = "hold"
    was: str = ""
    theirs: bool = False
    run: int | None = None


def hold_mark(admin_comment: str) -> HoldMark | None:
    """The mark of ours that stands there; None for none, or one that nobody can read."""
    try:
        return msgspec.convert(json_object(admin_comment).get(KEY), HoldMark)
    except msgspec.ValidationError:
        return None


def standing_mark(job: SlurmJob) -> HoldMark | None:
    """The same, where it still says whose a hold is: a job that has run since our stop was let go by a person, and what
    holds it now is theirs. Slurm counts a restart once for each time that a run goes back into the queue; one
    whose launch failed it holds by itself.
    """
    mark = hold_mark(job.admin_comment)
    since = 0 if mark is None or mark.run is None else job.restarts - mark.run
    ran = (since > 1 and "launch failed" not in job.reason) or (since == 1 and job.state not in WAITS | BETWEEN)
    return None if ran else mark


def with_mark(admin_comment: str, mark: HoldMark) -> str:
    """The comment with the mark; what others wrote stays."""
    found = json_object(admin_comment)
    before = hold_mark(admin_comment)
    was = before.was if before else ("" if found else admin_comment)
    return json.dumps({**found, KEY: msgspec.to_builtins(msgspec.structs.replace(mark, was=was))})


def without_mark(admin_comment: str) -> str:
    """The comment as it was without us."""
    found = json_object(admin_comment)
    if KEY not in found:
        return admin_comment
    mark = hold_mark(admin_comment)
    del found[KEY]
    return json.dumps(found) if found else (mark.was if mark else "")


def json_object(text: str) -> dict[str, Any]:
    """What stands in a comment as JSON; nothing where it is other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


Mode = Literal["soft", "hard"]
_PLAIN = str.maketrans({"[": "(", "]": ")", "@": " at "})
"""Slurm puts `[user@time]` behind a reason."""

LONGEST = 400
"""Letters of a reason, as long as what is out leaves room for why."""

AUTOMATIC = re.compile(
    r"not responding|unexpectedly rebooted|kill task failed|prolog (?:error|failed)|epilog error|duplicate jobid|"
    r"low (?:realmemory|tmpdisk|socket|cores|cpus)|gres/\S+ count|node silently failed|scheduler'?s? reboot|"
    r"batch job complete failure|invalid registration|^maint$|reboot asap",
    re.IGNORECASE,
)
"""Reasons that slurmctld and slurmd write themselves."""

_DOWN = frozenset({"DOWN", "FAIL", "FAILING"})
_TAG = re.compile(r"medevac\[([^\]]*)\] (\S*): ?(.*)", re.DOTALL)


class DrainTag(Value, frozen=True, kw_only=True):
    """What is out on a node: GPU UUID, or the node's own name -> mode; the incident; why."""

    out: dict[str, Mode]
    incident: str = ""
    why: str = ""

    def text(self) -> str:
        """`medevac[hard=node3,soft=GPU-1] incident-17: Xid 79`. What is out is never cut: it says what is ours."""
        out = ",".join(f"{mode}={name}" for name, mode in sorted(self.out.items()))
        why = " ".join(self.why.translate(_PLAIN).split())
        head = f"{KEY}[{out}] {self.incident or '-'}:"
        return f"{head} {why[: max(LONGEST - len(head), 0)]}".strip()


def drain_tag(reason: str) -> DrainTag | None:
    """The tag of ours in a node's Reason; None where it is somebody else's."""
    found = _TAG.fullmatch(reason.strip())
    if found is None:
        return None
    out: dict[str, Mode] = {}
    for word in filter(None, found[1].split(",")):
        mode, equals, name = word.partition("=")
        if not equals or not name:
            return None
        out[name] = "hard" if mode == "hard" else "soft"
    return DrainTag(out=out, incident=found[2], why=found[3])


def ours(node: SlurmNode) -> DrainTag:
    """What of a drained node is out by our hand: a tag that outlived its drain says nothing."""
    tag = drain_tag(node.reason) if node.drained else None
    return tag or DrainTag(out={})


def theirs(node: SlurmNode) -> bool:
    """Out by somebody else's hand: a drain that is not ours, or down for a reason that Slurm does not give itself."""
    if node.drained:
        return not ours(node).out
    reason = node.reason
    return bool(node.states & _DOWN and reason and not AUTOMATIC.search(reason) and drain_tag(reason) is None)
