"""A cluster, a scheduler, a training and its checkpoint folder in virtual time, around the real decision step."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

from tests.scenario import script as say

from medevac.catalog.policy import load_policy
from medevac.controller.step import advance
from medevac.core import events as ev
from medevac.core.actions import (
    AnyAction,
    ExamineAttempt,
    FinishJob,
    RequestCheckpoint,
    StartAttempt,
    StopAttempt,
    VerifyCheckpoint,
)
from medevac.core.decision import Decision
from medevac.core.diagnose_case import Clue
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.ports.store import DecisionRecord, EventRecord, Record

START = 1_790_000_000.0
SETTLES_AFTER = {
    "StartAttempt": 0.6,
    "StopAttempt": 0.4,
    "ExamineAttempt": 0.5,
    "VerifyCheckpoint": 0.3,
    "Isolate": 0.1,
}
MOST_EVENTS = 20_000


class World:
    """Runs a script; `records` is the log that a store would hold."""

    def __init__(self, script: say.Script, policy: Policy | None = None) -> None:
        self.script = script
        self.policy = policy or load_policy(script.about.policy, script.about.mode)
        self.view = View.under(self.policy)
        self.records: list[Record] = []
        self.finished: FinishJob | None = None
        self._heap: list[tuple[float, int, ev.AnyEvent]] = []
        self._order = itertools.count()
        self._running: StartAttempt | None = None
        self._hung: tuple[int, int] | None = None
        self._stopped = False
        self._parent: int | None = None
        self._refusals = {m.action: m for m in script.mess if isinstance(m, say.Refuses)}
        self._refused: dict[str, int] = {}

    def run(self) -> list[Record]:
        """All of it, until the job is done with, nothing more can happen or the script's time is up."""
        self._set_up()
        until = START + self.script.about.lasts
        while len(self.records) < MOST_EVENTS:
            at = self._heap[0][0] if self._heap else math.inf
            due = self.view.deadline()
            if due is not None and due < at and due <= until:
                self._take(ev.TimePassed(at=max(due, self.view.now)))
            elif at <= until:
                _, _, event = heapq.heappop(self._heap)
                if self._still_true(event):
                    self._take(event)
            else:
                return self.records
        raise AssertionError(f"no end in sight: {self.records[-1]}")

    def _set_up(self) -> None:
        cluster, job = self.script.cluster, self.script.job
        self._plan(0.0, ev.ClusterSeen(at=START, nodes=tuple(_nodes(cluster))))
        self._plan(
            0.1,
            ev.JobSubmitted(
                at=START + 0.1,
                job=job.name,
                command=("python", "train.py"),
                ranks=job.ranks,
                policy=job.policy,
            ),
        )
        for line in self.script.mess:
            for event in _events(line, job):
                self._heap_push(event.seen_at or event.at, event)

    def _plan(self, after: float, event: ev.AnyEvent) -> None:
        self._heap_push(START + after, event)

    def _heap_push(self, at: float, event: ev.AnyEvent) -> None:
        heapq.heappush(self._heap, (at, next(self._order), event))

    def _still_true(self, event: ev.AnyEvent) -> bool:
        """What a training would have done had it not been stopped, or hung, does not happen."""
        if not isinstance(event, ev.StepReported | ev.CheckpointSealed | ev.AttemptEnded | ev.ResumedFrom):
            return True
        if self._running is None or self._running.attempt != event.attempt:
            return False
        if self._hung is None or (isinstance(event, ev.AttemptEnded) and event.why):
            return True
        rank, step = self._hung
        return isinstance(event, ev.StepReported) and event.step == step + 1 and event.rank != rank

    def _take(self, event: ev.AnyEvent) -> None:
        record = EventRecord(seq=len(self.records) + 1, event=event)
        self.records.append(record)
        self._live(event)
        before = self.view.deadline()
        self.view, decision = advance(self.view, record, self.policy)
        if isinstance(event, ev.TimePassed):
            assert self.view.deadline() != before or before is None or before > event.at, "time stands still"
        if not decision.empty():
            self.records.append(DecisionRecord(seq=len(self.records) + 1, decision=decision))
            self._perform(decision, event.seen_at or event.at)

    def _live(self, event: ev.AnyEvent) -> None:
        """What an event of the training brings next."""
        if isinstance(event, ev.AttemptEnded) and self._running and event.attempt == self._running.attempt:
            self._running = None
        if isinstance(event, ev.StepReported) and self._running and event.rank == 0:
            self._after_step(event)
        if isinstance(event, ev.CheckpointSealed):
            self._parent = event.step

    def _after_step(self, event: ev.StepReported) -> None:
        job, at, step = self.script.job, event.at, event.step
        for line in self.script.mess:
            if isinstance(line, say.Mishap) and line.step == step and line.attempt in {0, event.attempt}:
                self._mishap(line, event)
        if not event.finite or (self._hung and step > self._hung[1]):
            return
        if step and step % job.save_every == 0:
            self._heap_push(at + 0.1, self._seal(event, at + 0.1))
        if step >= job.steps:
            done = ev.AttemptEnded(at=at + 0.2, job=event.job, attempt=event.attempt, code=0)
            self._heap_push(at + 0.2, done)
            return
        for rank in reversed(range(max(job.ranks, 1))):
            self._heap_push(at + job.step_s, self._step(event.attempt, step + 1, rank, at + job.step_s))

    def _step(self, attempt: int, step: int, rank: int, at: float) -> ev.StepReported:
        loss = round(2.5 * math.exp(-step / 25) + 0.1, 4)
        return ev.StepReported(at=at, job=self.script.job.name, attempt=attempt, step=step, rank=rank, loss=loss)

    def _seal(self, event: ev.StepReported, at: float) -> ev.CheckpointSealed:
        assert self._running
        ranks = tuple(
            ev.SealRank(rank=place.rank, node=place.node, gpu_uuid=place.gpus[0] if place.gpus else "")
            for place in self._running.ranks
        )
        return ev.CheckpointSealed(
            at=at, job=event.job, attempt=event.attempt, step=event.step, parent=self._parent, ranks=ranks
        )

    def _mishap(self, line: say.Mishap, event: ev.StepReported) -> None:
        at, job, attempt = event.at + 0.05, event.job, event.attempt
        if line.what in {"hang", "stuck"}:
            self._hung, self._stopped = (line.rank, event.step), line.what == "hang"
        elif line.what == "nan":
            bad = ev.StepReported(at=at, job=job, attempt=attempt, step=event.step, rank=line.rank, finite=False)
            self._heap_push(at, bad)
        else:
            exits = (ev.RankExit(rank=line.rank, code=line.code, at=at),) if line.code else ()
            self._heap_push(at, ev.AttemptEnded(at=at, job=job, attempt=attempt, code=line.code, exits=exits))

    def _seen(self, action: ExamineAttempt) -> Clue:
        assert self._hung
        rank, places = self._hung[0], self.view.jobs[action.job].ranks
        node = next(place.node for place in places if place.rank == rank)
        text = f"rank {rank} (process 4{rank} on {node}) is stopped (state T)"
        return Clue(
            signature="process-stopped", role="symptom", symptom="hang", text=text, rank=rank, node=node, names="rank"
        )

    def _perform(self, decision: Decision, at: float) -> None:
        for action in decision.actions:
            kind = type(action).__name__
            then = at + SETTLES_AFTER.get(kind, 0.05)
            refusal = self._refusals.get(kind)
            if refusal and self._refused.get(kind, 0) < refusal.times:
                self._refused[kind] = self._refused.get(kind, 0) + 1
                told = ev.ActionSettled(at=then, action=action.id, outcome="refused", why=refusal.why)
                self._heap_push(then, told)
                continue
            for event in self._answer(action, then):
                self._heap_push(event.at, event)

    def _answer(self, action: AnyAction, at: float) -> Iterator[ev.AnyEvent]:
        job = self.script.job
        match action:
            case StartAttempt():
                self._running, self._hung = action, None
                yield ev.AttemptStarted(
                    at=at, job=job.name, attempt=action.attempt, ranks=action.ranks, resume_from=action.resume_from
                )
                loads = [m for m in self.script.mess if isinstance(m, say.LoadsAnyway) and m.attempt == action.attempt]
                step = loads[0].step if loads else action.resume_from
                self._parent = step
                yield ev.ResumedFrom(at=at + 0.8, job=job.name, attempt=action.attempt, step=step)
                yield self._step(action.attempt, (step or 0) + 1, 0, at + 1.0)
            case StopAttempt() if self._running and self._running.attempt == action.attempt:
                exits = tuple(ev.RankExit(rank=p.rank, code=137, signal=9, at=at) for p in self._running.ranks)
                yield ev.AttemptEnded(at=at, job=job.name, attempt=action.attempt, code=137, exits=exits, why="stopped")
            case ExamineAttempt() if self._hung and self._stopped:
                yield ev.AttemptExamined(at=at, job=job.name, attempt=action.attempt, clues=(self._seen(action),))
            case RequestCheckpoint() if self._running and job.leaves_when_asked:
                step = max(self.view.jobs[job.name].reached, 0)
                last = self._step(action.attempt, step, 0, at)
                yield self._seal(last, at + 0.9)
                yield ev.AttemptEnded(at=at + 1.0, job=job.name, attempt=action.attempt, code=83)
            case VerifyCheckpoint():
                bad = [m for m in self.script.mess if isinstance(m, say.Corrupt) and m.step == action.step]
                yield ev.CheckpointVerified(
                    at=at, job=job.name, step=action.step, ok=not bad, problem=bad[0].problem if bad else ""
                )
            case FinishJob():
                self.finished = action
        yield ev.ActionSettled(at=at, action=action.id, outcome="done")


