"""The vocabulary of observations: one immutable struct per kind of event, one tagged union of them.

Times are unix seconds in UTC: `at` is the source's own time, `seen_at` when Medevac read it (0 where that is the
same thing). `id` is the source's own name for the observation (a file and offset, a command's id): a store takes an
event with an id only once, so that a source may repeat itself after a crash. A GPU is named by its UUID.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from medevac.core.diagnose_case import Cause, Clue, Suspect

Phase: TypeAlias = Literal["start", "load", "step", "eval", "save", "end"]
AttributionPhase: TypeAlias = Literal["fast", "slow"]
AttributionOutcome: TypeAlias = Literal["answered", "none", "late", "failed", "absurd"]
Corruption: TypeAlias = Literal["found", "again", "transient", "hardware", "software", "unclear"]
Value: TypeAlias = str | int | float | bool | None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What all events have; never used by itself."""

    at: float
    seen_at: float = 0.0
    id: str = ""
    source: str = ""


class FaultSeen(Event, frozen=True, kw_only=True, tag=True):
    """One fact of a kernel log: an Xid, an SXid, an AER error, a link that went down.

    `kind` is a name of docs/decode.md (xid, sxid, fell_off, aer, mlx5, ...); `code` the Xid or SXid number; `pci` in
    the form 0000:3b:00.0; `details` what else the line says, by the names of the same page.
    """

    kind: str
    code: int | None = None
    node: str = ""
    pci: str | None = None
    gpu: str | None = None
    pid: int | None = None
    process: str | None = None
    details: dict[str, Value] = {}
    raw: str = ""
    file: str = ""
    line: int = 0


class EccCounted(Event, frozen=True, kw_only=True, tag=True):
    """Totals of one GPU's error counters as read at `at`: corrected, uncorrected, rows remapped; degrees Celsius."""

    node: str
    gpu: str
    pci: str = ""
    sbe: int = 0
    dbe: int = 0
    remapped_rows: int = 0
    temperature: float | None = None


class EnvironmentSeen(Event, frozen=True, kw_only=True, tag=True):
    """A power supply, fan or inlet sensor of a rack or a node changed its state ("ok", "warning", "failed")."""

    rack: str
    component: Literal["psu", "fan", "inlet", "feed"]
    state: str
    node: str = ""
    feed: str = ""
    text: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a node: `index` as CUDA_VISIBLE_DEVICES counts, PCI address, UUID."""

    index: int
    uuid: str
    pci: str = ""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node and what it shares with others: rack, power feed, NVLink domain, the scheduler's partitions.

    `out`: somebody else than Medevac keeps it out of service.
    """

    name: str
    rack: str = ""
    feed: str = ""
    nvlink_domain: str = ""
    gpus: tuple[Gpu, ...] = ()
    partitions: tuple[str, ...] = ()
    out: bool = False


class ClusterSeen(Event, frozen=True, kw_only=True, tag=True):
    """The nodes and GPUs that the scheduler has; not `whole`: only those of them that have changed."""

    nodes: tuple[Node, ...]
    whole: bool = True


class JobPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a job says about its own recovery (DESIGN 5a); absent values are the site policy's."""

    enabled: bool = True
    checkpoint_dir: str | None = None
    max_restarts: int | None = None
    policy: str | None = None
    no_clean: Literal["hold", "restart"] | None = None
    signal: str | None = None
    drain_deadline_s: float | None = None
    progress_regex: str | None = None
    output: str | None = None
    lineage: Literal["sealed", "none"] | None = None
    flight_recorder: str | None = None
    min_ranks: int | None = None
    warm: bool = False
    warm_imports: tuple[str, ...] = ()


class JobSubmitted(Event, frozen=True, kw_only=True, tag=True):
    """A job came under Medevac's care. `ranks` is how many it wants, 0 for one process that starts its own; `array` the
    array that it is a task of.
    """

    job: str
    command: tuple[str, ...] = ()
    ranks: int = 0
    gpus_per_rank: int = 1
    policy: JobPolicy = JobPolicy()
    array: str = ""


class RankPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one rank runs. A process without ranks of its own is rank 0 with all of its GPUs."""

    rank: int
    node: str
    gpus: tuple[str, ...] = ()
    local_rank: int = 0


class AttemptStarted(Event, frozen=True, kw_only=True, tag=True):
    """The scheduler started attempt `attempt` of the job; `resume_from` is the step it was told to load."""

    job: str
    attempt: int
    ranks: tuple[RankPlace, ...] = ()
    resume_from: int | None = None


class RankExit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one rank ended: exit code, or the signal that ended it (then code is 128 + signal)."""

    rank: int
    code: int
    signal: int = 0
    at: float = 0.0


class AttemptEnded(Event, frozen=True, kw_only=True, tag=True):
    """All ranks of the attempt are gone. `code` is the job's own; `exits` in order of time, the first died first.

    `why` is empty where the job ended by itself, else what ended it ("stopped", "keeper-lost").
    """

    job: str
    attempt: int
    code: int
    exits: tuple[RankExit, ...] = ()
    why: str = ""


