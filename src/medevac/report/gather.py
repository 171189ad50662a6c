"""One pass over a log that notes what a job's story needs: its attempts, its recoveries, the moments that count."""

from __future__ import annotations

import msgspec

from medevac.controller.step import refold
from medevac.core.actions import AnyAction, FinishJob, JudgeCheckpoint, Page, PointClean, StartAttempt
from medevac.core.decision import Decision, Held, Moved
from medevac.core.events import (
    ActionSettled,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointSealed,
    EnvironmentSeen,
    OrderGiven,
    ResumedFrom,
    StepReported,
)
from medevac.core.job_recovery import OVER
from medevac.core.jobs import Checkpoint, Job
from medevac.core.lineage import Verdict, verdicts
from medevac.core.recover import hit
from medevac.core.view import View
from medevac.ports.store import EventRecord, Record
from medevac.report.model import CheckpointTold, HeldTold, InPlace, Kind, Moment, Point, Recovery
from medevac.report.words import Names, diagnosis, listed

DISTURBS = {"leaving", "stopping", "backing-off", "gave-up", "held"}
RUNNING = {"starting", "proving", "running"}
QUIET = (JudgeCheckpoint, PointClean, Page, FinishJob)
MOST_POINTS = 400


class AttemptNotes(msgspec.Struct, kw_only=True):
    """What was seen of one attempt so far."""

    number: int
    started: AttemptStarted | None = None
    ended: AttemptEnded | None = None
    loaded: int | None = None
    why: str = ""
    diagnosis: str = ""
    proved_at: float | None = None
    bad: Point | None = None
    curve: list[Point] = []

    def base(self) -> int | None:
        """The step that it loaded, or was told to load where it said nothing."""
        return self.loaded if self.loaded is not None else self.started.resume_from if self.started else None

    def reached(self) -> int | None:
        """The furthest sound step."""
        return self.curve[-1].step if self.curve else None


