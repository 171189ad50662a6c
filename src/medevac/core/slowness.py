"""Who is slow while a job runs, folded report by report: the ranks against their peers, the job against its own past.

Each report costs the same however long the job runs: a step is judged once, when it is complete, and only its verdict
is kept. An episode is told once, when it begins; it ends when the rank keeps up again, or the job is as fast as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import TypeAlias

from immutables import Map
from msgspec.structs import replace

from medevac.core.decision import Clause, Finding, Part, Struct
from medevac.core.events import RankPlace, StepReported
from medevac.core.straggler import Drift, Slowdown, SlowRule, Straggler, slow_ranks

OPEN = 2
"""Steps that some rank may still report on: none can be further behind than the collective lets it."""

News: TypeAlias = Straggler | Slowdown


class Slowness(Struct, frozen=True, kw_only=True):
    """What is kept of one job. `rows`: compute seconds by rank of the newest steps; `slow`: the ranks that were slow,
    with their ratio, in each of the last steps; `named` and `slower`: the episodes that go on; `told`: what the report
    `told_by` (rank, step, time) brought.
    """

    rule: SlowRule = SlowRule()
    rows: tuple[tuple[int, Map[int, float]], ...] = ()
    slow: tuple[tuple[tuple[int, float], ...], ...] = ()
    drift: Drift = Drift()
    warmed: int = 0
    named: tuple[int, ...] = ()
    slower: bool = False
    told: tuple[News, ...] = ()
    told_by: tuple[int, int, float] | None = None

    def after(self, event: StepReported, took: float | None) -> Slowness:
        """With one more report; `took`: seconds of the step that it completes (None where it completes none)."""
        now = replace(self, told=(), told_by=None) if self.told else self
        if event.compute_s is not None and event.phase == "step":
            now = now._with_compute(event.step, event.rank, event.compute_s)
        if took is not None and took > 0:
            now = now._with_step(took)
        return replace(now, told_by=(event.rank, event.step, event.at)) if now.told else now

    def afresh(self) -> Slowness:
        """For a new attempt: other ranks on other parts, the same pace to be expected."""
        return Slowness(rule=self.rule, drift=self.drift.quiet())

    def news(self, event: StepReported) -> tuple[News, ...]:
        """What this report brought."""
        return self.told if self.told_by == (event.rank, event.step, event.at) else ()

    def _with_compute(self, step: int, rank: int, seconds: float) -> Slowness:
        newest = self.rows[-1][0] if self.rows else -1
        if step > newest:
            rows = (*self.rows, (step, Map({rank: seconds})))
            closed, kept = rows[:-OPEN], rows[-OPEN:]
            now = replace(self, rows=kept)
            for _, times in closed:
                now = now._judged(times)
            return now
        rows = tuple((at, times.set(rank, seconds) if at == step else times) for at, times in self.rows)
        return replace(self, rows=rows)

    def _judged(self, times: Map[int, float]) -> Slowness:
        """One complete step: who was slow in it, and whether that makes, or ends, an episode."""
        if len(times) < 3:
            return self
        rule = self.rule
        found = tuple(sorted(slow_ranks(times, rule).items()))
        slow = (*self.slow, found)[-rule.window :]
        if not found and not self.named:
            return replace(self, slow=slow)
        enough = rule.share * rule.window
        new = [one for rank, _ in found if rank not in self.named and (one := _straggler(slow, rank, enough))]
        still = tuple(rank for rank in self.named if _times(slow[-rule.calm :], rank) * 4 > rule.calm)
        named = (*still, *(one.rank for one in new))
        return replace(self, slow=slow, named=named, told=(*self.told, *new))

    def _with_step(self, took: float) -> Slowness:
        rule = self.rule
        if self.warmed < rule.warm_up:
            return replace(self, warmed=self.warmed + 1)
        drift = self.drift.after(took, rule)
        now = replace(self, drift=drift)
        if self.slower:
            return now if drift.total > 0 else replace(now, slower=False)
        found = drift.slowdown(rule)
        if found is None or (self.rows and len(drift.recent) < rule.least_steps + OPEN):
            return now  # where ranks report, they are given the steps that it takes to tell who it is
        since = now.slow[-(len(drift.recent) - OPEN) :]
        enough = max(rule.share * len(since), rule.least_steps)
        ranks = {rank for row in since for rank, _ in row} - set(now.named)
        new = tuple(one for rank in sorted(ranks) if (one := _straggler(since, rank, enough)))
        named = (*now.named, *(one.rank for one in new))
        return replace(now, slower=True, named=named, told=(*now.told, *(new or (() if named else (found,)))))


def findings(
    job: str, places: Iterable[RankPlace], news: Iterable[News], event: StepReported, rule: SlowRule
) -> tuple[Finding, ...]:
    """The news as findings: warnings that move nothing by themselves."""
    homes = {place.rank: place for place in places}
    return tuple(
        _of_rank(job, homes.get(one.rank), one, event, rule)
        if isinstance(one, Straggler)
        else _of_job(job, one, event, rule)
        for one in news
    )


def _of_rank(job: str, place: RankPlace | None, one: Straggler, event: StepReported, rule: SlowRule) -> Finding:
    where = f" on {place.node}" if place else ""
    gpus = f" ({', '.join(place.gpus)})" if place and place.gpus else ""
    times = f"{one.ratio:.2f} times as long as its peers"
    return Finding(
        rule="straggler",
        part=Part(domain="job", name=job, node=place.node if place else ""),
        severity="warning",
        meaning=f"rank {one.rank}{where}{gpus} computes {times}, in {one.slow_steps} of {one.steps} steps",
        at=event.seen_at or event.at,
        clauses=(
            Clause(says="rank", value=one.rank),
            Clause(says="compute time over the median of its peers", value=one.ratio, limit=rule.factor),
            Clause(says=f"slow steps of the last {one.steps}", value=one.slow_steps, limit=rule.share * one.steps),
        ),
        facts=(event.id,) if event.id else (),
    )


def _of_job(job: str, one: Slowdown, event: StepReported, rule: SlowRule) -> Finding:
    return Finding(
        rule="slowdown",
        part=Part(domain="job", name=job),
        severity="warning",
        meaning=f"steps take {one.now_s:.3g} s, {one.now_s / one.before_s:.2f} times as long as before; rank unknown",
        at=event.seen_at or event.at,
        clauses=(Clause(says="seconds a step", value=one.now_s, limit=rule.slower * one.before_s),),
        facts=(event.id,) if event.id else (),
    )


def _times(slow: tuple[tuple[tuple[int, float], ...], ...], rank: int) -> int:
    return sum(any(one == rank for one, _ in row) for row in slow)


def _straggler(slow: tuple[tuple[tuple[int, float], ...], ...], rank: int, enough: float) -> Straggler | None:
    """The rank as a straggler, if it was slow in enough of these steps."""
    ratios = [ratio for row in slow for one, ratio in row if one == rank]
    if len(ratios) < enough:
        return None
    return Straggler(rank=rank, ratio=round(median(ratios), 3), slow_steps=len(ratios), steps=len(slow))
