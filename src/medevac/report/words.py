"""How times, parts and actions are said to people, everywhere the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from medevac.core.actions import (
    AnyAction,
    ExamineAttempt,
    FinishJob,
    GiveBack,
    HoldJob,
    Isolate,
    JudgeCheckpoint,
    Page,
    PointClean,
    ReleaseJob,
    Repair,
    RequestCheckpoint,
    Restrict,
    StartAttempt,
    StopAttempt,
    VerifyCheckpoint,
)
from medevac.core.decision import Clause, Part
from medevac.core.diagnose_case import Diagnosis, Suspect
from medevac.core.view import View

MOST_QUOTED = 140


def clock(at: float) -> str:
    """The time of day in UTC, to the tenth of a second."""
    when = datetime.fromtimestamp(round(at, 1), UTC)
    return f"{when:%H:%M:%S}.{when.microsecond // 100_000}"


def date(at: float) -> str:
    """Day and time in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """A duration: 0.42 s, 12.3 s, 4 min 5 s, 3 h 12 min."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(number: int, noun: str) -> str:
    """1 step, 2 steps."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(items: Iterable[str]) -> str:
    """a, b and c."""
    some = list(items)
    return " and ".join(filter(None, [", ".join(some[:-1]), *some[-1:]]))


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text[-1:] in {".", "!", "?"} else ".")


class Names:
    """GPUs by where they are: UUIDs are for machines."""

    def __init__(self, view: View) -> None:
        self._labels = {
            gpu.uuid: (f"{node.name} GPU {gpu.index}", node.name) for node in view.nodes.values() for gpu in node.gpus
        }
        keys = sorted(self._labels, key=len, reverse=True)
        self._known = re.compile(rf"({'|'.join(map(re.escape, keys))})(?: on ([\w.-]*\w))?") if keys else None

    def gpu(self, uuid: str) -> str:
        """The label of a GPU, any other name as it is."""
        return self._labels.get(uuid, (uuid, ""))[0]

    def part(self, part: Part) -> str:
        """A part as people call it."""
        if part.domain == "gpu":
            label = self.gpu(part.name)
            return label if label != part.name else f"{part.name} on {part.node}"
        known = {"power": "the power of", "rack": "rack", "node": "node", "nvlink": "NVLink domain", "job": "job"}
        word = known.get(part.domain, part.domain)
        return part.name if part.name.startswith(word) else f"{word} {part.name}"

    def plain(self, text: str) -> str:
        """A text with labels instead of UUIDs."""
        if self._known is None:
            return text

        def label(match: re.Match[str]) -> str:
            name, node = self._labels[match[1]]
            return name if match[2] in {None, node} else f"{name} on {match[2]}"

        return self._known.sub(label, text)

    def action(self, action: AnyAction) -> str:
        """What an action does, as a phrase."""
        return self.plain(_action(action))


def clause(held: Clause) -> str:
    """A predicate that held, with its numbers."""
    value = "" if held.value is None else f": {_number(held.value)}"
    return f"{held.says}{value}" + ("" if held.limit is None else f" (the rule asks for {_number(held.limit)})")


def diagnosis(verdict: Diagnosis) -> str:
    """Why an attempt ended and whom that concerns, with the line that says so; "" where nothing is known of it."""
    who = suspect(verdict.suspects[0]) if verdict.suspects else ""
    if verdict.abstained or verdict.cause == "unknown":
        return f"cause unknown, {who}" if who else ""
    quoted = verdict.root[0].text.strip() if verdict.root else ""
    said = f": {quoted[:MOST_QUOTED]}{'...' if len(quoted) > MOST_QUOTED else ''}" if quoted else ""
    return f"{verdict.cause}, {verdict.confidence:.0%} sure{said}" + (f" ({who})" if who else "")


def suspect(one: Suspect) -> str:
    """A part that a diagnosis names, and why where that is said in words."""
    rank = "" if one.rank is None else f"rank {one.rank}"
    part = " on ".join(filter(None, [rank, one.node])) + (f", GPU {one.gpu}" if one.gpu else "")
    return f"{part}: {one.why}" if " " in one.why else part


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,g}" if abs(value) < 1e6 else f"{value:,.0f}"


def _action(action: AnyAction) -> str:  # noqa: C901, PLR0911, PLR0912 - one case for each kind
    match action:
        case Isolate():
            how = "no work at all" if action.mode == "hard" else "no new work"
            return f"take {action.gpu or action.node} on {action.node} out ({action.mode}: {how})"
        case Restrict():
            return f"let work prefer others to {action.gpu or action.node} on {action.node}"
        case Repair():
            return f"mend {action.gpu or action.node} on {action.node} by a {action.how}"
        case GiveBack():
            return f"give {action.gpu or action.node} on {action.node} back"
        case RequestCheckpoint():
            return f"ask attempt {action.attempt} to save and leave within {span(action.deadline_s)}"
        case StopAttempt():
            return f"stop attempt {action.attempt}" + (" at once" if action.grace_s == 0 else "")
        case ExamineAttempt():
            return f"look at attempt {action.attempt}"
        case JudgeCheckpoint():
            return f"write down that the checkpoint of step {action.step} is {action.state}"
        case VerifyCheckpoint():
            return f"verify the files of the checkpoint of step {action.step}"
        case PointClean():
            return "take latest_clean away" if action.step is None else f"point latest_clean at step {action.step}"
        case StartAttempt():
            origin = "from nothing" if action.resume_from is None else f"from step {action.resume_from}"
            return f"start attempt {action.attempt} {origin} on {count(len(action.ranks), 'rank')}"
        case HoldJob():
            what, whom = (
                "array" if action.array else "job",
                "a person" if action.purpose == "person" else "its recovery",
            )
            return f"hold {what} {action.job} for {whom}"
        case ReleaseJob():
            return f"release job {action.job}"
        case FinishJob():
            return f"finish job {action.job} with code {action.code}"
        case Page():
            return f"tell a person: {action.text}"