class Notes:
    """Everything noted of a job; `view` is where the log ends."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.view = View()
        self.names = Names(self.view)
        self.attempts: dict[int, AttemptNotes] = {}
        self.recoveries: list[Recovery] = []
        self.moments: list[Moment] = []
        self.held: dict[tuple[str, str], HeldTold] = {}
        self.used: dict[tuple[int, int], list[int]] = {}
        self.replaced: list[CheckpointTold] = []
        self.in_place: dict[tuple[int, int, str], InPlace] = {}
        self.policy = self.why = ""
        self.start = self.end = 0.0
        self._open: Recovery | None = None
        self._environment: set[tuple[str, str, str]] = set()

    def read(self, records: list[Record]) -> None:
        """Note a whole log."""
        for view, record, decision in refold(View(), records):
            before, self.view = self.view, view
            if view.nodes is not before.nodes:
                self.names = Names(view)
            self._span(before)
            self._event(before, record.event)
            if decision is not None:
                self._decision(before, record, decision)
        self._close()

    def _span(self, before: View) -> None:
        """The job's own time: a state folder has other jobs, earlier and later ones."""
        if self.job in self.view.jobs and self.job not in before.jobs:
            self.start = self.end = self.view.now
        elif self.job in before.jobs and before.jobs[self.job].state not in OVER:
            self.end = max(self.end, self.view.now)

    def _of_others(self, action: AnyAction) -> bool:
        return getattr(action, "job", self.job) != self.job

    def _say(self, at: float, kind: Kind, text: str, decision: str = "") -> None:
        since = self._open
        self.moments.append(
            Moment(
                at=at,
                kind=kind,
                text=self.names.plain(text),
                decision=decision,
                recovery=since.number if since else 0,
                after=round(at - since.fault_at, 3) if since else None,
            )
        )

    def _event(self, before: View, event: AnyEvent) -> None:
        match event:
            case EnvironmentSeen():
                known = (event.rack, event.component, event.state)
                if known not in self._environment and event.state != "ok":
                    told = f": {event.text}" if event.text else ""
                    self._say(event.at, "environment", f"{event.component} {event.state} in {event.rack}{told}")
                self._environment.add(known)
            case OrderGiven():
                target = f" {event.target}" if event.target else ""
                step = "" if event.step is None else f" at step {event.step}"
                self._say(event.at, "order", f"{event.who} ordered: {event.what}{target}{step}")
            case ActionSettled() if self.view.settled is not None:
                self._settled(self.view.settled, event)
        if getattr(event, "job", "") == self.job:
            if isinstance(event, CheckpointSealed):
                self._sealed(before, event)
            self._of_job(event)

    def _sealed(self, before: View, event: CheckpointSealed) -> None:
        """A step saved again: what was known of the one before would be lost."""
        job = before.jobs.get(self.job)
        known = job.checkpoints.get(event.step) if job else None
        if job and known and known.sealed_at is not None and known.attempt != event.attempt:
            told = self.checkpoint(known, verdicts(job, before.doubts)[event.step])
            self.replaced.append(msgspec.structs.replace(told, replaced=True))

    def checkpoint(self, known: Checkpoint, verdict: Verdict) -> CheckpointTold:
        """A checkpoint as it is told."""
        return CheckpointTold(
            step=known.step,
            attempt=known.attempt,
            sealed_at=known.sealed_at,
            parent=known.parent,
            state=verdict.state,
            why=self.names.plain(verdict.why),
            ranks=len(known.ranks),
            used=tuple(self.used.get((known.step, known.attempt), ())),
        )

    def _settled(self, action: AnyAction, event: ActionSettled) -> None:
        if self._of_others(action) or (isinstance(action, (StartAttempt, *QUIET)) and event.outcome == "done"):
            return
        said = self.names.action(action)
        if event.outcome == "done":
            self._say(event.at, "done", f"done: {said}")
        else:
            self._say(event.at, "refused", f"{event.outcome}: {said}: {event.why}")

    def _of_job(self, event: AnyEvent) -> None:
        number = getattr(event, "attempt", 0)
        if not number:
            return
        notes = self.attempts.setdefault(number, AttemptNotes(number=number))
        match event:
            case AttemptStarted():
                notes.started = event
                self._update(restarted_at=event.at, to_attempt=number)
                origin = "" if event.resume_from is None else f" from step {event.resume_from}"
                self._say(event.at, "start", f"attempt {number} started{origin}")
            case AttemptEnded():
                notes.ended = event
            case ResumedFrom():
                notes.loaded = event.step
                known = self.view.jobs[self.job].checkpoints.get(-1 if event.step is None else event.step)
                if known and number not in self.used.setdefault((known.step, known.attempt), []):
                    self.used[known.step, known.attempt].append(number)
            case StepReported():
                self._stepped(notes, event)

    def _stepped(self, notes: AttemptNotes, event: StepReported) -> None:
        if event.handled:
            text = f"rank {event.rank} found step {event.step} to be bad; handled in place: {event.handled}"
            self._say(event.at, "detection", text)
            one = InPlace(at=event.at, attempt=event.attempt, step=event.step, how=event.handled)
            self.in_place.setdefault((one.attempt, one.step, one.how), one)  # each rank at fault tells it
            return
        if not event.finite:
            if notes.bad is None:
                notes.bad = Point(at=event.at, step=event.step)
                self._say(event.at, "fault", f"rank {event.rank} reports NaN or infinity at step {event.step}")
            return
        if event.phase == "step" and (not notes.curve or event.step > notes.curve[-1].step) and notes.bad is None:
            first = not notes.curve
            notes.curve.append(Point(at=event.at, step=event.step, loss=event.loss))
            if first and self._open and self._open.to_attempt == notes.number > self._open.from_attempt:
                self._update(first_step_at=event.at)
                self._say(event.at, "first-step", f"attempt {notes.number} computes again: step {event.step}")

    def _decision(self, before: View, record: EventRecord, decision: Decision) -> None:
        self.policy = decision.policy or self.policy
        for finding in decision.findings:
            text = f"{self.names.part(finding.part)}: {finding.meaning}"
            self._say(finding.at, "fault" if finding.response in {"soft", "hard"} else "detection", text, decision.id)
        for one in decision.diagnoses:
            if one.job == self.job and one.attempt in self.attempts:
                self.attempts[one.attempt].diagnosis = self.names.plain(diagnosis(one.verdict))
        for moved in decision.moved:
            if moved.trigger.machine == "job" and moved.trigger.who == self.job:
                self._moved(before, record.event, decision, moved)
        done = [one for one in decision.actions if not isinstance(one, QUIET) and not self._of_others(one)]
        if done:
            phrases = listed(self.names.action(action) for action in done)
            self._say(decision.at, "decision", phrases, decision.id)
        for action in decision.actions:
            for key, held in self.held.items():
                if key[0] == action.id and held.done_at is None:
                    self.held[key] = msgspec.structs.replace(held, done_at=decision.at)
        for held_back in decision.held:
            self._held(decision, held_back)

    def _held(self, decision: Decision, held: Held) -> None:
        if self._of_others(held.action):
            return
        key = (held.action.id, held.guard)
        if key not in self.held:
            what = self.names.action(held.action)
            why = self.names.plain(held.why)
            self.held[key] = HeldTold(
                at=decision.at, guard=held.guard, what=what, why=why, decision=decision.id, done_at=None
            )
            self._say(decision.at, "held", f"held back by {held.guard}: {what} ({why})", decision.id)

    def _moved(self, before: View, event: AnyEvent, decision: Decision, moved: Moved) -> None:
        job = before.jobs.get(self.job)
        notes = self.attempts.get(job.attempt) if job else None
        if job and moved.source in RUNNING and moved.target in DISTURBS and job.attempt:
            why = self.names.plain(moved.trigger.why) or moved.trigger.on
            if notes and not notes.why:
                notes.why = why
            self._disturbed(job, event, decision, moved, why)
        if isinstance(event, AttemptEnded) and event.job == self.job:
            if self._open and self._open.stopped_at is None:
                self._update(stopped_at=event.at)
            self._say(event.at, "ended", f"attempt {event.attempt} is over: {moved.trigger.why}", decision.id)
        if moved.trigger.on == "progress":
            self._proved(event.at, notes, moved, decision)
        if moved.target in {"finished", "gave-up", "held", "watched", "ended"}:
            if self._open and moved.target == "finished":
                self._close()
            self.why = self.names.plain(moved.trigger.why)
            why = f" ({moved.trigger.why})" if moved.trigger.why else ""
            self._say(decision.at, "outcome", f"job {self.job}: {moved.target}{why}", decision.id)

    def _proved(self, at: float, notes: AttemptNotes | None, moved: Moved, decision: Decision) -> None:
        if notes and notes.proved_at is None:
            notes.proved_at = at
        if self._open:
            self._update(proof_at=at)
            self._say(at, "proof", f"recovered: {moved.trigger.why}, the best of all attempts before", decision.id)
            self._close()

    def _disturbed(self, job: Job, event: AnyEvent, decision: Decision, moved: Moved, why: str) -> None:
        reached = max(job.best, job.reached, 0)
        if self._open:
            self._update(to_attempt=job.attempt, restarted_at=None, first_step_at=None)
            self._update(reached=max(reached, self._open.reached))
            return
        worst = hit(job, decision.findings)
        self._open = Recovery(
            number=len(self.recoveries) + 1,
            fault=f"{self.names.part(worst.part)}: {worst.meaning}" if worst else _fault(event, moved, why),
            decision=decision.id,
            incident=moved.trigger.cause,
            from_attempt=job.attempt,
            to_attempt=job.attempt,
            reached=reached,
            resumed=None,
            lost_steps=0,
            fault_at=worst.at if worst else _began(job, event, moved),
            detected_at=decision.at,
        )

    def _update(self, **changes: float | None) -> None:
        if self._open:
            self._open = msgspec.structs.replace(self._open, **changes)

    def _close(self) -> None:
        """The recovery is over, well or not: what it cost is known now."""
        if self._open is None:
            return
        best, last = self._open.reached, self._open.to_attempt
        tries = [self.attempts[n] for n in range(self._open.from_attempt + 1, last + 1) if n in self.attempts]
        lost = sum(max((best if one.number == last else one.reached() or 0) - (one.base() or 0), 0) for one in tries)
        self._update(resumed=tries[-1].base() if tries else None, lost_steps=lost)
        self.recoveries.append(self._open)
        self._open = None


def _fault(event: AnyEvent, moved: Moved, why: str) -> str:
    """A fault of the job itself, in words."""
    if isinstance(event, AttemptEnded) and event.exits and not event.why:
        first = event.exits[0]
        how = f"signal {first.signal}" if first.signal else f"exit code {first.code}"
        return f"rank {first.rank} died first, with {how}"
    return f"hung: {why}" if moved.trigger.on == "hung" else why


def _began(job: Job, event: AnyEvent, moved: Moved) -> float:
    """When the trouble began: a hang with the last progress, a crash with the first death."""
    if moved.trigger.on == "hung":
        return job.pace.since
    if isinstance(event, AttemptEnded) and event.exits and event.exits[0].at:
        return event.exits[0].at
    return event.at


def thinned(curve: list[Point]) -> tuple[Point, ...]:
    """At most `MOST_POINTS` of them, first and last always there."""
    every = max(1, -(-len(curve) // MOST_POINTS))
    kept = curve[::every]
    return tuple(kept if not curve or kept[-1] is curve[-1] else [*kept, curve[-1]])
