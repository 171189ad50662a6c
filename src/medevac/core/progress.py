"""How long a job may go without progress before it counts as hung, learned from its own pace.

A report says "this phase begins now" (for `step`: "one more step is done, the next begins"). The time between two
reports belongs to the phase of the first, so a phase that reports often is never charged for the ones around it.
Learned values survive a restart of the job: its steps take as long as they took before.
"""

from __future__ import annotations

import math

import msgspec

from medevac.core.events import Phase


class HangRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The numbers of the hang limit, seconds; policy data. The defaults are those of DESIGN 5a.

    Step: clamp(step_factor x p99 of the last `window` steps + margin_s, floor_s, ceiling_s) from `min_steps` on.
    Eval and save: phase_factor x the longest one seen, at least floor_s. All else, and the unlearned: ceiling_s.
    """

    step_factor: float = 2.0
    margin_s: float = 3.0
    floor_s: float = 5.0
    ceiling_s: float = 1800.0
    window: int = 200
    min_steps: int = 10
    phase_factor: float = 3.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What one job (or rank) has shown of its pace so far. Times are unix seconds, durations seconds."""

    rule: HangRule = HangRule()
    phase: Phase | None = None
    since: float = 0.0
    steps: tuple[float, ...] = ()
    eval_max: float = 0.0
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
        longest = {"eval": self.eval_max, "save": self.save_max}.get(phase, 0.0)
        return max(rule.phase_factor * longest, rule.floor_s) if longest > 0 else rule.ceiling_s

    def deadline(self) -> float | None:
        """When the present phase counts as hung; None before the first report and after the end."""
        if self.phase is None or self.phase == "end":
            return None
        return self.since + self.limit(self.phase)

    def _learn(self, then: Phase, took: float) -> Pace:
        if self.phase == "step" and then == "step":
            return msgspec.structs.replace(self, steps=(*self.steps, took)[-self.rule.window :])
        if self.phase == "eval":
            return msgspec.structs.replace(self, eval_max=max(self.eval_max, took))
        if self.phase == "save":
            return msgspec.structs.replace(self, save_max=max(self.save_max, took))
        return self


def percentile(values: tuple[float, ...], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` of `values` do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
