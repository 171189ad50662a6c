"""What Medevac recommended beside what people did: agreed, differed, missed, and who was earlier. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from medevac.core.decision import Struct

What: TypeAlias = Literal["drain", "requeue", "cancel", "leave"]
"""Of a node: drain. Of a job: run it again, end it, or leave it as it ended."""

Verdict: TypeAlias = Literal["agreed", "differed", "missed", "open"]


class Advice(Struct, frozen=True, kw_only=True):
    """What Medevac would have done to a node or a job, when (unix seconds), and why; `ref` is its decision."""

    what: What
    subject: str
    at: float
    why: str = ""
    ref: str = ""


class Deed(Struct, frozen=True, kw_only=True):
    """What somebody did to a node or a job; `who` as the scheduler tells it. `routine`: people do that every day (a job
    cancelled by its owner), so that it answers an advice and is missed by nobody.
    """

    what: What
    subject: str
    at: float
    who: str = ""
    why: str = ""
    routine: bool = False


class Compared(Struct, frozen=True, kw_only=True):
    """A row. `earlier_s`: how long before the deed the advice stood (negative: after it). `open`: nobody did anything
    yet, and there is time left; `differed` without a deed: nobody did anything.
    """

    verdict: Verdict
    subject: str
    advice: Advice | None = None
    deed: Deed | None = None
    earlier_s: float | None = None


class Summary(Struct, frozen=True, kw_only=True):
    """All rows in order of time, and how long before people Medevac said the same (median, extremes; None: never)."""

    rows: tuple[Compared, ...]
    counts: dict[str, int]
    earlier_s: dict[str, float] | None = None


def compare(
    advised: Iterable[Advice], deeds: Iterable[Deed], *, now: float, within_s: float, before_s: float
) -> Summary:
    """Each advice with the deed on the same subject that came up to `before_s` before and `within_s` after it.

    The same deed is sought first, then any; each deed answers one advice, and one that was advised again before it came
    is answered where it was advised first.
    """
    left = sorted(deeds, key=_order)
    rows = []
    for advice in _first(sorted(advised, key=_order), left):
        near = [deed for deed in left if deed.subject == advice.subject and _near(advice, deed, within_s, before_s)]
        deed = min(near, key=lambda one: (one.what != advice.what, abs(one.at - advice.at)), default=None)
        if deed is not None:
            left.remove(deed)
        rows.append(_compared(advice, deed, open_=now - advice.at < within_s))
    rows += [Compared(verdict="missed", subject=deed.subject, deed=deed) for deed in left if not deed.routine]
    rows.sort(key=_at)
    counts = {
        verdict: sum(row.verdict == verdict for row in rows) for verdict in ("agreed", "differed", "missed", "open")
    }
    lead = [row.earlier_s for row in rows if row.verdict == "agreed" and row.earlier_s is not None]
    told = {"median": statistics.median(lead), "least": min(lead), "most": max(lead)} if lead else None
    return Summary(rows=tuple(rows), counts=counts, earlier_s=told)


def _order(one: Advice | Deed) -> tuple[float, str, str]:
    return (one.at, one.subject, one.what)


def _at(row: Compared) -> float:
    first = row.advice or row.deed
    return first.at if first else 0.0


def _near(advice: Advice, deed: Deed, within_s: float, before_s: float) -> bool:
    return -before_s <= deed.at - advice.at <= within_s


def _first(advised: Sequence[Advice], deeds: Sequence[Deed]) -> list[Advice]:
    """Without those that say the same of a subject again while nobody has done anything to it."""
    standing: dict[tuple[str, str], float] = {}
    kept = []
    for advice in advised:
        key = (advice.subject, advice.what)
        since = standing.get(key)
        if since is None or any(deed.subject == advice.subject and since <= deed.at <= advice.at for deed in deeds):
            standing[key] = advice.at
            kept.append(advice)
    return kept


def _compared(advice: Advice, deed: Deed | None, *, open_: bool) -> Compared:
    if deed is None:
        done_nothing: Verdict = "agreed" if advice.what == "leave" else "open" if open_ else "differed"
        return Compared(verdict=done_nothing, subject=advice.subject, advice=advice)
    same = deed.what == advice.what or (advice.what, deed.what) == ("leave", "cancel")
    return Compared(
        verdict="agreed" if same else "differed",
        subject=advice.subject,
        advice=advice,
        deed=deed,
        earlier_s=round(deed.at - advice.at, 3),
    )
