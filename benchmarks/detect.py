"""How often is a healthy job called hung, stopped, or called slow, and how soon is a sick one named? Simulated
job-days, the real core.

    python benchmarks/detect.py [--days N] [--stall-days N] [--seed N] [--json]

Every report and every deadline goes through `View.apply` and `decide`, as in a controller. The pauses of a healthy job
are heavy-tailed: saves and evals announce their phase, data stalls do not. All parameters are printed; the tail of the
stalls, the step time and the policy's patience are swept. A false action is a stop of a job that would have gone on; a
false name is a warning at the limit, on which the job is only looked at. A look at a healthy job that waits finds
nothing that confirms a hang, but for the share `silent_share` of its stalls, which also keep the rank's heartbeat file
from being touched (its node's file-system client stands still, those of others do not).

Whole job-days are lived through without stalls; then each of the stalls of many more days strikes one of the moments of
those: views are values, so a moment can be gone on from as often as one likes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any

import msgspec

from medevac.adapters.sources.output import POLL_SECONDS, Printed
from medevac.catalog.policy import load_policy
from medevac.controller.examine import LOOKS, PAUSE_S
from medevac.controller.intake import LAST_WORDS_S
from medevac.controller.output import Alarm
from medevac.controller.sources import OBSERVE_S
from medevac.core.actions import ExamineAttempt, StopAttempt
from medevac.core.decide import decide
from medevac.core.diagnose_case import Clue
from medevac.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptExamined,
    AttemptStarted,
    JobSubmitted,
    OutputRead,
    Phase,
    RankExit,
    RankPlace,
    StepReported,
    TimePassed,
)
from medevac.core.view import View
from medevac.decode.joblog_case import build_case, read_log

DAY_S = 86_400.0
JOB = "job"
KEEPER_GRACE_S = 2.0
"""How long the other ranks may go on when one has died (docs/local-scheduler.md)."""
MOST_EVENTS = 1000
EACH = 50
"""Steps between two moments that are kept."""


class Pauses(msgspec.Struct, frozen=True, kw_only=True):
    """A healthy job's life: seconds, and rates an hour of the day's running. Stalls are Pareto: `stall_least_s` at
    least, longer than x with probability (stall_least_s / x) ** stall_tail.
    """

    step_s: float = 10.0
    step_spread: float = 0.05
    slow_step_share: float = 0.01
    slow_step_factor: float = 1.8
    save_every: int = 100
    save_s: float = 30.0
    save_spread: float = 0.5
    eval_every: int = 1000
    eval_s: float = 300.0
    eval_spread: float = 0.3
    stalls_an_hour: float = 0.25
    stall_least_s: float = 2.0
    stall_tail: float = 3.0
    silent_share: float = 0.0
    restarts_a_day: float = 0.5
    restart_s: float = 240.0


class Life:
    """One job in the core: what it is told, and what comes of it."""

    def __init__(self, ranks: int, **numbers: float) -> None:
        """`numbers`: of the policy's section `hang`, other than its own."""
        self.policy = load_policy("standard", "act")
        hang = msgspec.structs.replace(self.policy.hang, **numbers)
        self.policy = msgspec.structs.replace(self.policy, hang=hang)
        self.view = View(hang=hang)
        self.seq = 0
        self.ranks = ranks
        places = tuple(RankPlace(rank=rank, node=f"n{rank}", gpus=(f"g{rank}",)) for rank in range(ranks))
        self.stops = 0
        self.names = 0
        self.shows = ""
        """The signature that a look at it finds, "" for none."""
        self.found: list[tuple[str, float]] = []
        self.tell(JobSubmitted(at=0.0, job=JOB, ranks=ranks))
        self.tell(AttemptStarted(at=0.0, job=JOB, attempt=1, ranks=places))

    def tell(self, event: AnyEvent) -> None:
        self.seq += 1
        self.view = self.view.apply(event, self.seq)
        decision = decide(self.view, event, self.policy)
        self.view = self.view.after(decision)
        self.stops += sum(isinstance(action, StopAttempt) for action in decision.actions)
        self.names += sum(finding.rule == "hang" for finding in decision.findings)
        self.found += [(finding.rule, decision.at) for finding in decision.findings]
        looks = [action for action in decision.actions if isinstance(action, ExamineAttempt)]
        if looks and self.shows and self.view.now - looks[0].since >= self.policy.hang.silent_s:
            clue = Clue(signature=self.shows, role="symptom", symptom="hang", text="seen", rank=0)
            then = self.view.now + LOOKS * PAUSE_S
            self.tell(AttemptExamined(at=then, job=JOB, attempt=1, clues=(clue,)))

    def until(self, at: float) -> bool:
        """Silence up to `at`: deadlines of the core come due meanwhile. True where the job was stopped for it."""
        before = self.stops
        while (due := self.view.look_deadline(self.view.jobs[JOB])) is not None and due < at and self.stops == before:
            self.tell(TimePassed(at=due + 0.01))
        return self.stops > before

    def report(self, step: int, at: float, phase: Phase = "step", compute: list[float] | None = None) -> None:
        for rank in range(self.ranks if compute else 1):
            took = compute[rank] if compute else None
            self.tell(StepReported(at=at, job=JOB, attempt=1, step=step, rank=rank, phase=phase, compute_s=took))


