"""A small cluster, its storm and one training job in virtual time, decided on by the code that decides live."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import msgspec

from medevac.core.actions import AnyAction, Isolate, RequestCheckpoint, StartAttempt, StopAttempt, VerifyCheckpoint
from medevac.core.decide import decide
from medevac.core.events import (
    ActionSettled,
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointVerified,
    ClusterSeen,
    EccCounted,
    EnvironmentSeen,
    JobPolicy,
    JobSubmitted,
    TimePassed,
)
from medevac.core.policy import Policy
from medevac.core.view import View
from medevac.decode.context import Context
from medevac.decode.lines import decode_line
from medevac.ports.store import DecisionRecord, EventRecord, Record
from medevac.sim.lines import stamped
from medevac.sim.storm import AnyShown, Corruption, Counters, Environment, KernelMessage, Storm
from medevac.sim.training import Training

EPOCH = 1_800_000_000.0
JOB = "train"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take in the simulated cluster, seconds."""

    step: float = 0.06
    start: float = 1.0
    stop: float = 0.1
    verify: float = 0.02
    isolate: float = 0.05
    see_line: float = 0.1
    poll_ecc: float = 2.0


class World:
    """Runs until the job's recovery is over. `records` is the log that a live controller would have written."""

    def __init__(self, storm: Storm, policy: Policy, *, steps: int = 300, save_every: int = 25, ranks: int = 8) -> None:
        self.storm = storm
        self.policy = policy
        self.ranks = ranks
        self.training = Training(JOB, steps, save_every)
        self.pace = Pace()
        self.view = View.under(policy)
        self.records: list[Record] = []
        self.now = EPOCH
        self.corrupted: set[str] = set()
        self.counters = {one.gpu: one for one in storm.baseline}
        self.leaving = False
        self.struck = False
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._alarm = 0
        self._context = Context(reference=EPOCH)

    def run(self, limit_s: float = 600.0) -> str:
        """Play to the end; the state in which the job's recovery ended (or was, at the limit)."""
        self.tell(ClusterSeen(at=self.now, nodes=self.storm.nodes))
        policy = JobPolicy(checkpoint_dir="/checkpoints")
        self.tell(JobSubmitted(at=self.now, job=JOB, ranks=self.ranks, policy=policy))
        self._poll_ecc()
        over = {"finished", "gave-up", "held", "watched", "ended"}
        while self._queue and self.now < EPOCH + limit_s and self.view.jobs[JOB].state not in over:
            self.now, _, todo = heapq.heappop(self._queue)
            todo()
        return self.view.jobs[JOB].state

    def after(self, seconds: float, todo: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), todo))

    def tell(self, event: AnyEvent) -> None:
        """The controller's loop: take the event in, decide, write down, do."""
        self.records.append(EventRecord(seq=len(self.records) + 1, event=event))
        self.view = self.view.apply(event, len(self.records))
        decision = decide(self.view, event, self.policy)
        self.view = self.view.after(decision)
        if not decision.empty():
            self.records.append(DecisionRecord(seq=len(self.records) + 1, decision=decision))
        for action in decision.actions:
            self._perform(action)
        self._set_alarm()

    def _set_alarm(self) -> None:
        due = self.view.deadline()
        self._alarm += 1
        if due is not None:
            mine = self._alarm
            self.after(max(due - self.now, 0.05), lambda: self._ring(mine))

    def _ring(self, mine: int) -> None:
        if mine == self._alarm:
            self.tell(TimePassed(at=self.now))

    def _perform(self, action: AnyAction) -> None:
        match action:
            case StartAttempt():
                self.after(self.pace.start, lambda: self._start(action))
            case StopAttempt():
                self.after(self.pace.stop, lambda: self._stop(action))
            case VerifyCheckpoint():
                self.after(self.pace.verify, lambda: self._verify(action))
            case RequestCheckpoint():
                self.leaving = True
                self._settle(action)
            case Isolate():
                self.after(self.pace.isolate, lambda: self._settle(action))
            case _:
                self._settle(action)

    def _settle(self, action: AnyAction) -> None:
        done = ActionSettled(at=self.now, id=f"{action.id}:done", action=action.id, outcome="done")
        self.after(0.0, lambda: self.tell(done))

    def _start(self, action: StartAttempt) -> None:
        self.leaving = False
        self.training.load(action.attempt, action.ranks, action.resume_from)
        self._settle(action)
        started = AttemptStarted(
            at=self.now, job=JOB, attempt=action.attempt, ranks=action.ranks, resume_from=action.resume_from
        )
        self.tell(started)
        self.after(self.pace.step, lambda: self._step(action.attempt))

    def _step(self, attempt: int) -> None:
        training = self.training
        if attempt != training.attempt:
            return
        for event in training.advance(self.now, self.corrupted):
            self.tell(event)
        if len(training.disk) >= 2 and not self.struck:
            self.struck = True
            for shown in self.storm.shown:
                self.after(shown.at, lambda shown=shown: self._show(shown))  # type: ignore[misc]
        if training.done() or self.leaving:
            if self.leaving and not training.done():
                self.tell(training.save(self.now))
            self._end(0 if training.done() else 83, "")
        else:
            self.after(self.pace.step, lambda: self._step(attempt))

    def _stop(self, action: StopAttempt) -> None:
        self._settle(action)
        if self.training.attempt == action.attempt:
            self._end(137, "stopped")

    def _end(self, code: int, why: str) -> None:
        attempt, self.training.attempt = self.training.attempt, 0
        self.tell(AttemptEnded(at=self.now, job=JOB, attempt=attempt, code=code, why=why))

    def _verify(self, action: VerifyCheckpoint) -> None:
        self._settle(action)
        self.tell(CheckpointVerified(at=self.now, job=JOB, step=action.step, ok=True))

    def _show(self, shown: AnyShown) -> None:
        match shown:
            case Corruption():
                self.corrupted.add(shown.gpu)
            case Counters():
                self.counters[shown.gpu] = shown
            case KernelMessage():
                line = stamped(shown.message, shown.node, self.now)
                self.after(self.pace.see_line, lambda: self._read(line))
            case Environment():
                event = EnvironmentSeen(
                    at=self.now, rack=shown.rack, node=shown.node, component=shown.component, state=shown.state
                )
                self.after(self.pace.see_line, lambda: self.tell(event))

    def _read(self, line: str) -> None:
        event = decode_line(line, self._context)
        if event is not None:
            self.tell(msgspec.structs.replace(event, seen_at=self.now))

    def _poll_ecc(self) -> None:
        for one in self.counters.values():
            self.tell(
                EccCounted(
                    at=self.now,
                    node=one.node,
                    gpu=one.gpu,
                    pci=one.pci,
                    sbe=one.sbe,
                    dbe=one.dbe,
                    remapped_rows=one.remapped_rows,
                )
            )
        self.after(self.pace.poll_ecc, self._poll_ecc)


def undisturbed(steps: int) -> int:
    """The digest that a run without faults ends with."""
    training = Training(JOB, steps, steps)
    training.load(1, (), None)
    while not training.done():
        training.advance(EPOCH, ())
    return training.digest
