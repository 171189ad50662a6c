"""What Slurm's commands say, as values."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shape of the values here."""


class SlurmJob(Value, frozen=True, kw_only=True):
    """One line of `squeue`, texts as they stand there. `id` is what commands take: 17, or 12_3 for an array's task.

    `parts` are the numbers of a heterogeneous job's components; `state` is the long name; `exit_code` the raw wait
    status; times ISO in UTC; `asked` when Slurm was asked, by the monotonic clock.
    """

    id: str
    number: str
    state: str
    restarts: int
    nodes: str = ""
    node_count: int = 1
    tasks: int = 1
    exit_code: str = "0"
    start: str = ""
    end: str = ""
    submit: str = ""
    requeue: bool = True
    batch: bool = True
    held: bool = False
    reason: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    user: str = ""
    het: str = ""
    parts: tuple[str, ...] = ()
    admin_comment: str = ""
    comment: str = ""
    stdout: str = ""
    stderr: str = ""
    folder: str = ""
    name: str = ""
    asked: float = 0.0


class SlurmNode(Value, frozen=True, kw_only=True):
    """One node. `states` are the words of `State=` (IDLE, DRAIN, NOT_RESPONDING for the trailing `*`); `complete`: what
    stands around its weight and features was told (24.05 leaves features out where there are none); `boot` in ISO and
    UTC, "" for unknown.
    """

    name: str
    states: frozenset[str]
    gres: str = ""
    partitions: tuple[str, ...] = ()
    weight: int = 1
    features: tuple[str, ...] = ()
    active: tuple[str, ...] = ()
    complete: bool = False
    boot: str = ""
    comment: str = ""
    reason: str = ""
    reason_by: str = ""
    reason_at: str = ""

    @property
    def drained(self) -> bool:
        """It takes no new work."""
        return bool(self.states & {"DRAIN", "DRAINING", "DRAINED"})

    @property
    def usable(self) -> bool:
        """New work can start on it, now or when what runs there ends."""
        return not self.drained and not self.states & UNUSABLE


UNUSABLE = frozenset(
    {
        *("DOWN", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN"),
        *("ERROR", "INVAL", "INVALID_REG", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"),
    }
)

RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
"""The job has its nodes and its processes are there."""

WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""It is in the queue."""

BETWEEN = frozenset({"COMPLETING", "CONFIGURING", "POWER_UP_NODE", "UPDATE_DB"})
"""It has nodes, and either no processes yet or some that are being ended."""


class Partition(Value, frozen=True, kw_only=True):
    """One partition."""

    name: str
    nodes: tuple[str, ...] = ()
    state: str = "UP"
    node_sets: str = ""


class JobDetail(Value, frozen=True, kw_only=True):
    """What only `scontrol -d show job` tells: the user's exclusions and the GPU indices on each node."""

    excluded: tuple[str, ...] = ()
    gpus: dict[str, tuple[int, ...]] = {}
