"""Why a job died, hung or slowed down: evidence in, verdict out.

The order of lines is not the order of causes, so nothing here asks what came first. Each line that names a cause has a
weight; lines that only say "somebody died" or "I wait" have none and can never decide. Where the best cause is weak,
or a second one stands close beside it, the verdict is `unknown`: a wrong certain answer costs more than none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from medevac.core.diagnose_case import Advice, Case, Cause, Clue, Diagnosis, Suspect, Symptom
from medevac.core.diagnose_history import remember
from medevac.core.diagnose_weigh import refine
from medevac.core.diagnose_who import suspects


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """How sure is sure enough, in weights of 0..100; policy data."""

    answer: int = 62
    """Below this the strongest cause is not named."""
    margin: int = 6
    """A second cause this close makes the first doubtful."""
    support: int = 2
    """What each further signature of the same cause adds, for at most two of them."""


ADVICE: Mapping[Cause, Advice] = {
    "hardware": "restart-excluding",
    "network": "restart-excluding",
    "storage": "look",
    "system-software": "restart-excluding",
    "user-code": "stop",
    "out-of-memory": "stop",
    "numerical": "look",
    "preemption": "restart",
    "unknown": "look",
}

SETTLE: Mapping[Cause, str] = {
    "hardware": "the kernel log and the ECC counters of the named node around the time of the failure",
    "network": "link state and error counters of both ends; a second failure on the same port",
    "storage": "free space, quota and the server's log at that time; whether other jobs saw it",
    "system-software": "the driver, fabric manager and limits of the named node against a healthy one",
    "user-code": "the same error again on other nodes",
    "out-of-memory": "memory in use by step, and whether another process held the device",
    "numerical": "the same steps again on other GPUs from an earlier checkpoint; ECC counters of the GPUs in use",
    "preemption": "the scheduler's record of the job",
    "unknown": "the log of the rank that printed nothing, a flight-recorder dump, the kernel logs of the nodes",
}


def diagnose(case: Case, bar: Bar | None = None) -> Diagnosis:
    """The verdict on a case. Pure: the same case gives the same verdict."""
    return remember(_verdict(case, bar or Bar()), case)


def _verdict(case: Case, bar: Bar) -> Diagnosis:
    clues = refine(case)
    strength = _strength(clues, bar)
    cause, confidence, doubt = _choose(strength, bar)
    symptom = _symptom(clues, cause, case)
    if cause == "unknown":
        return Diagnosis(
            cause=cause,
            symptom=symptom,
            confidence=confidence,
            advice="restart" if _transient(clues) else "look",
            suspects=suspects(clues, (), case),
            cascade=_witnesses(clues, cause),
            settle=doubt or SETTLE[cause],
            abstained=True,
        )
    root = tuple(sorted((c for c in clues if c.cause == cause), key=lambda c: (-c.weight, c.file, c.line)))
    named = suspects(clues, root, case)
    return Diagnosis(
        cause=cause,
        symptom=symptom,
        confidence=confidence,
        advice=_advice(cause, named),
        suspects=named,
        root=root,
        cascade=_witnesses(clues, cause),
        settle=SETTLE[cause],
    )


def _strength(clues: Iterable[Clue], bar: Bar) -> dict[Cause, int]:
    """Weight of each cause that has a root: its best line, and a little for each other signature that agrees."""
    by_cause: dict[Cause, dict[str, int]] = defaultdict(dict)
    rooted: set[Cause] = set()
    for clue in clues:
        if clue.cause is not None:
            by_cause[clue.cause][clue.signature] = clue.weight
            if clue.role == "root":
                rooted.add(clue.cause)
    return {
        cause: min(max(found.values()) + bar.support * min(len(found) - 1, 2), 99)
        for cause, found in by_cause.items()
        if cause in rooted
    }


def _choose(strength: Mapping[Cause, int], bar: Bar) -> tuple[Cause, float, str]:
    """The cause, the confidence in it, and what makes us doubt where the answer is `unknown`."""
    ranked = sorted(strength.items(), key=lambda item: (-item[1], item[0]))
    if not ranked:
        return "unknown", 0.0, ""
    (cause, best), rest = ranked[0], ranked[1:]
    if best < bar.answer:
        return "unknown", best / 100, f"weak signs of {cause}: {SETTLE[cause]}"
    if rest and best - rest[0][1] < bar.margin:
        return "unknown", best / 200, f"{cause} or {rest[0][0]}: {SETTLE[cause]}"
    return cause, best / 100, ""


def _symptom(clues: Iterable[Clue], cause: Cause, case: Case) -> Symptom:
    """What the user saw. A named cause brings its own, and a rank that ended by itself died; else whoever waited
    speaks before whoever fell over it.
    """
    clues = tuple(clues)
    own = [clue for clue in clues if clue.cause == cause and clue.role == "root"]
    strongest = max(own, key=lambda clue: clue.weight, default=None)
    hung = any(clue.symptom == "hang" and clue.role != "cascade" for clue in clues)
    if strongest is not None:
        return strongest.symptom
    if any(clue.signature == "ended-first" for clue in clues):
        return "crash"
    if hung:
        return "hang"
    died = [clue for clue in clues if clue.symptom == "crash"]
    if died:
        return "crash"
    if any(clue.symptom == "hang" for clue in clues) or _stopped_short(case):
        return "hang"
    return "slow" if any(clue.symptom == "slow" for clue in clues) else "none"


def _stopped_short(case: Case) -> bool:
    """Nothing failed in the log, yet its last progress is not the end."""
    return any(one.total is None or one.step < one.total for one in case.progress)


def _transient(clues: Iterable[Clue]) -> bool:
    """Something did end the job, so a second try is worth it once."""
    return any(clue.role in ("symptom", "cascade") for clue in clues)


def _advice(cause: Cause, named: tuple[Suspect, ...]) -> Advice:
    advice = ADVICE[cause]
    if advice == "restart-excluding" and not any(one.node or one.gpu or one.rank is not None for one in named):
        return "look" if cause == "system-software" else "restart"
    return advice


def _witnesses(clues: Iterable[Clue], cause: Cause) -> tuple[Clue, ...]:
    """The clues of no cause or another, one a line, without the lines that are quoted as root."""
    ordered = sorted(clues, key=lambda clue: (clue.file, clue.line, clue.cause != cause))
    by_line: dict[tuple[str, int], Clue] = {}
    for clue in ordered:
        by_line.setdefault((clue.file, clue.line), clue)
    return tuple(clue for clue in by_line.values() if clue.cause != cause)