class StepReported(Event, frozen=True, kw_only=True, tag=True):
    """A heartbeat of one rank: DESIGN 5a, in-job protocol. `compute_s` is its own time before the all-reduce.

    `finite` is False when the rank found a non-finite loss or gradient (JSON has no NaN). `handled` says, in words,
    what the job has done about it in place ("skipped", "rolled back to step 40"): then it needs nobody's help.
    Where the rank runs is said with all but plain steps, memory about once a second: bytes resident of the process, and
    bytes that tensors of the process take on its GPU (None: not said, or not known).
    """

    job: str
    attempt: int
    step: int
    rank: int = 0
    phase: Phase = "step"
    loss: float | None = None
    grad_norm: float | None = None
    compute_s: float | None = None
    finite: bool = True
    handled: str = ""
    node: str = ""
    gpu: str = ""
    pci: str = ""
    local_rank: int | None = None
    memory: int | None = None
    gpu_memory: int | None = None


class ResumedFrom(Event, frozen=True, kw_only=True, tag=True):
    """A rank says which checkpoint step it loaded (None: it started from nothing), and where it runs."""

    job: str
    attempt: int
    rank: int = 0
    step: int | None = None
    node: str = ""
    gpu: str = ""
    pci: str = ""
    local_rank: int | None = None


class CorruptionSeen(Event, frozen=True, kw_only=True, tag=True):
    """Replicas of a job's state differ, or it has turned out what that was (docs/silent-corruption.md).

    `outcome`: found (the steps are being done again), again (the same rank is wrong on the same part), transient,
    hardware (the part is at fault), software, unclear. `step` is where it was found, `since` the last step after which
    all agreed; `rank`, `node`, `gpu` what is named, if anything.
    """

    job: str
    attempt: int
    outcome: Corruption
    step: int
    since: int = 0
    tensors: tuple[str, ...] = ()
    rank: int | None = None
    node: str = ""
    gpu: str = ""
    pci: str = ""


class SealRank(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank that took part in a checkpoint; `ecc` its GPU's uncorrected count as the rank knew it."""

    rank: int
    node: str = ""
    gpu_uuid: str = ""
    pci: str = ""
    ecc: int | None = None


class CheckpointSealed(Event, frozen=True, kw_only=True, tag=True):
    """A checkpoint with its seal stands in the job's folder (`at`: when it was sealed)."""

    job: str
    attempt: int
    step: int
    parent: int | None = None
    ranks: tuple[SealRank, ...] = ()


class CheckpointFound(Event, frozen=True, kw_only=True, tag=True):
    """A checkpoint folder without a readable seal: its lineage is unknown; `why` names file and reason."""

    job: str
    step: int
    why: str = ""


class CheckpointVerified(Event, frozen=True, kw_only=True, tag=True):
    """The files of a checkpoint were read and compared with its seal; `problem` names the file that differs."""

    job: str
    step: int
    ok: bool
    problem: str = ""


class CheckpointJudged(Event, frozen=True, kw_only=True, tag=True):
    """A verdict read from the lineage file that this store had not written (another store's, or a person's)."""

    job: str
    step: int
    state: Literal["clean", "suspect", "condemned"]
    why: str = ""


class OutputRead(Event, frozen=True, kw_only=True, tag=True):
    """What the output of an ended attempt says: lines that a signature knows, and the ranks that spoke. `live`: while
    it still runs, the lines so far, as soon as one of them may name the cause of a crash.
    """

    job: str
    attempt: int
    clues: tuple[Clue, ...] = ()
    ranks: tuple[int, ...] = ()
    live: bool = False


class AttemptExamined(Event, frozen=True, kw_only=True, tag=True):
    """What was seen of an attempt that hangs, before it was stopped: stopped processes, flight recorders."""

    job: str
    attempt: int
    clues: tuple[Clue, ...] = ()


class AttributionHeard(Event, frozen=True, kw_only=True, tag=True):
    """What an external attribution service said of a failed attempt, or why it said nothing that counts.

    For people to read; nothing is decided on it.
    """

    job: str
    attempt: int
    phase: AttributionPhase
    outcome: AttributionOutcome
    why: str = ""
    cause: Cause | None = None
    confidence: float = 0.0
    suspects: tuple[Suspect, ...] = ()


class TimePassed(Event, frozen=True, kw_only=True, tag=True):
    """Nothing but time: a deadline of the view came due."""


class WatchBegan(Event, frozen=True, kw_only=True, tag=True):
    """A controller looks from now on: it started, or had stood still. Silence before this says nothing of a job."""


class ActionSettled(Event, frozen=True, kw_only=True, tag=True):
    """What became of an action, as the world was read back. `unknown`: sent, unanswered, not yet readable; `no-room`:
    refused while too little is in service.
    """

    action: str
    outcome: Literal["done", "refused", "no-room", "unsupported", "unknown"]
    why: str = ""


class OrderGiven(Event, frozen=True, kw_only=True, tag=True):
    """A person's order. `what`: pause, resume, return (a GPU or node), release (a job), resume-from (a step),
    stop (a job).
    """

    what: Literal["pause", "resume", "return", "release", "resume-from", "stop"]
    who: str
    target: str = ""
    step: int | None = None
    why: str = ""


AnyEvent: TypeAlias = (
    FaultSeen
    | EccCounted
    | EnvironmentSeen
    | ClusterSeen
    | JobSubmitted
    | AttemptStarted
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
    | TimePassed
    | WatchBegan
    | ActionSettled
    | OrderGiven
)