class Days(msgspec.Struct):
    """What came of job-days without stalls: false stops and findings, and moments to go on from."""

    counts: dict[str, int]
    moments: list[tuple[View, float]]


def healthy(pauses: Pauses, days: float, ranks: int, chance: random.Random, **numbers: float) -> Days:
    """So many job-days. After a false stop a new job begins: what it had learned is lost."""
    counts = {"stops": 0, "hang": 0, "straggler": 0, "slowdown": 0}
    moments: list[tuple[View, float]] = []
    at, life, step = 0.0, Life(ranks, **numbers), 0
    while at < days * DAY_S:
        for phase, lasts in phases(pauses, step, chance):
            compute = [lasts * 0.8 * chance.lognormvariate(0, 0.03) for _ in range(ranks)]
            if life.until(at + lasts):
                counts["stops"] += 1
                break
            at += lasts
            step += phase == "step"
            life.report(step, at, phase, compute if ranks > 1 and phase == "step" else None)
        else:
            if step % EACH == 0:
                moments.append((life.view, at))
            continue
        _count(counts, life)
        life = Life(ranks, **numbers)
        life.tell(TimePassed(at=at))
        step = 0
    _count(counts, life)
    return Days(counts=counts, moments=moments)


def stalled(pauses: Pauses, lived: Days, days: float, chance: random.Random, **numbers: float) -> tuple[int, int]:
    """False stops and false names by the stalls of so many job-days, each at a moment of those lived through."""
    life, stops = Life(1, **numbers), 0
    for _ in range(round(days * 24 * pauses.stalls_an_hour)):
        life.view, at = chance.choice(lived.moments)
        life.shows = "process-silent" if chance.random() < pauses.silent_share else ""
        took = pauses.step_s + pauses.stall_least_s * chance.paretovariate(pauses.stall_tail)
        stops += life.until(at + took)
    return stops, life.names


def beginnings(pauses: Pauses, jobs: int, chance: random.Random) -> dict[str, int]:
    """False stops and names among the first ten saves and evals of so many jobs, which have learned little of them."""
    often = msgspec.structs.replace(pauses, save_every=12, eval_every=30, restarts_a_day=0.0)
    lived = [healthy(often, 121 * often.step_s / DAY_S, 1, chance).counts for _ in range(jobs)]
    return {"jobs": jobs, "stops": sum(c["stops"] for c in lived), "names": sum(c["hang"] for c in lived)}


def phases(pauses: Pauses, step: int, chance: random.Random) -> Iterator[tuple[Phase, float]]:
    """What comes next: reports with the seconds before each. A phase is reported when it begins."""
    took = pauses.step_s * chance.lognormvariate(0, pauses.step_spread)
    if chance.random() < pauses.slow_step_share:
        took *= chance.uniform(1, pauses.slow_step_factor)
    yield "step", took
    if step and step % pauses.save_every == 0:
        yield "save", 0.01
        yield "step", pauses.save_s * chance.lognormvariate(0, pauses.save_spread)
    if step and step % pauses.eval_every == 0:
        yield "eval", 0.01
        yield "step", pauses.eval_s * chance.lognormvariate(0, pauses.eval_spread)
    if chance.random() < pauses.restarts_a_day * pauses.step_s / DAY_S:
        yield "start", 0.01
        yield "load", pauses.restart_s * chance.lognormvariate(0, 0.3)
        yield "step", pauses.restart_s * chance.lognormvariate(0, 0.3)


