"""What is known of one job: its attempts, its pace, its checkpoints. Facts only; what follows is `recover`'s."""

from __future__ import annotations

from typing import Literal, TypeAlias

from immutables import Map
from msgspec.structs import replace

from medevac.core.actions import StartAttempt
from medevac.core.decision import Diagnosed, Struct
from medevac.core.diagnose_case import Clue, PastEnd
from medevac.core.events import (
    AttemptEnded,
    AttemptExamined,
    AttemptStarted,
    AttributionHeard,
    CheckpointFound,
    CheckpointJudged,
    CheckpointSealed,
    CheckpointVerified,
    CorruptionSeen,
    JobSubmitted,
    OutputRead,
    RankPlace,
    ResumedFrom,
    SealRank,
    StepReported,
)
from medevac.core.job_recovery import JOB
from medevac.core.progress import SUSPENDED, Looks, Pace
from medevac.core.slowness import Slowness

JobEvent: TypeAlias = (
    AttemptStarted
    | AttemptEnded
    | StepReported
    | ResumedFrom
    | CorruptionSeen
    | CheckpointSealed
    | CheckpointFound
    | CheckpointVerified
    | CheckpointJudged
    | OutputRead
    | AttemptExamined
    | AttributionHeard
)


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint as its folder shows it. `written` is the verdict in the lineage file, `problem` why its files
    cannot be trusted.
    """

    step: int
    sealed_at: float | None = None
    attempt: int = 0
    parent: int | None = None
    ranks: tuple[SealRank, ...] = ()
    problem: str = ""
    written: Literal["", "clean", "suspect", "condemned"] = ""
    written_at: float = 0.0
    written_why: str = ""


class Job(Struct, frozen=True, kw_only=True):
    """One job. `best` is the furthest sound step of earlier attempts, `reached` of this one; `unproven` how many
    attempts in a row ended without passing `best`; `lead` the step that rank 0 reported last (a job that goes back, or
    starts again inside its attempt, moves all the same); `bad` the (attempt, step) pairs where NaN or infinity showed,
    `bad_rank` the rank that said so last; `denied` why its last starts came to nothing (no-place, refused), `denials`
    how many in a row; `ran` where an attempt last really ran; `failed_as` how its last attempt failed by itself, ""
    once it is past that.
    """

    spec: JobSubmitted
    pace: Pace
    state: str = JOB.initial
    since: float = 0.0
    until: float | None = None
    on: str = ""
    why: str = ""
    cause: str = ""
    attempt: int = 0
    ranks: tuple[RankPlace, ...] = ()
    ran: tuple[RankPlace, ...] = ()
    resumed: int | None = None
    best: int = -1
    reached: int = -1
    lead: int = -1
    rank_steps: Map[int, int] = Map()
    restarts: int = 0
    unproven: int = 0
    denied: str = ""
    denials: int = 0
    failed_as: str = ""
    bad: tuple[tuple[int, int], ...] = ()
    bad_rank: int | None = None
    culprits: tuple[str, ...] = ()
    trusted: int | None = None
    ordered: int | None = None
    pointed: int | None = None
    chosen: int | None = None
    checkpoints: Map[int, Checkpoint] = Map()
    ended: AttemptEnded | None = None
    started_at: float = 0.0
    output: OutputRead | None = None
    examined: tuple[Clue, ...] = ()
    looks: Looks = Looks()
    suspended: bool = False
    ends: tuple[PastEnd, ...] = ()
    verdict: Diagnosed | None = None
    corrupted: CorruptionSeen | None = None
    slowness: Slowness = Slowness()

    def apply(self, event: JobEvent) -> Job:
        """The job with one more fact about it; what an older attempt says late changes nothing."""
        match event:
            case CheckpointSealed() | CheckpointFound() | CheckpointVerified() | CheckpointJudged():
                found = _checkpoint(self.checkpoints.get(event.step), event)
                return replace(self, checkpoints=self.checkpoints.set(event.step, found)) if found else self
        if event.attempt != self.attempt:
            return self
        match event:
            case AttemptStarted():
                return replace(
                    self,
                    ranks=event.ranks,
                    ran=event.ranks,
                    started_at=event.at,
                    pace=self.pace.after("start", event.seen_at or event.at),
                )
            case AttemptEnded():
                return replace(self, ended=event)
            case OutputRead():
                return self if event.live else replace(self, output=event)
            case AttemptExamined():
                return self._examined(event)
            case AttributionHeard():
                return self
            case ResumedFrom():
                return replace(self, resumed=event.step)
            case CorruptionSeen():
                return replace(self, corrupted=event)
            case StepReported():
                return self._stepped(event)

    def begun(self, action: StartAttempt | AttemptStarted) -> Job:
        """With a new attempt, of our own or of the scheduler's (Slurm and a person may requeue a job)."""
        return replace(
            self,
            attempt=action.attempt,
            ranks=action.ranks,
            resumed=action.resume_from,
            ordered=None,
            reached=-1,
            lead=-1,
            rank_steps=Map(),
            ended=None,
            output=None,
            examined=(),
            suspended=False,
            corrupted=None,
            pace=replace(self.pace, phase=None),
            slowness=self.slowness.afresh(),
        )

    def _examined(self, event: AttemptExamined) -> Job:
        """What was seen; a job that its scheduler has suspended cannot move, and is given its time anew."""
        if any(clue.signature == SUSPENDED for clue in event.clues):
            until = (event.seen_at or event.at) + self.pace.rule.look_most_s
            return replace(self, suspended=True, pace=self.pace.looked_away(until))
        return replace(self, examined=event.clues)

    def _stepped(self, event: StepReported) -> Job:
        if event.handled:
            return self
        if not event.finite:
            known = any(attempt == event.attempt for attempt, _ in self.bad)
            if known:
                return self
            return replace(self, bad=(*self.bad[-15:], (event.attempt, event.step)), bad_rank=event.rank)
        if any(attempt == event.attempt for attempt, _ in self.bad):
            return self
        seen = max(event.step, self.rank_steps.get(event.rank, -1))
        moves = event.rank == 0 and (event.phase, event.step) != (self.pace.phase, self.lead)
        tells = moves or event.step > self.reached or (event.rank == 0 and event.phase != "step")
        at = event.seen_at or event.at
        steps = tells and event.phase == self.pace.phase == "step"
        return replace(
            self,
            reached=max(self.reached, event.step),
            lead=event.step if event.rank == 0 else self.lead,
            rank_steps=self.rank_steps.set(event.rank, seen),
            pace=self.pace.after(event.phase, at) if tells else self.pace,
            examined=() if tells else self.examined,
            suspended=self.suspended and not tells,
            slowness=self.slowness.after(event, at - self.pace.since if steps else None),
        )

    def passed(self) -> bool:
        """This attempt got further than all before it."""
        return self.reached > self.best

    def spared(self) -> bool:
        """Its end is not its own doing: hardware, a checkpoint, or room for more ranks ended it."""
        return self.on in {"critical", "pre-failure", "suspect-resume", "room"}

    def behind(self) -> tuple[RankPlace, ...]:
        """The ranks that reported the lowest step, when the others are ahead; none where that says nothing."""
        steps = {place.rank: self.rank_steps.get(place.rank, -1) for place in self.ranks}
        if len(steps) < 2 or not self.rank_steps or not self.spec.gpus_per_rank:
            return ()
        lowest = min(steps.values())
        late = tuple(place for place in self.ranks if steps[place.rank] == lowest)
        return late if len(late) * 2 <= len(steps) else ()

    def own_gpus(self, rank: int | None) -> tuple[str, ...]:
        """The GPUs of a rank of ours; none where a launcher has several for ranks that it starts itself."""
        most = max(self.spec.gpus_per_rank, 1)
        return next((place.gpus for place in self.ranks if place.rank == rank and len(place.gpus) <= most), ())

    def gpus(self) -> frozenset[str]:
        """The UUIDs that the present attempt runs on."""
        return frozenset(gpu for place in self.ranks for gpu in place.gpus)

    def nodes(self) -> frozenset[str]:
        """The nodes that the present attempt runs on."""
        return frozenset(place.node for place in self.ranks)


def _checkpoint(
    known: Checkpoint | None, event: CheckpointSealed | CheckpointFound | CheckpointVerified | CheckpointJudged
) -> Checkpoint | None:
    match event:
        case CheckpointSealed():
            verdict = known or Checkpoint(step=event.step)
            return Checkpoint(
                step=event.step,
                sealed_at=event.at,
                attempt=event.attempt,
                parent=event.parent,
                ranks=event.ranks,
                written=verdict.written,
                written_at=verdict.written_at,
                written_why=verdict.written_why,
            )
        case CheckpointFound():
            return replace(known or Checkpoint(step=event.step), sealed_at=None, problem=event.why or "it has no seal")
        case CheckpointVerified():
            return replace(known, problem=event.problem) if known and known.sealed_at is not None else known
        case CheckpointJudged():
            base = known or Checkpoint(step=event.step)
            return replace(base, written=event.state, written_at=event.at, written_why=event.why)