def gpu(name: str) -> str:
    """`node1/0` as the UUID of that GPU; any other word is itself."""
    return f"GPU-{name.replace('/', '-')}" if "/" in name else name


def _pci(name: str) -> str:
    return f"0000:{0x10 + int(name.split('/')[1]) * 0x10:02x}:00.0"


def _nodes(cluster: say.Cluster) -> Iterator[ev.Node]:
    per_rack = max(cluster.nodes // cluster.racks, 1)
    for number in range(cluster.nodes):
        name, rack = f"node{number + 1}", min(number // per_rack, cluster.racks - 1) + 1
        gpus = tuple(ev.Gpu(index=i, uuid=gpu(f"{name}/{i}"), pci=_pci(f"{name}/{i}")) for i in range(cluster.gpus))
        yield ev.Node(name=name, rack=f"rack{rack}", feed=f"feed{rack}", gpus=gpus)


def _events(line: say.Mess, job: say.Job) -> Iterator[ev.AnyEvent]:
    match line:
        case say.Xid():
            for n in range(line.times):
                at = START + line.at + n * line.every
                yield ev.FaultSeen(
                    at=at,
                    seen_at=at + line.seen_after,
                    kind="xid",
                    code=line.code,
                    node=line.gpu.split("/")[0],
                    pci=_pci(line.gpu),
                    details={"row": f"0x{n:04x}"} if line.code in {48, 63} else {},
                )
        case say.Ecc():
            yield ev.EccCounted(
                at=START + line.at,
                node=line.gpu.split("/")[0],
                gpu=gpu(line.gpu),
                sbe=line.sbe,
                dbe=line.dbe,
                remapped_rows=line.remapped_rows,
            )
        case say.Power():
            yield ev.EnvironmentSeen(
                at=START + line.at, rack=line.rack, component="psu", state=line.state, text="PSU 2: output voltage low"
            )
        case say.Order():
            target = gpu(line.target)
            at = START + line.at
            yield ev.OrderGiven(at=at, what=line.what, who="alex", target=target, step=line.step)
        case say.Unsealed():
            why = "medevac.json: No such file or directory"
            yield ev.CheckpointFound(at=START + line.at, job=job.name, step=line.step, why=why)
