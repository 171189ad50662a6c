"""What earlier ends of the same job add to a verdict: the same node again, the same step (and so the same data) again.

History changes no class: that a node is named twice makes it worth leaving out, not sick, and a step that fails twice
points at the program or its data without a line that says so.
"""

from __future__ import annotations

from msgspec.structs import replace

from medevac.core.diagnose_case import Case, Diagnosis, PastEnd, Suspect

OF_A_PART = frozenset({"hardware", "network", "system-software", "unknown"})
"""Causes in which a node that is named again may be at fault."""
OF_THE_JOB = frozenset({"user-code", "numerical", "out-of-memory"})
"""Causes that come again with the same step."""


def remember(verdict: Diagnosis, case: Case) -> Diagnosis:
    """The verdict with what the job's earlier ends say to it."""
    return _same_step(_same_node(verdict, case.history), case) if case.history else verdict


def _same_node(verdict: Diagnosis, history: tuple[PastEnd, ...]) -> Diagnosis:
    """A node that was named in earlier ends too is left out, though the cause may not be known."""
    if verdict.cause not in OF_A_PART:
        return verdict
    before = {one.node: sum(_there(end, one.node) for end in history) for one in verdict.suspects if one.node}
    named = tuple(_told(one, before.get(one.node, 0)) for one in verdict.suspects)
    again = bool(named) and before.get(named[0].node, 0) > 0
    advice = "restart-excluding" if again and verdict.advice in ("restart", "look") else verdict.advice
    return replace(verdict, suspects=named, advice=advice)


def _there(end: PastEnd, node: str) -> bool:
    return end.node == node and end.cause in OF_A_PART


def _told(one: Suspect, before: int) -> Suspect:
    return replace(one, why=f"{one.why}; named in {before + 1} ends of the job") if before else one


def _same_step(verdict: Diagnosis, case: Case) -> Diagnosis:
    """It ended at this step before, by the same line: whatever runs that step again will end there."""
    line = verdict.root[0].signature if verdict.root else ""
    twins = [end for end in case.history if case.step and end.step == case.step and end.signature == line]
    if not twins:
        return verdict
    here = next((one.node for one in verdict.suspects if one.node), "")
    elsewhere = ", on other nodes," if any(end.node and here and end.node != here for end in twins) else ""
    told = f"it ended at step {case.step} {len(twins) + 1} times{elsewhere} in the same way: the data of that step"
    advice = "stop" if verdict.cause in OF_THE_JOB else verdict.advice
    return replace(verdict, advice=advice, settle=f"{told}; {verdict.settle}" if verdict.settle else told)