def _count(counts: dict[str, int], life: Life) -> None:
    for rule, _ in life.found:
        counts[rule] = counts.get(rule, 0) + 1


def per_thousand(events: int, days: float) -> dict[str, float]:
    """A rate per 1,000 job-days with its 95 % upper bound (Poisson)."""
    upper = (events + 1.92 + 1.96 * math.sqrt(events + 0.96)) if events else 3.0
    return {"seen": events, "rate": round(events / days * 1000, 2), "at_most": round(upper / days * 1000, 2)}


def time_to_straggler(ratio: float, pauses: Pauses, chance: random.Random, ranks: int = 8) -> float | None:
    """Steps from the first slow one to the finding; None where none came within `MOST_EVENTS` steps."""
    life, at = Life(ranks), 0.0
    for step in range(1, 101 + MOST_EVENTS):
        slow = ratio if step > 100 else 1.0
        compute = [pauses.step_s * 0.8 * chance.lognormvariate(0, 0.03) for _ in range(ranks)]
        compute[3] *= slow
        at += max(compute) + pauses.step_s * 0.2
        life.report(step, at, "step", compute)
        if any(rule == "straggler" for rule, _ in life.found):
            return step - 100
    return None


def time_to_hang(pauses: Pauses, chance: random.Random, shows: str = "process-stopped") -> dict[str, float]:
    """After 300 steps: the limit in force; seconds past it to the warning and to the stop, where a look finds `shows`
    ("": nothing) from the beginning of the silence on.
    """
    life, at = Life(1), 0.0
    for step in range(1, 301):
        at += pauses.step_s * chance.lognormvariate(0, pauses.step_spread)
        life.report(step, at)
    due = life.view.hang_deadline(life.view.jobs[JOB])
    assert due is not None
    life.shows = shows
    assert life.until(at + 10 * DAY_S)
    named = next(when for rule, when in life.found if rule == "hang")
    return {
        "limit_s": round(due - at, 1),
        "named_after_s": round(named - due, 2),
        "stopped_after_s": round(life.view.now - due, 2),
    }


LINE = "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def time_to_name(chance: random.Random) -> float:
    """Seconds from the line of a crash to the warning that names it: the output is looked at, its lines go through the
    signatures, the core decides on the same event.
    """
    life, at = Life(4), 100.0
    seen = at + chance.uniform(0, POLL_SECONDS)
    life.report(1, at - 1)
    told = Alarm(own_files=True).read(Printed(JOB, 1, 2, LINE, seen))
    assert told
    life.tell(msgspec.structs.replace(told, seen_at=seen))
    (named,) = [when for rule, when in life.found if rule == "crash"]
    return named - at


def time_to_crash(chance: random.Random) -> float:
    """Seconds from the line to the diagnosis of the attempt's end: the peers follow at once or are ended by the keeper
    (half and half), the scheduler is looked at, the last words are waited for.
    """
    life = Life(4)
    line = LINE.encode() + b"\n"
    at = 100.0
    ended = at + (chance.uniform(0.05, 0.5) if chance.random() < 0.5 else KEEPER_GRACE_S)
    seen = ended + chance.uniform(0, OBSERVE_S) + LAST_WORDS_S
    clues = build_case([read_log("log", [line])]).clues
    life.tell(OutputRead(at=ended, seen_at=seen, job=JOB, attempt=1, clues=clues, ranks=(0, 1, 2, 3)))
    life.tell(
        AttemptEnded(at=ended, seen_at=seen, job=JOB, attempt=1, code=1, exits=(RankExit(rank=2, code=1, at=at),))
    )
    verdict = life.view.jobs[JOB].verdict
    assert verdict
    assert verdict.verdict.cause == "hardware"
    return life.view.now - at


