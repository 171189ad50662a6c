"""How long a job may go without progress before it is called hung, learned from its own pace, and how long after.

A report says "this phase begins now" (for `step`: "one more step is done, the next begins"). The time between two
reports belongs to the phase of the first, so a phase that reports often is never charged for the ones around it.
Learned values survive a restart of the job: its steps take as long as they took before.
"""

from __future__ import annotations

import math

import msgspec

from medevac.core.events import Phase

EVIDENCE = (
    "process-stopped",
    "process-traced",
    "process-silent",
    "process-blocked",
    "flight-recorder-missing-dump",
    "flight-recorder-behind",
    "flight-recorder-not-started",
    "flight-recorder-mismatch",
    "flight-recorder-all-started",
    "stack-outside",
    "stack-loader",
    "stack-collective",
    "gpu-idle",
    "gpu-busy",
)
"""What a look at a silent attempt may find, by the names of its clues."""


SUSPENDED = "job-suspended"
"""The scheduler has stopped the job for a while: no hang, however long."""


class HangRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The numbers of a hang, seconds; policy data (ADR 0021).

    The limit, at which a hang is named and looked at. Step: clamp(step_factor x p99 of the last `window` steps +
    margin_s, floor_s, ceiling_s) from `min_steps` on. Eval and save: phase_factor x the longest one seen, at least
    phase_floor_s, from `min_phases` of them on. All else, and the unlearned: ceiling_s.

    It is acted on when a clue of `confirmed_by` is found, else `patience_s` after the limit. Looks follow each other
    after a quarter of the silence, at least look_s, at most look_most_s. `stacks`: py-spy may read the ranks' stacks.
    """

    step_factor: float = 2.0
    margin_s: float = 3.0
    floor_s: float = 5.0
    ceiling_s: float = 1800.0
    window: int = 200
    min_steps: int = 10
    phase_factor: float = 3.0
    phase_floor_s: float = 60.0
    min_phases: int = 3
    patience_s: float = 300.0
    look_s: float = 2.0
    look_most_s: float = 60.0
    silent_s: float = 8.0
    stacks: bool = False
    confirmed_by: tuple[str, ...] = (
        "process-stopped",
        "process-silent",
        "flight-recorder-behind",
        "flight-recorder-not-started",
        "flight-recorder-mismatch",
        "flight-recorder-all-started",
    )


class Looks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often one silence, which began at `since`, was looked at, and when next."""

    since: float = -1.0
    times: int = 0
    next_at: float = 0.0

    def after(self, since: float, now: float, rule: HangRule) -> Looks:
        """With one more look, at `now`."""
        times = self.times if self.since == since else 0
        pause = min(max((now - since) * LOOK_SHARE, rule.look_s), rule.look_most_s)
        return Looks(since=since, times=times + 1, next_at=now + max(pause, SOONEST_S))

    def due(self, since: float, named: float, rule: HangRule) -> float:
        """When the silence since then, named at its limit, is to be looked at next, or stopped."""
        return min(self.next_at, named + rule.patience_s) if self.since == since else named


SOONEST_S = 0.5
"""Between two looks, whatever the policy says."""
LOOK_SHARE = 0.25
"""The next look comes when the silence has lasted so much longer."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What one job (or rank) has shown of its pace so far. Times are unix seconds, durations seconds."""

    rule: HangRule = HangRule()
    phase: Phase | None = None
    since: float = 0.0
    steps: tuple[float, ...] = ()
    evals: int = 0
    eval_max: float = 0.0
    saves: int = 0
    save_max: float = 0.0

    def after(self, phase: Phase, at: float) -> Pace:
        """The pace with one more report: `phase` was entered (or a step completed) at `at`.

        A report older than the last one changes nothing, so that late or doubled reports are harmless.
        """
        if self.phase is None:
            return msgspec.structs.replace(self, phase=phase, since=at)
        if at < self.since:
            return self
        learned = self._learn(phase, at - self.since)
        return msgspec.structs.replace(learned, phase=phase, since=at)

    def looked_away(self, until: float) -> Pace:
        """The pace when nobody listened before `until`: the present phase is given its time anew from there."""
        return self if self.phase is None else msgspec.structs.replace(self, since=max(self.since, until))

    def limit(self, phase: Phase) -> float:
        """Seconds that `phase` may last without a report; infinite for `end`."""
        rule = self.rule
        if phase == "end":
            return math.inf
        if phase == "step" and len(self.steps) >= rule.min_steps:
            wanted = rule.step_factor * percentile(self.steps, 0.99) + rule.margin_s
            return min(max(wanted, rule.floor_s), rule.ceiling_s)
        seen, longest = {"eval": (self.evals, self.eval_max), "save": (self.saves, self.save_max)}.get(phase, (0, 0.0))
        learned = seen >= rule.min_phases and longest > 0
        return max(rule.phase_factor * longest, rule.phase_floor_s) if learned else rule.ceiling_s

    def deadline(self) -> float | None:
        """When the present phase counts as hung; None before the first report and after the end."""
        if self.phase is None or self.phase == "end":
            return None
        return self.since + self.limit(self.phase)

    def _learn(self, then: Phase, took: float) -> Pace:
        if self.phase == "step" and then == "step":
            return msgspec.structs.replace(self, steps=(*self.steps, took)[-self.rule.window :])
        if self.phase == "eval":
            return msgspec.structs.replace(self, evals=self.evals + 1, eval_max=max(self.eval_max, took))
        if self.phase == "save":
            return msgspec.structs.replace(self, saves=self.saves + 1, save_max=max(self.save_max, took))
        return self


def percentile(values: tuple[float, ...], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` of `values` do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