def sweep(base: Pauses, days: float, stall_days: float, seed: int) -> Iterator[dict[str, Any]]:
    """False stops and names by step time, patience and tail of the stalls; the last rows with silent files."""
    for step_s, patience_s in itertools.product((2.0, 10.0, 60.0), (0.0, 60.0, 300.0)):
        chance = random.Random(seed)
        pauses = msgspec.structs.replace(base, step_s=step_s)
        lived = healthy(pauses, days, 1, chance, patience_s=patience_s)
        shares = (0.0, 0.02) if patience_s == 300.0 else (0.0,)
        for share, tail in itertools.product(shares, (1.5, 2.0, 3.0)):
            stalls = msgspec.structs.replace(pauses, stall_tail=tail, silent_share=share)
            stops, names = stalled(stalls, lived, stall_days, chance, patience_s=patience_s)
            yield {"step_s": step_s, "patience_s": patience_s, "stall_tail": tail, "silent_share": share} | {
                **per_thousand(stops, stall_days),
                "named": round(names / stall_days * 1000, 1),
                "without_stalls": lived.counts["stops"],
                "slowdowns": lived.counts["slowdown"],
            }


def measure(days: float, stall_days: float, seed: int) -> dict[str, Any]:
    """Everything, as one object."""
    base = Pauses()
    ranks = healthy(msgspec.structs.replace(base, step_s=60.0), days, 4, random.Random(seed + 1))
    chance = random.Random(seed + 2)
    return {
        "days": days,
        "stall_days": stall_days,
        "pauses": msgspec.to_builtins(base),
        "hang_rule": msgspec.to_builtins(msgspec.structs.asdict(load_policy("standard").hang)),
        "false_stops_per_1000_job_days": list(sweep(base, days, stall_days, seed)),
        "new_jobs": beginnings(base, 300, chance),
        "false_stragglers_per_1000_job_days": per_thousand(ranks.counts["straggler"], days),
        "crash_to_name_s": round(median(time_to_name(chance) for _ in range(200)), 2),
        "crash_to_diagnosis_s": [round(x, 2) for x in quantiles((time_to_crash(chance) for _ in range(200)), n=4)],
        "hang_confirmed": time_to_hang(base, chance),
        "hang_silent_file": time_to_hang(base, chance, "process-silent"),
        "hang_unconfirmed": time_to_hang(base, chance, ""),
        "straggler_steps": {str(r): time_to_straggler(r, base, chance) for r in (1.1, 1.2, 1.5, 2.0, 4.0)},
    }


def main() -> None:
    """Print it all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=20.0, help="job-days to live through for each set")
    parser.add_argument("--stall-days", type=float, default=20_000.0, help="job-days whose stalls strike")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.days, given.stall_days, given.seed)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{found['days']:g} job-days each, stalls of {found['stall_days']:g}; a healthy job: {found['pauses']}")
    print(f"the policy's hang rule: {found['hang_rule']}")
    for row in found["false_stops_per_1000_job_days"]:
        silent = f", {row['silent_share']:.0%} of them with a silent file" if row["silent_share"] else ""
        print(
            f"steps of {row['step_s']:g} s, patience {row['patience_s']:g} s, stalls of tail {row['stall_tail']:g}"
            f"{silent}: {row['rate']:g} false stops per 1,000 job-days (95 %: at most {row['at_most']:g}), "
            f"{row['named']:g} named; without stalls {row['without_stalls']} stops, {row['slowdowns']} slowdowns"
        )
    print(f"new jobs, first ten saves and evals: {found['new_jobs']}")
    print(f"false stragglers, 4 ranks: {found['false_stragglers_per_1000_job_days']}")
    print(f"a crash is named {found['crash_to_name_s']:g} s after its line (median)")
    print(f"its attempt's end is diagnosed so many seconds after the line (quartiles): {found['crash_to_diagnosis_s']}")
    print(f"hang, a rank's process stopped: {found['hang_confirmed']}")
    print(f"hang, a rank's file silent: {found['hang_silent_file']}")
    print(f"hang, nothing seen: {found['hang_unconfirmed']}")
    print(f"a rank so many times slower is named after so many steps: {found['straggler_steps']}")


if __name__ == "__main__":
    main()
